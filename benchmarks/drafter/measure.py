"""Accept length and tokens/s in SGLang: the target alone and with each drafter, held-out prompts.

One server is started for the target alone and one with the first drafter; the others' weights are
put into that by /update_weights_from_disk (the drafter's names are none of the target's, so the
target stays as it is). The first drafter is measured once more at the end, after all the others: a
swap that did nothing would show there and in equal figures. With --servers each drafter has a
server of its own.
"""

import argparse
import json
import os
import signal
import subprocess
import time
import urllib.error
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import yaml

from benchmarks.drafter import read_lines, record
from benchmarks.drafter.answers import TEMPERATURES
from benchmarks.drafter.engine import ask_all, metric, post, summed
from benchmarks.drafter.prepare import SERVER
from benchmarks.drafter.train import BLOCK, DFLASH, DRAFTS

ALONE = "alone"  # the target without a drafter
EAGLE3 = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": DRAFTS,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": DRAFTS + 1,
}
DFLASH_FLAGS = {"speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": BLOCK}


class Server:
    """An SGLang server in a process group of its own."""

    def __init__(self, python: str, model: str, port: int, log: Path, flags: dict[str, Any]):
        words = [python, "-m", "sglang.launch_server", "--model-path", model]
        words += ["--host", "127.0.0.1", "--port", str(port)]
        for name, value in flags.items():
            words.append("--" + name.replace("_", "-"))
            words += [] if value is True else [str(value)]
        self.url, self.log = f"http://127.0.0.1:{port}", log
        with log.open("w") as f:
            self.process = subprocess.Popen(
                words, stdout=f, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, seconds: float) -> None:
        """Until it answers a request.

        Raises:
            RuntimeError: it ended, or the time is over; with its log's end.
        """
        until = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until:
            try:
                body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 8}}
                post(self.url, "/generate", body, timeout=30)
                return
            except (urllib.error.URLError, OSError):
                time.sleep(1)
        tail = self.log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{self.log}: no server on {self.url}\n{tail}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)


def measure(
    url: str, prompts: list[list[int]], args: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """The prompts at each temperature, many at once and (fewer of them) one at a time; and the
    greedy answers' ids."""
    told, greedy = [], list[list[int]]()
    for temperature in TEMPERATURES:
        for in_flight in (args.in_flight, 1):
            some = prompts if in_flight > 1 else prompts[: args.alone]
            if not some:
                continue
            answers, seconds = ask_all(url, some, temperature, args.max_new_tokens, in_flight)
            one = {"temperature": temperature, "in_flight": in_flight, **summed(answers, seconds)}
            one["gauge"] = metric(url, "sglang:spec_accept_length")
            told.append(one)
            greedy = greedy or [answer["output_ids"] for answer in answers]
    return told, greedy


def agreement(greedy: list[list[int]], alone: list[list[int]]) -> float:
    """The mean share of the target's own greedy answer up to the first other token. Drafts change
    no answer but where two tokens are nearly as likely."""
    shares = []
    for ours, theirs in zip(greedy, alone, strict=False):
        same = next((k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        shares.append(1.0 if same is None else same / len(theirs))
    return round(sum(shares) / len(shares), 4)


def held_out(out: Path, count: int) -> list[list[int]]:
    rows = {
        r["id"]: r["prompt_ids"]
        for r in read_lines(out / "answers.jsonl")
        if r["set"] == "held_out"
    }
    return list(rows.values())[:count]


def swap(server: Server, folder: Path) -> None:
    """Put a drafter's weights into a running server.

    Raises:
        RuntimeError: it refuses them.
    """
    try:
        # Nothing is cached that would have to be flushed, and a flush fails while a batch ends.
        body = {"model_path": str(folder), "flush_cache": False}
        post(server.url, "/update_weights_from_disk", body)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{folder}: {error.read().decode(errors='replace')}") from error


class Results:
    """What was measured, kept after each drafter, so that a later call goes on."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.until = args, time.monotonic() + args.limit
        self.file = args.out / "records/measured.json"
        self.told: dict[str, Any] = {}
        if self.file.exists():
            self.told = json.loads(self.file.read_text())
        self.prompts = held_out(args.out, args.prompts)

    def wanted(self, key: str) -> bool:
        return key not in self.told and time.monotonic() < self.until

    def take(self, key: str, url: str) -> None:
        told, greedy = measure(url, self.prompts, self.args)
        reference = self.args.out / "greedy.json"
        if key == ALONE:
            reference.write_text(json.dumps(greedy))
        elif reference.exists():
            told[0]["agreement"] = agreement(greedy, json.loads(reference.read_text()))
        self.told[key] = told
        self.file.write_text(json.dumps(self.told, indent=1))
        said = [(one.get("accept_length"), one["tokens_per_s"]) for one in told]
        print(key, said, told[0].get("agreement"), flush=True)

    def warm(self, server: Server) -> None:
        """Wait for it, and let Triton compile for the batch sizes that occur."""
        server.wait(400)
        measure(server.url, self.prompts[: self.args.in_flight], self.args)


def one_server(results: Results, names: list[str], others: list[str], boot: Any) -> None:
    """All drafters in one server, one after the other; each of the others has a server of its own,
    started at the same time."""
    left = [name for name in others if results.wanted(name)]
    if not left and not any(results.wanted(name) for name in names):
        return
    with ExitStack() as stack:
        server = stack.enter_context(boot(names[0], 0))
        beside = [stack.enter_context(boot(name, k)) for k, name in enumerate(left, 1)]
        for one in (server, *beside):  # a start would slow the measured one down
            results.warm(one)
        for name, one in zip(left, beside, strict=True):
            results.take(name, one.url)
        for name, key in [*((n, n) for n in names), (names[0], f"again {names[0]}")]:
            if results.wanted(key):
                swap(server, results.args.out / "sglang" / name)
                results.take(key, server.url)


def many_servers(results: Results, names: list[str], boot: Any) -> None:
    """A server a drafter, some at the same time, each measured while the others idle."""
    left = [name for name in names if results.wanted(name)]
    for some in batched(left, results.args.servers or 4):
        with ExitStack() as stack:
            servers = [stack.enter_context(boot(name, k)) for k, name in enumerate(some)]
            for server in servers:
                results.warm(server)
            for name, server in zip(some, servers, strict=True):
                if results.wanted(name):
                    results.take(name, server.url)


def batched(names: list[str], size: int) -> list[list[str]]:
    return [names[k : k + size] for k in range(0, len(names), size)]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="measure", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="prepare's folder")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, default=80)
    parser.add_argument("--alone", type=int, default=4, help="of them, one at a time for the speed")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--port", type=int, default=32100)
    parser.add_argument(
        "--servers", type=int, default=0, help="a server a drafter, so many at once"
    )
    parser.add_argument("--limit", type=float, default=1e9, help="seconds; the next call goes on")
    args = parser.parse_args(argv)
    python = yaml.safe_load((args.out / "workflow.yaml").read_text())["engine"]["python"]
    names = sorted(p.name for p in (args.out / "sglang").iterdir())
    # Servers share the GPU, so none sizes its cache by what is free.
    common = SERVER | {"mem_fraction_static": 0.3, "max_running_requests": 32}
    common |= {"cuda_graph_max_bs": 32, "max_total_tokens": 100_000, "sleep_on_idle": True}

    def boot(name: str, number: int) -> Server:
        flags = dict(common)
        if name != ALONE:
            flags |= DFLASH_FLAGS if name.startswith(DFLASH) else EAGLE3
            flags["speculative_draft_model_path"] = str(args.out / "sglang" / name)
        port = args.port + 100 * number
        return Server(python, args.model, port, args.out / f"server-{number}.log", flags)

    results = Results(args)
    try:
        # SGLang's DFlash takes no new weights.
        fixed = [ALONE, *(name for name in names if name.startswith(DFLASH))]
        eagle = [name for name in names if name not in fixed]
        if args.servers or not eagle:
            many_servers(results, [*fixed, *eagle], boot)
        else:
            one_server(results, eagle, fixed, boot)
    finally:
        told = dict(results.told)
        flags = {"alone": common, "eagle3": EAGLE3, "dflash": DFLASH_FLAGS}
        alone = told.pop(ALONE, [])
        record(args.out, "measure", {"flags": flags, "alone": alone, "drafters": told})
    return int(any(name not in told for name in names))

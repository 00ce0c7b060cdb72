"""The embedded engine's server on a real model: answers, refusals, and its end."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.made.embedded import Server, needs_package
from tests.made.paths import ROOT
from workflow_scripts.config.load import load
from workflow_scripts.engine.protocol import Ask
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.attached import open_engines

# Generous: the machines that run this are small and shared. Quiet ones need 0.7, 0.05 and 0.5 s.
START_S, STOP_S, ORPHAN_S = 60, 3, 10

pytestmark = needs_package


def until(condition: Callable[[], bool], limit: float, what: str) -> None:
    """Wait until a condition holds, and fail with what holds in its place after `limit` seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit, f"{what} after {limit} s"
        time.sleep(0.02)


def question(tokenizer: Tokenizer, text: str) -> list[int]:
    prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = tokenizer.encode(prompt, add_special_tokens=False).ids
    return ids


def test_ready_line(server: Server) -> None:
    assert server.ready == {
        "ready": True,
        "url": server.ready["url"],
        "pid": server.process.pid,
        "slots": 4,
        "context": 1024,
    }
    assert server.client.get("/health").status_code == 200
    assert server.start_seconds < START_S


def test_same_seed_same_ids(server: Server, tokenizer: Tokenizer) -> None:
    ids = question(tokenizer, "Name three animals that live in the sea.")
    first, again, other = (server.complete(ids, seed=seed)["tokens"] for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_a_prompt_of_ids_is_taken_as_it_is(server: Server, tokenizer: Tokenizer) -> None:
    ids = question(tokenizer, "What is the capital of France?")
    found = server.complete(ids, temperature=0.0, n_predict=48)
    assert found["tokens_evaluated"] == len(ids)
    assert found["tokens_predicted"] == len(found["tokens"])
    assert found["tokens"][-1] == 2  # the end of the turn is among the ids, not in the text
    assert tokenizer.decode(found["tokens"][:-1]) == found["content"]
    assert "Paris" in found["content"]


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ([504] * 1024, "exceed_context_size_error"),
        ([], "invalid_request_error"),
        ([504, 49152], "invalid_request_error"),
        ([504, -1], "invalid_request_error"),
    ],
    ids=["too long", "empty", "unknown id", "negative id"],
)
def test_an_unusable_prompt_is_refused(server: Server, prompt: list[int], kind: str) -> None:
    answer = server.client.post("/completion", json={"prompt": prompt, "n_predict": 1})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, kind)
    assert server.client.get("/health").status_code == 200


LONG = {"prompt": [504], "n_predict": 900, "ignore_eos": True}


def test_a_streamed_request_given_up_frees_its_slot(server: Server) -> None:
    """One that is not streamed would run to its end: llama.cpp does not see the closed socket."""
    with server.client.stream("POST", "/completion", json={**LONG, "stream": True}) as answer:
        lines = answer.iter_lines()  # httpx closes the answer when this is let go
        assert next(lines).startswith("data: ")
        assert server.busy()
    until(lambda: not server.busy(), 10, "still busy")


def test_a_busy_server_answers_like_an_idle_one(server: Server) -> None:
    """Ids and probabilities are equal to the last bit; with flash attention they are not.

    Prompts cut so that one token is left over are the exception, which these lengths exclude.
    """
    prompts = [list(range(1000, 1000 + length)) for length in (70, 80, 95)]

    def answer(ids: list[int]) -> list[tuple[int, float]]:
        found = server.complete(ids, seed=5, n_predict=2, n_probs=1, ignore_eos=True)
        return [(step["id"], step["logprob"]) for step in found["completion_probabilities"]]

    alone = [answer(ids) for ids in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(answer, prompts)) == alone


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_a_request_in_flight(folder: Path, number: signal.Signals) -> None:
    server = Server(folder / "model.gguf", "--slots", "1")
    client = subprocess.Popen(
        [sys.executable, "-c", REQUEST, server.ready["url"] + "/completion", json.dumps(LONG)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        until(server.busy, 30, "no request")
        server.process.send_signal(number)
        assert server.process.wait(STOP_S) == 0
        assert client.communicate(timeout=30)[0].strip() == "closed"
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""  # one line in all
    finally:
        server.end()
        client.kill()
        client.wait()


REQUEST = """
import http.client, sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    opener.open(sys.argv[1], sys.argv[2].encode(), timeout=60).read()
    print("answered")
except (http.client.HTTPException, OSError):
    print("closed")
"""

PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-m", "workflow_scripts.embedded.server", *sys.argv[1:]])
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie that nobody has collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_it_dies_with_its_parent(folder: Path) -> None:
    command = [sys.executable, "-c", PARENT, "--model", str(folder / "model.gguf"), "--slots", "1"]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = json.loads(parent.stdout.readline())["pid"]
        assert is_running(pid)
    finally:
        parent.kill()
        parent.communicate()
    until(lambda: not is_running(pid), ORPHAN_S, "still running")


def run_server(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workflow_scripts.embedded.server", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_parent_already_gone_is_noticed(folder: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    found = run_server("--model", str(folder / "model.gguf"), "--parent-pid", str(gone.pid))
    assert (found.returncode, found.stdout) == (0, "")
    assert "is gone" in found.stderr


def test_an_unusable_model_is_named(tmp_path: Path) -> None:
    found = run_server("--model", str(tmp_path / "none.gguf"))
    assert (found.returncode, found.stdout) == (2, "")
    assert "cannot read the model file" in found.stderr
    (tmp_path / "torn.gguf").write_bytes(b"GGUF\x03\0\0\0")
    found = run_server("--model", str(tmp_path / "torn.gguf"))
    assert (found.returncode, found.stdout) == (1, "")
    assert "could not serve" in found.stderr


def test_a_request_given_up_frees_its_slot(folder: Path) -> None:
    """Through the workflow's own client: answers, then a long request that is cancelled."""
    values = {
        "output_dir": "x",
        "input": "x",
        "model": {"path": str(folder), "thinking": False},
        "engine": {"kind": "embedded", "slots": 1},
        "sampling": {"max_new_tokens": 900, "temperature": 0},
    }
    config = load(values)
    story = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("1 2 3 4 5 6 7 8 9").ids

    async def ask_and_give_up() -> list[int | None]:
        prompts = Prompts.from_config(config)
        async with open_engines(config, [2], prompts) as [(engine, _)]:
            running = asyncio.create_task(engine.ask(Ask("rid", story, 1)))
            seen = []
            for wanted in (1, 0):
                for _ in range(100):
                    busy, _ = await engine.load()
                    if busy == wanted:
                        break
                    await asyncio.sleep(0.05)
                seen.append(busy)
                running.cancel()
            return seen

    assert asyncio.run(ask_and_give_up()) == [1, 0]

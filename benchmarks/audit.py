"""Time and memory of the audit, beside Hugging Face datasets and tokenizers, in one run.

    python -m benchmarks.audit --model FOLDER [--rows 1000000] [--long 300000] [--folder DIR]

Two sets are built from English sentences of this repository: one of short rows, 87 % of them
trivial (empty, an empty reasoning, refusals, one string) and the others of realistic length, and
one of long rows. For each, in turn: Tracemill's audit, and the other way (`datasets.load_dataset`,
then `map` with `tokenizers`' encode_batch_fast over the responses, in as many processes), which
only reads and counts. The model's folder needs tokenizer.json and tokenizer_config.json. Needs
envs/bench.txt.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRIVIAL = ["", "<think>\n\n</think>\n\n", "I'm sorry, but I can't help with that.", "OK."]


def sentences() -> list[str]:
    """English sentences of the repository's documents."""
    files = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md", ROOT / "LICENSE"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    text = re.sub(r"`[^`]*`|\|[^\n]*|    [^\n]*", " ", text)
    found = re.findall(r"[A-Z][\w ,;'\n-]{30,200}[.:]", text)
    return [" ".join(sentence.split()) for sentence in found]


def text_of(chars: int, draw: random.Random, pool: list[str]) -> str:
    out, size = [], 0
    while size < chars:
        out.append(draw.choice(pool))
        size += len(out[-1]) + 1
    return " ".join(out)[:chars]


def build(path: Path, rows: int, long: bool) -> dict[str, Any]:
    """Write a set; the same rows for the same arguments."""
    draw, pool = random.Random(rows), sentences()
    trivial = 0
    with path.open("w") as f:
        for i in range(rows):
            prompt = f"Question {i}: " + text_of(int(draw.lognormvariate(5, 0.7)) + 20, draw, pool)
            if not long and draw.random() < 0.87:
                answer, trivial = draw.choice(TRIVIAL), trivial + 1
            else:
                answer = text_of(int(draw.lognormvariate(8.2 if long else 7, 0.6)), draw, pool)
            messages = [
                {"role": "user", "content": prompt}, {"role": "assistant", "content": answer}
            ]  # fmt: skip
            f.write(json.dumps({"id": i, "messages": messages}) + "\n")
    return {"rows": rows, "trivial": trivial, "MB": round(path.stat().st_size / 1e6, 1)}


def ours(data: Path, model: Path, out: Path, processes: int) -> None:
    """One audit, as the workflow runs it."""
    from workflow_scripts.audit.__main__ import main
    from workflow_scripts.config.load import load

    config = load(
        {
            "output_dir": str(out),
            "input": str(data),
            "model": {"path": str(model), "thinking": True},
            "engine": {"kind": "attach", "urls": ["http://127.0.0.1:1"]},
        }
    )
    out.mkdir(parents=True)
    run = {"config": config.model_dump(mode="json"), "identity": {}}
    (out / "run.json").write_text(json.dumps(run))
    files = {"report": "report.json", "rows": "rows.parquet", "rejected": "rejected.jsonl"}
    words = [w for name, file in files.items() for w in (f"--{name}", str(out / file))]
    main(["--run", str(out / "run.json"), "--processes", str(processes), *words])


def theirs(data: Path, model: Path, cache: Path, processes: int) -> None:
    """Read and count the responses' tokens with datasets and tokenizers."""
    os.environ["HF_DATASETS_CACHE"] = str(cache)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import datasets
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def count(batch: dict[str, Any]) -> dict[str, Any]:
        texts = [messages[-1]["content"] for messages in batch["messages"]]
        return {"n": [len(e.ids) for e in tokenizer.encode_batch_fast(texts)]}

    datasets.disable_progress_bars()
    rows = datasets.load_dataset("json", data_files=str(data), split="train", cache_dir=str(cache))
    counted = rows.map(count, batched=True, num_proc=processes, remove_columns=rows.column_names)
    print(sum(counted["n"]))


def measured(words: list[str]) -> dict[str, float]:
    """Seconds and the largest process's peak memory of this program with other arguments."""
    start = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "benchmarks.audit", *words]
    peak, process = 0, subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    import psutil

    while process.poll() is None:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
        used = 0
        for one in family:
            try:
                used += one.memory_full_info().pss
            except psutil.Error:
                continue
        peak = max(peak, used)
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = round(time.monotonic() - start, 1)
    return {"seconds": seconds, "cpu_seconds": round(cpu, 1), "peak_MiB": peak >> 20}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--long", type=int, default=300_000)
    parser.add_argument("--folder", type=Path, default=Path("results/benchmark-audit"))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--one", choices=("ours", "theirs"))
    parser.add_argument("--data", type=Path)
    args = parser.parse_args(argv)
    if args.one:
        run = ours if args.one == "ours" else theirs
        run(args.data, args.model, args.folder, args.processes)
        return
    for name, rows in (("short", args.rows), ("long", args.long)):
        if not rows:
            continue
        shutil.rmtree(args.folder, ignore_errors=True)
        args.folder.mkdir(parents=True)
        data = args.folder / f"{name}.jsonl"
        told = build(data, rows, name == "long")
        for one in ("ours", "theirs"):
            words = ["--one", one, "--data", str(data), "--model", str(args.model)]
            words += ["--folder", str(args.folder / one), "--processes", str(args.processes)]
            told[one] = measured(words)
            told[one]["MB_per_s"] = round(told["MB"] / told[one]["seconds"], 1)
        told["times_as_fast"] = round(told["theirs"]["seconds"] / told["ours"]["seconds"], 2)
        print(json.dumps({name: told}), flush=True)


if __name__ == "__main__":
    main()

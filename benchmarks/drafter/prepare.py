"""Prompts, old responses as the motivating run found them, and the workflow's configuration.

Writes into --out: found.jsonl (87 % of the responses empty, the others human), human.jsonl (the
same prompts, all human), held_out.jsonl (prompts that are in neither), workflow.yaml.
"""

import argparse
import json
import random
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from benchmarks.drafter import record

EMPTY = 0.87  # share of empty turns in the motivating run
LONGEST = 2000  # characters of a prompt; the few longer ones would set the size of every batch
Row = dict[str, Any]
# The attention and sampling kernels that need no package beyond SGLang's own wheels.
SERVER = {
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_piecewise_cuda_graph": True,
    "disable_radix_cache": True,
    "enable_metrics": True,
    "watchdog_timeout": 600,
    "context_length": 4096,
    "mem_fraction_static": 0.5,
    "max_running_requests": 256,
    "cuda_graph_max_bs": 256,
}


def lines(source: str) -> list[Row]:
    """The objects of JSON Lines, from a path or a URL."""
    if "://" in source:
        with urllib.request.urlopen(source) as answer:
            text = answer.read().decode()
    else:
        text = Path(source).read_text()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def gsm8k(source: str) -> list[Row]:
    return [
        {"id": f"gsm8k-{number}", "prompt": row["question"], "answer": row["answer"]}
        for number, row in enumerate(lines(source))
    ]


def self_instruct(source: str) -> list[Row]:
    """The seed tasks, each with its first instance."""
    rows = []
    for row in lines(source):
        first = row["instances"][0]
        prompt = "\n\n".join(filter(None, (row["instruction"], first["input"])))
        rows.append(
            {"id": f"self-instruct-{row['id']}", "prompt": prompt, "answer": first["output"]}
        )
    return rows


def conversation(row: Row, answer: str | None) -> str:
    messages = [{"role": "user", "content": row["prompt"]}]
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    return json.dumps({"id": row["id"], "messages": messages}, ensure_ascii=False) + "\n"


def draw(
    pool: list[Row], rows: int, held_out: int, seed: int
) -> tuple[list[Row], list[Row], set[str]]:
    """Rows, held-out rows, and the ids of the rows that get an empty turn.

    Raises:
        ValueError: the pool holds too few different prompts.
    """
    short = [row for row in pool if len(row["prompt"]) <= LONGEST]
    by_prompt = {row["prompt"].strip(): row for row in reversed(short)}
    different = sorted(by_prompt.values(), key=lambda row: row["id"])
    if len(different) < rows + held_out:
        raise ValueError(f"{len(different)} different prompts; --rows and --held-out ask for more")
    chance = random.Random(seed)
    chance.shuffle(different)
    chosen, held = different[:rows], different[rows : rows + held_out]
    empty = {row["id"] for row in chance.sample(chosen, round(EMPTY * rows))}
    return chosen, held, empty


def workflow(out: Path, model: str, python: str, max_new_tokens: int, seed: int) -> Row:
    """The configuration of the run that regenerates found.jsonl."""
    return {
        "output_dir": str(out / "run"),
        "input": [str(out / "found.jsonl")],
        "regenerate": "all",
        "shards": 12,
        "model": {"path": model, "thinking": False},
        "engine": {"kind": "sglang", "gpus": 1, "python": python, "server": SERVER},
        "sampling": {
            "temperature": 0.6,
            "top_p": 1.0,
            "top_k": -1,
            "max_new_tokens": max_new_tokens,
            "seed": seed,
        },
        "dataset": {"max_length": 2048, "validation_fraction": 0.0, "exports": []},
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="prepare", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gsm8k", required=True, help="train.jsonl, a path or URL")
    parser.add_argument("--self-instruct", required=True, help="seed_tasks.jsonl, a path or URL")
    parser.add_argument("--model", required=True, help="folder of the target model")
    parser.add_argument("--python", default=".venv-sglang/bin/python", help="one that has SGLang")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--held-out", type=int, default=120)
    parser.add_argument("--max-new-tokens", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    pool = [*gsm8k(args.gsm8k), *self_instruct(args.self_instruct)]
    rows, held, empty = draw(pool, args.rows, args.held_out, args.seed)
    found = [conversation(row, "" if row["id"] in empty else row["answer"]) for row in rows]
    (out / "found.jsonl").write_text("".join(found))
    (out / "human.jsonl").write_text("".join(conversation(row, row["answer"]) for row in rows))
    (out / "held_out.jsonl").write_text("".join(conversation(row, None) for row in held))
    config = workflow(out, args.model, args.python, args.max_new_tokens, args.seed)
    (out / "workflow.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    told = {"rows": len(rows), "empty": len(empty), "held_out": len(held), "seed": args.seed}
    told["self_instruct"] = sum(row["id"].startswith("self") for row in rows)
    record(out, "prepare", told)
    return 0

"""Trainers on Tracemill's data: masks compared row by row, loaders, and the speed of preparation.

    python -m benchmarks.trainers --tokenizer FOLDER --trainers .venv-trainers/bin/python

FOLDER holds a tokenizer.json with Qwen's control and think tokens. The second Python has SpecForge
and speculators (envs/trainers.in says how); benchmarks/trainer_side.py is what runs in it. Rows are
built here, the same for the same arguments: conversations whose answers are written as an engine
would return them, some of them in the ways that text does not bring back. The `dataset` stage and
the exports make training data of them, and the trainers' own code reads it.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import audit
from benchmarks.trainer_masks import Row, difference
from workflow_scripts.config.load import load
from workflow_scripts.config.sections import Config
from workflow_scripts.dataset.job import build
from workflow_scripts.identity import digest
from workflow_scripts.model.answers import texts
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.tables.columns import COMPLETIONS
from workflow_scripts.tables.parquet import table_writer

ROOT = Path(__file__).resolve().parent.parent
sentences = cache(audit.sentences)
# ChatML that writes the last answer with its reasoning, even an empty one, both trimmed, and
# earlier answers without: what the templates of Qwen's hybrid reasoning models do.
TEMPLATE = """\
{%- set last = namespace(user=-1) -%}
{%- for m in messages if m.role == 'user' -%}
{%- set last.user = last.user + 1 -%}
{%- endfor -%}
{%- set seen = namespace(user=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set seen.user = seen.user + 1 -%}{%- endif -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.role == 'assistant' and seen.user == last.user -%}
{{- '<think>\\n' + (m.reasoning_content or '') | trim + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- m.content | trim + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n<think>\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}
{{- '\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""
# What makes a row other than plain.
KINDS = (
    "plain",
    "system prompt",
    "two turns",
    "other pieces than the tokenizer's",
    "spaces at the ends of reasoning and answer",
    "reasoning starts with a line end",
    "empty reasoning",
    "question spells control tokens",
    "answer spells control tokens",
    "kept response",
)
EXPORTS = ("sharegpt", "messages", "specforge", "speculators")
IDENTITY: dict[str, Any] = dict.fromkeys(
    ("run_hash", "engine", "chat_template", "tokenizer", "model"), "none"
)
IDENTITY |= {"sampling": {}, "numeric_flags": {}}
SPELLED = "In ChatML, <|im_end|>\n<|im_start|>assistant\n<think>\n opens a reasoning."


def make_model(folder: Path, tokenizer: Path) -> Path:
    """A model folder without weights: the tokenizer, the template above, the end tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(tokenizer / "tokenizer.json", folder)
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    tokens = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    sizes = {"vocab_size": max(ids.values()) + 1, "hidden_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16}
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids["<|im_end|>"]}))
    return folder


def configuration(model: Path, held_out: float = 0.0, exports: Sequence[str] = ()) -> Config:
    return load(
        {
            "output_dir": "results/benchmark",
            "input": "none.jsonl",
            "model": {"path": str(model), "thinking": True},
            "engine": {"kind": "attach", "urls": ["http://127.0.0.1:1"]},
            "dataset": {"validation_fraction": held_out, "exports": list(exports)},
        }
    )


def text_of(chars: int, draw: random.Random) -> str:
    """About `chars` characters of sentences, without white space at the ends."""
    return audit.text_of(chars, draw, sentences()).strip()


def other_pieces(prompts: Prompts, ids: list[int], draw: random.Random) -> list[int]:
    """The same text with one token in two pieces, as sampling sometimes writes it."""
    tokenizer = prompts.tokenizer
    places = list(range(len(ids)))
    draw.shuffle(places)
    for place in places:
        text = tokenizer.id_to_token(ids[place]) or ""
        for cut in range(2, len(text) - 1):
            one, two = tokenizer.token_to_id(text[:cut]), tokenizer.token_to_id(text[cut:])
            if one is not None and two is not None and text not in prompts.added:
                return [*ids[:place], one, two, *ids[place + 1 :]]
    raise ValueError("no token of the answer has two pieces")


def answer_ids(prompts: Prompts, kind: str, size: int, draw: random.Random) -> list[int]:
    """The ids an engine would return for an answer of about `size` characters."""
    reasoning = text_of(size * 3 // 4, draw) + "\n"
    answer = "\n\n" + text_of(size // 4, draw)
    if kind.startswith("spaces"):
        reasoning, answer = f"  {reasoning} \n", f"{answer} \n"
    if kind.startswith("reasoning starts"):
        reasoning = "\n" + reasoning
    if kind == "empty reasoning":
        reasoning = "\n"
    if kind.startswith("answer spells"):
        answer += " " + SPELLED
    assert prompts.marks is not None
    close = prompts.marks.close.tolist()
    ids = [*prompts.encode_text(reasoning), *close, *prompts.encode_text(answer)]
    if kind.startswith("other pieces"):
        ids = other_pieces(prompts, ids, draw)
    return [*ids, min(prompts.end_ids)]


def merged_row(prompts: Prompts, number: int, kind: str, size: int) -> dict[str, Any]:
    """A row of merged/completions.parquet."""
    draw = random.Random(number)
    messages: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    if kind == "system prompt":
        messages.append({"role": "system", "content": "Answer briefly."})
    for turn in range(2 if kind == "two turns" else 1):
        question = f"Question {number}: " + text_of(int(draw.lognormvariate(5, 0.7)), draw)
        if kind.startswith("question spells"):
            question += " " + SPELLED
        messages.append({"role": "user", "content": question})
        if kind == "kept response":
            messages.append({"role": "assistant", "content": text_of(size, draw)})
            break
        prompt = prompts.prompt_ids(messages)
        output = answer_ids(prompts, kind, int(size * draw.lognormvariate(0, 0.3)), draw)
        reasoning, answer = texts(prompts, [(prompt, output)])[0]
        told = {"role": "assistant", "content": answer, "reasoning_content": reasoning}
        messages.append(told)
        turns.append(
            {"turn": turn, "prompt_ids": prompt, "output_ids": output, "class": "complete",
             "finish_reason": "stop", "reasoning": reasoning, "answer": answer, "attempts": 1}
        )  # fmt: skip
    return {
        "row_id": digest(str(number)), "content_hash": digest(str(number)), "source": kind,
        "line": number, "run_hash": IDENTITY["run_hash"], "turns": turns,
        "origin": "generated" if turns else "kept", "class": "complete" if turns else "kept",
        "messages": json.dumps(messages, ensure_ascii=False),
    }  # fmt: skip


def prepare(folder: Path, model: Path, kinds: list[str], size: int, held_out: float) -> Path:
    """merged/ and dataset/ with its exports, of one row a kind given."""
    config = configuration(model, held_out, EXPORTS)
    prompts = Prompts.from_config(config)
    (folder / "dataset").mkdir(parents=True)
    with table_writer(folder / "completions.parquet", COMPLETIONS) as writer:
        for number, kind in enumerate(kinds):
            writer.add([dict.fromkeys(COMPLETIONS.names) | merged_row(prompts, number, kind, size)])
    build(folder / "completions.parquet", folder / "dataset", config, prompts, IDENTITY)
    return folder


def ours(folder: Path, model: Path, out: Path) -> None:
    """The dataset stage alone, timed; the tokenizer's loading is left out as for the others."""
    config = configuration(model)
    prompts = Prompts.from_config(config)
    scratch = folder / "again"
    scratch.mkdir(exist_ok=True)
    start, cpu = time.monotonic(), time.process_time()
    stats = build(folder / "completions.parquet", scratch, config, prompts, IDENTITY)
    took = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - cpu}
    out.write_text(json.dumps({"rows": stats["rows"]["train"], "tokens": stats["tokens"], **took}))


def run(python: Path | str, module: str, words: list[str], out: Path) -> dict[str, Any]:
    """A program of this folder in another process; what it writes as JSON, and its CPU seconds with
    everything it loads."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    env |= {"HF_DATASETS_CACHE": str(out.parent / "hf"), "RAYON_NUM_THREADS": "1"}
    env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(python), "-m", f"benchmarks.{module}", *words, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(out.read_text()), "process_cpu_seconds": cpu}


def rows_of(dataset: Path) -> Iterator[Row]:
    for file in sorted(dataset.glob("*-0*.parquet")):
        for row in pq.read_table(file).to_pylist():
            name = f"{row['row_id']}-{row['turn']}"
            yield Row(name, row["source"], row["turn"], row["input_ids"], row["loss_mask"])


def compared(dataset: Path, theirs: Path, prompts: Prompts) -> dict[str, Any]:
    """Differences of masks and ids, counted by the kind of row."""
    found = {line["id"]: line for line in map(json.loads, theirs.open())}
    table: dict[str, Counter[str]] = {}
    for row in rows_of(dataset):
        kind = row.kind if row.kind != "two turns" else f"two turns, turn {row.turn + 1}"
        counts = table.setdefault(kind, Counter())
        line = found.get(row.id)
        if line is None or not line["input_ids"]:
            counts["no row"] += 1
        else:
            counts[difference(row, line["input_ids"], line["loss_mask"], prompts)] += 1
    order = {kind: dict(table[kind].most_common()) for kind in sorted(table)}
    return {"rows": sum(map(sum, (c.values() for c in table.values()))), "by_kind": order}


def speed(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    """Each way to prepare the same rows, one process each, in turn."""
    told: dict[str, Any] = {}
    for name, kind in (("generated", "plain"), ("kept", "kept response")):
        folder = prepare(args.folder / name, model, [kind] * args.rows, args.size, 0.0)
        text = folder / "dataset/exports/sharegpt/train.jsonl"
        ways: dict[str, list[dict[str, Any]]] = {"tracemill": [], "specforge": [], "datasets": []}
        for _ in range(args.repeats):
            for way, rounds in ways.items():
                words = ["--folder", str(folder), "--model", str(model)]
                if way == "tracemill":
                    words, module, python = ["--one", *words], "trainers", sys.executable
                else:
                    words, module, python = [f"{way}-speed", *words], "trainer_side", args.trainers
                rounds.append(run(python, module, words, args.folder / "speed.json"))
        told[name] = {"text_MB": round(text.stat().st_size / 1e6, 2), **summary(ways, text)}
    return told


def summary(ways: dict[str, list[dict[str, Any]]], text: Path) -> dict[str, Any]:
    """Medians of the rounds, and how often as many rows a CPU second as the others."""
    told: dict[str, Any] = {}
    for way, rounds in ways.items():
        middle = {key: sorted(r[key] for r in rounds)[len(rounds) // 2] for key in rounds[0]}
        middle["rows_per_s"] = middle["rows"] / middle["seconds"]
        middle["rows_per_cpu_s"] = middle["rows"] / middle["cpu_seconds"]
        middle["MB_per_s"] = text.stat().st_size / 1e6 / middle["seconds"]
        told[way] = {k: round(v, 2) for k, v in middle.items()}
    for other in ("specforge", "datasets"):
        ratio = told["tracemill"]["rows_per_cpu_s"] / told[other]["rows_per_cpu_s"]
        told[f"times_{other}_per_cpu_second"] = round(ratio, 2)
    return told


def checks(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    """Masks and loaders on rows of every kind."""
    kinds = [kind for kind in KINDS for _ in range(args.each)]
    folder = prepare(args.folder / "kinds", model, kinds, 1200, 0.1)
    prompts = Prompts.from_config(configuration(model))
    words = ["--folder", str(folder), "--model", str(model)]
    told: dict[str, Any] = {}
    ways = {
        "specforge from text, train_only_last_turn": ["specforge-masks"],
        "specforge from text, its defaults": ["specforge-masks", "--all-turns"],
        "specforge from text, template qwen3-thinking": [
            "specforge-masks", "--template", "qwen3-thinking"
        ],
        "speculators from text": ["speculators-masks"],
    }  # fmt: skip
    for name, way in ways.items():
        theirs = args.folder / "masks.jsonl"
        out = args.folder / "side.json"
        side = run(args.trainers, "trainer_side", [*way, *words, "--masks", str(theirs)], out)
        told[name] = side | compared(folder / "dataset", theirs, prompts)
    for check in ("specforge-load", "speculators-load", "speculators-prepare", "trl-load"):
        out = args.folder / "side.json"
        told[check] = run(args.trainers, "trainer_side", [check, *words], out)
    return told


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json")
    parser.add_argument("--trainers", type=Path, help="Python with SpecForge and speculators")
    parser.add_argument("--folder", type=Path, default=ROOT / "results/benchmark-trainers")
    parser.add_argument("--each", type=int, default=40, help="rows of a kind for the masks, or 0")
    parser.add_argument("--rows", type=int, default=2000, help="rows for the speed; 0: none")
    parser.add_argument("--size", type=int, default=7000, help="characters of their answers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--result", type=Path, default=ROOT / "benchmarks/results-trainers.json")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        ours(args.folder, args.model, args.out)
        return
    shutil.rmtree(args.folder, ignore_errors=True)
    model = make_model(args.folder / "model", args.tokenizer)
    told: dict[str, Any] = {}
    if args.each:
        told["checks"] = checks(args, model)
    if args.rows:
        told["speed"] = speed(args, model)
    if args.result.exists():  # what was left out this time stays
        told = json.loads(args.result.read_text()) | told
    args.result.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()

"""One speculators data set an arm, each with the same number of supervised tokens.

found         the responses as the motivating run found them, 87 % the empty turn
human         the same prompts with the original human answers
regenerated   the target's own answers, all of them
filtered      what the run's filters left of those: the run's dataset/
hot           the target at a hot temperature, as another model's answers
everything    filtered with every prompt: more supervised tokens, but no more training

The poorest set, `found`, needs every prompt for its supervised tokens; the other arms take prompts
in the same order until they have as many, so their prompts are among its own. The last row is cut
to the exact number.
Each set ends with the same validation rows: the target's answers to held-out prompts.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.drafter import read_lines, record
from workflow_scripts.config.load import load
from workflow_scripts.config.sections import Config
from workflow_scripts.dataset.exports import ratio_of, write_arrow
from workflow_scripts.dataset.job import build
from workflow_scripts.identity import digest
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.tables.columns import COMPLETIONS, TRAIN
from workflow_scripts.tables.parquet import side_files, table_writer

IDENTITY: dict[str, Any] = dict.fromkeys(
    ("run_hash", "engine", "chat_template", "tokenizer", "model"), "none"
) | {"sampling": {}, "numeric_flags": {}}
KEEP = dict.fromkeys(
    ("truncated_in_answer", "truncated_in_thinking", "no_answer", "unclosed_thinking",
     "control_tokens", "loop", "repeated", "echo", "contaminated", "duplicates"),
    "keep",
)  # fmt: skip
Row = dict[str, Any]
Rows = dict[str, Row]


def merged_row(number: int, row: Row) -> Row:
    """A row of merged/completions.parquet: a kept response, or an answer with its engine's ids."""
    turns = []
    messages = row["messages"]
    if "output_ids" in row:
        messages = [*messages, {"role": "assistant", "content": ""}]
        turns = [
            {"turn": 0, "prompt_ids": row["prompt_ids"], "output_ids": row["output_ids"],
             "class": "complete", "finish_reason": row["finish"], "attempts": 1, "retractions": 0}
        ]  # fmt: skip
    kind = "generated" if turns else "kept"
    name = digest(f"{kind} {row['id']} {row.get('temperature')}")
    return dict.fromkeys(COMPLETIONS.names) | {
        "row_id": name, "content_hash": name, "source": kind, "line": number, "turns": turns,
        "id": json.dumps(row["id"]), "run_hash": "none", "origin": kind,
        "class": "complete" if turns else "kept", "messages": json.dumps(messages),
    }  # fmt: skip


def dataset(folder: Path, rows: Iterable[Row], config: Config, prompts: Prompts) -> Rows:
    """What the dataset stage makes of rows that are not the run's own."""
    folder.mkdir(parents=True, exist_ok=True)
    with table_writer(folder / "completions.parquet", COMPLETIONS) as writer:
        writer.add([merged_row(number, row) for number, row in enumerate(rows)])
    build(folder / "completions.parquet", folder, config, prompts, IDENTITY)
    return by_prompt(folder)


def by_prompt(folder: Path) -> Rows:
    """A dataset's rows by the id of their prompt."""
    files = [file for of in side_files(folder).values() for file in of]
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return {json.loads(row["id"]): row for row in rows}


def supervised(rows: Iterable[Row]) -> int:
    return sum(row["completion_length"] for row in rows)


def up_to(order: list[str], rows: Rows, tokens: int, name: str) -> list[Row]:
    """Rows in the prompts' order until they have `tokens` supervised ones; the last row is cut.

    Raises:
        ValueError: they have fewer.
    """
    taken: list[Row] = []
    for row in (rows[i] for i in order if i in rows):
        if tokens < row["completion_length"]:
            cut = row["completion_length"] - tokens
            ids, mask = row["input_ids"][:-cut], row["loss_mask"][:-cut]
            row = row | {"input_ids": ids, "loss_mask": mask, "length": len(ids)}
            row["completion_length"] = tokens
        if tokens:
            taken.append(row)
        tokens -= row["completion_length"] if tokens else 0
        if not tokens:
            return taken
    raise ValueError(f"arm {name}: {tokens} supervised tokens are missing; give a smaller --tokens")


def write(folder: Path, learnt: list[Row], held_out: list[Row]) -> Row:
    """The folder for speculators, and what its training needs to know."""
    parts = [folder / "train.parquet", folder / "validation.parquet"]
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in zip(parts, (learnt, held_out), strict=True):
        pq.write_table(pa.Table.from_pylist(rows, schema=TRAIN), part)
    write_arrow(parts, folder / "data")
    return {
        "rows": len(learnt),
        "validation_rows": len(held_out),
        "supervised_tokens": supervised(learnt),
        "tokens": sum(row["length"] for row in learnt),
        "longest": max(row["length"] for row in learnt + held_out),
        "one_token_rows": sum(row["completion_length"] == 1 for row in learnt),
        "ratio": ratio_of(len(learnt), len(learnt) + len(held_out)),
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="arms", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="prepare's folder")
    parser.add_argument("--tokens", type=int, help="supervised tokens; default: the poorest set's")
    parser.add_argument("--steps-per-epoch", type=int, default=64)
    parser.add_argument("--validation", type=int, default=50, help="held-out prompts of them")
    args = parser.parse_args(argv)
    out = args.out
    settings = yaml.safe_load((out / "workflow.yaml").read_text())
    settings["dataset"]["filters"] = KEEP
    config = load(settings)
    prompts = Prompts.from_config(config)
    answers = read_lines(out / "answers.jsonl")
    held = {row["id"]: None for row in answers if row["set"] == "held_out"}
    chosen = set(list(held)[: args.validation])
    validation: list[Row] = []
    for temperature in sorted({r["temperature"] for r in answers if r["set"] == "held_out"}):
        of = [r for r in answers if r["id"] in chosen and r["temperature"] == temperature]
        validation += dataset(out / "sets" / f"held_{temperature}", of, config, prompts).values()
    completions = out / "run/merged/completions.parquet"
    again = out / "sets/regenerated"
    again.mkdir(parents=True, exist_ok=True)
    build(completions, again, config, prompts, IDENTITY)
    sets = {
        "found": dataset(out / "sets/found", read_lines(out / "found.jsonl"), config, prompts),
        "human": dataset(out / "sets/human", read_lines(out / "human.jsonl"), config, prompts),
        "regenerated": by_prompt(again),
        "filtered": by_prompt(out / "run/dataset"),
        "hot": dataset(
            out / "sets/hot", [r for r in answers if r["set"] == "hot"], config, prompts
        ),
    }
    order = [row["id"] for row in read_lines(out / "found.jsonl")]
    tokens = args.tokens or min(supervised(rows.values()) for rows in sets.values())
    told = {}
    for name, rows in sets.items():
        learnt = up_to(order, rows, tokens, name)
        told[name] = write(out / "arms" / name, learnt, validation)
        told[name]["of_rows"] = len(rows)
    whole = [sets["filtered"][i] for i in order if i in sets["filtered"]]
    told["everything"] = write(out / "arms/everything", whole, validation)
    record(out, "arms", {"steps_per_epoch": args.steps_per_epoch, "arms": told})
    return 0

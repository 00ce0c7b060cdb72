"""Merged rows made by hand, and a dataset built of them.

Byte tokens (conftest) make every id checkable by eye: a character is its own id.
"""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tests.made.model import IM_END, THINK_CLOSE, make_model
from tests.made.prompts import tiny_prompts
from workflow_scripts.config.load import load
from workflow_scripts.config.sections import Config
from workflow_scripts.dataset.job import build
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.tables.columns import COMPLETIONS

PROMPTS = tiny_prompts()
RUN: dict[str, Any] = {"run_hash": "0123456789abcdef", "engine": "sglang", "sampling": {"seed": 5}}
RUN |= {"numeric_flags": {}, "chat_template": "c", "tokenizer": "t", "model": "m"}
Turn = dict[str, Any]


def reply(answer: str, reasoning: str | None = "so", **changes: Any) -> Turn:
    """A generated turn in its thinking mode; reasoning None: the answer alone, as after a prompt
    that closes the thinking."""
    thought = [] if reasoning is None else [*reasoning.encode(), 10, THINK_CLOSE, 10, 10]
    return {
        "turn": 0,
        "output_ids": [*thought, *answer.encode(), IM_END],
        "reasoning": reasoning,
        "answer": answer,
        "calls": None,
        "ended": None,
        "class": "complete",
        "finish_reason": "stop",
        "attempts": 1,
        "retractions": 0,
        "accept_length": None,
        "request": "r",
        **changes,
    }


def row(number: int, *talk: str | Turn, prompts: Prompts = PROMPTS, **changes: Any) -> Turn:
    """A merged row: questions and replies in turn, prompts rendered as the generation does."""
    messages: list[dict[str, Any]] = []
    turns: list[Turn] = []
    for said in talk:
        if isinstance(said, str):
            messages.append({"role": "user", "content": said})
            continue
        turns.append({**said, "turn": len(turns), "prompt_ids": prompts.prompt_ids(messages)})
        message = {"role": "assistant", "content": said["answer"]}
        if said["reasoning"] is not None:
            message["reasoning_content"] = said["reasoning"]
        if said["calls"] is not None:
            message["tool_calls"] = json.loads(said["calls"])
        messages.append(message)
    return {
        "row_id": f"{number:032x}",
        "content_hash": "h",
        "source": "a.jsonl",
        "line": number,
        "id": None,
        "run_hash": RUN["run_hash"],
        "origin": "generated",
        "class": turns[-1]["class"] if turns else "kept",
        "messages": json.dumps(messages),
        "turns": turns,
        "old_response_tokens": 0,
        **changes,
    }


def config(folder: Path, **dataset: Any) -> Config:
    settings = {"validation_fraction": 0.0, "exports": [], **dataset}
    model = folder / "model"
    if not model.exists():
        make_model(model)
    return load(
        {
            "output_dir": str(folder / "out"),
            "input": "a.jsonl",
            "model": {"path": str(model)},
            "engine": {"kind": "attach", "urls": ["http://127.0.0.1:1"]},
            "audit": settings.pop("audit", {}),
            "dataset": settings,
        }
    )


class Built:
    """A dataset made from rows."""

    def __init__(self, folder: Path, rows: list[Turn], prompts: Prompts = PROMPTS, **settings: Any):
        folder.mkdir(parents=True, exist_ok=True)
        merged = folder / "completions.parquet"
        pq.write_table(pa.Table.from_pylist(rows, COMPLETIONS), merged)
        self.folder = folder / "dataset"
        self.folder.mkdir()
        self.config = config(folder, **settings)
        self.stats = build(merged, self.folder, self.config, prompts, RUN)

    def rows(self, side: str = "train") -> pl.DataFrame:
        return pl.concat(pl.read_parquet(p) for p in sorted(self.folder.glob(f"{side}-*")))

    def lines(self, side: str = "train") -> list[int]:
        return self.rows(side)["line"].to_list()

    def dropped(self) -> dict[int, str]:
        found = pl.read_parquet(self.folder / "rejected.parquet")
        return dict(zip(found["line"], found["reason"], strict=True))

"""Inputs of an audit, and the audit of them."""

import json
import random
from pathlib import Path
from typing import Any

import polars as pl

from workflow_scripts.audit.job import audit
from workflow_scripts.config.load import load
from workflow_scripts.config.sections import Config

# As Qwen3's template writes a conversation: the last answer with its reasoning, even an empty one.
QWEN = """\
{%- for m in messages %}
{%- if m.role == 'assistant' and loop.last %}
{{- '<|im_start|>assistant\\n<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}
{{- m.content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}
"""
WORDS = ["river", "apple", "seven", "green", "house", "light", "train", "story", "leaves"]


class Case:
    """An input, its configuration and what the audit says of it."""

    def __init__(self, folder: Path, model: Path):
        self.folder = folder
        self.model = model

    def write(self, name: str, rows: list[Any]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (self.folder / name).write_text(text)

    def config(self, **settings: Any) -> Config:
        return load(
            {
                "output_dir": str(self.folder / "out"),
                "input": str(self.folder / "*.jsonl"),
                "input_format": "jsonl",
                "model": {"path": str(self.model), **settings.pop("model", {})},
                "engine": {"kind": "attach", "urls": ["http://127.0.0.1:1"]},
                "audit": settings,
            }
        )

    def audit(self, processes: int = 1, **settings: Any) -> dict[str, Any]:
        out = self.folder / "out/audit"
        out.mkdir(parents=True, exist_ok=True)
        self.rows_file = out / "rows.parquet"
        found = audit(
            self.config(**settings), out, out / "rejected.jsonl", self.rows_file, processes
        )
        json.dumps(found)
        return found

    def rows(self) -> pl.DataFrame:
        return pl.read_parquet(self.rows_file)

    def where(self, text: str) -> str:
        return f"{self.folder}/{text}"


def chat(question: str, answer: Any, **more: Any) -> dict[str, Any]:
    turn = {"role": "assistant", "content": answer, **more}
    return {"messages": [{"role": "user", "content": question}, turn]}


def good(i: int) -> dict[str, Any]:
    draw = random.Random(i)
    text = " ".join(draw.choice(WORDS) for _ in range(60))
    return chat(f"Question {i}: why?", f"Because {text}.")

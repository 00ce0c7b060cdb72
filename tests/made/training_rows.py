"""Rows of a finished dataset made by hand, with the columns that exports read."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workflow_scripts.tables.columns import TRAIN


def row(row_id: str, ids: list[int], prompt: int, messages: Any, **more: Any) -> dict[str, Any]:
    mask = [0] * prompt + [1] * (len(ids) - prompt)
    fields = {"row_id": row_id, "turn": 0, "class": "complete", "length": len(ids)}
    fields |= {"input_ids": ids, "loss_mask": mask, "messages": json.dumps(messages)}
    return dict.fromkeys(TRAIN.names) | fields | more


def write(folder: Path, **files: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        table = pa.Table.from_pylist(rows, TRAIN)
        pq.write_table(table, folder / f"{name.replace('_', '-')}.parquet", row_group_size=2)
    return folder

"""Merging: what is checked before a shard is read, and where each row lands."""

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workflow_scripts.base.sums import Damaged, fault_beside
from workflow_scripts.merge import merge
from workflow_scripts.tables.columns import GENERATED, SHARD


def generated(row: str, status: str) -> dict[str, Any]:
    return {name: None for name in GENERATED.names} | {
        "row_id": row,
        "run_hash": "abc",
        "status": status,
        "class": "complete" if status == "completed" else None,
        "messages": "[]",
        "turns": [],
        "reason": None if status == "completed" else "timeout",
    }


def shard(path: Path, *rows: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows), GENERATED), path)
    record = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    path.with_suffix(".json").write_text(json.dumps(record))
    return path


def kept(path: Path, *rows: str) -> Path:
    fields = {"messages": "[]", "response_tokens": 7}
    table = [dict.fromkeys(SHARD.names) | fields | {"row_id": row} for row in rows]
    pq.write_table(pa.Table.from_pylist(table, SHARD), path)
    return path


def test_each_row_lands_once_and_in_its_table(tmp_path: Path) -> None:
    shards = [
        shard(
            tmp_path / "shard-0000.parquet", generated("a", "completed"), generated("b", "failed")
        ),
        shard(tmp_path / "shard-0001.parquet", generated("c", "completed")),
    ]
    good, bad = tmp_path / "completions.parquet", tmp_path / "failed.parquet"
    assert merge(shards, kept(tmp_path / "kept.parquet", "d"), "abc", good, bad) == (3, 1)
    rows = pl.read_parquet(good)
    assert rows["row_id"].to_list() == ["a", "c", "d"]
    assert rows["origin"].to_list() == ["generated", "generated", "kept"]
    assert rows["class"].to_list() == ["complete", "complete", "kept"]
    assert rows["run_hash"].to_list() == ["abc"] * 3
    assert rows["old_response_tokens"].to_list() == [None, None, 7]
    failed = pl.read_parquet(bad)
    assert (failed["row_id"].to_list(), failed["reason"].to_list()) == (["b"], ["timeout"])


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ('{"sha256": "0"}', "is not what was written"),
        ("{}", "cannot be checked"),
        ("[]", "cannot be checked"),
        ("", "cannot be checked"),
        (None, "cannot be checked"),
    ],
)
def test_a_shard_that_does_not_fit_is_moved_aside_and_named(
    tmp_path: Path, record: str | None, why: str
) -> None:
    path = shard(tmp_path / "shard-0002.parquet", generated("a", "completed"))
    content, beside = path.read_bytes(), path.with_suffix(".json")
    beside.write_text(record) if record is not None else beside.unlink()
    merged = [tmp_path / "completions.parquet", tmp_path / "failed.parquet"]
    with pytest.raises(Damaged, match=f"shard-0002.parquet {why}"):
        merge([path], kept(tmp_path / "kept.parquet"), "abc", *merged)
    assert not path.exists()
    assert path.with_name("shard-0002.parquet.damaged").read_bytes() == content


def test_a_shard_that_fits_stays(tmp_path: Path) -> None:
    path = shard(tmp_path / "shard-0000.parquet", generated("a", "completed"))
    assert fault_beside(path) is None
    assert path.exists()

"""A run that was finished when all modules lay in one folder goes on under the rooms."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl

from tests.made.paths import DATA
from tests.made.workspace import Workspace, chat

HASH = "c9a68f017766992a"  # as that layout's run.json says


def rows(path: Path) -> list[dict[str, Any]]:
    return pl.read_parquet(path).to_dicts()


def common(new: Any, old: Any) -> Any:
    """What a row says under the names that it had before: columns have been added since."""
    if isinstance(old, dict):
        return {name: common(new[name], value) for name, value in old.items()}
    if isinstance(old, list):
        return [common(one, other) for one, other in zip(new, old, strict=True)]
    return new


def test_a_finished_run_of_the_flat_layout_asks_nothing_again(tmp_path: Path) -> None:
    """Its server is gone: a single request would fail its shard."""
    work = Workspace.create(
        tmp_path / "w", [chat("another row, which the unpacked input replaces")]
    )
    shutil.unpack_archive(DATA / "workflow/run-of-the-flat-layout.tar.xz", work.folder)
    old = {path: rows(path) for path in (work.out / "generate").rglob("*.parquet")}
    old[work.out / "merged/completions.parquet"] = rows(work.out / "merged/completions.parquet")
    done = work.run()
    assert done.code == 0, done.output
    assert work.run_hash() == HASH and len(old) == 4
    for path, before in old.items():
        assert [common(new, one) for new, one in zip(rows(path), before, strict=True)] == before
    assert "12 completed or kept, 0 failed" in done.output
    assert "every row is accounted for" in done.output
    assert work.run().nothing

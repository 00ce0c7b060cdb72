"""A run that was finished when all modules lay in one folder goes on under the rooms."""

import shutil
from pathlib import Path

from tests.made.paths import DATA
from tests.made.workspace import Workspace, chat

HASH = "c9a68f017766992a"  # as that layout's run.json says


def test_a_finished_run_of_the_flat_layout_asks_nothing_again(tmp_path: Path) -> None:
    """Its server is gone: a single request would fail its shard."""
    work = Workspace.create(
        tmp_path / "w", [chat("another row, which the unpacked input replaces")]
    )
    shutil.unpack_archive(DATA / "workflow/run-of-the-flat-layout.tar.xz", work.folder)
    answers = {path: path.read_bytes() for path in (work.out / "generate").rglob("*.parquet")}
    merged = (work.out / "merged/completions.parquet").read_bytes()
    done = work.run()
    assert done.code == 0, done.output
    assert work.run_hash() == HASH and len(answers) == 3
    assert {path: path.read_bytes() for path in work.generated().glob("*.parquet")} == answers
    assert (work.out / "merged/completions.parquet").read_bytes() == merged
    assert "12 completed or kept, 0 failed" in done.output
    assert "every row is accounted for" in done.output
    assert work.run().nothing

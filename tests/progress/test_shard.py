"""The progress line: figures by hand, over the files of two shards."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workflow_scripts.progress.shard import Progress

NOW = 1_800_000_000.0


# what shard 0 says by itself
ALONE = "4/30 rows (13 %), 1 failed | 30 tokens/s | about 1:55 left | shard 0: 4/10"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that passed, in seconds, as both clocks show it."""
    made = SimpleNamespace(passed=100.0)
    made.monotonic = lambda: made.passed
    made.time = lambda: NOW + made.passed
    monkeypatch.setattr("workflow_scripts.progress.shard.time", made)
    return made


def failure(reason: str, message: str = "told") -> dict[str, Any]:
    return {"reason": reason, "message": message, "attempts": 3}


@pytest.fixture
def own(tmp_path: Path, clock: SimpleNamespace) -> Progress:
    """Shard 0 of 2, ten seconds after its first answer: four rows of ten are over, one of them
    failed and one, of 100 tokens, found in the journal. 300 tokens in ten seconds are new."""
    made = Progress(tmp_path, 0, 2, rows=10, all_rows=30)
    made.count(100, None, fresh=False)
    clock.passed += 50  # nothing was asked yet
    made.count(180, None, fresh=True)
    made.count(0, failure("timeout"), fresh=True)
    made.count(120, None, fresh=True)
    clock.passed += 10
    return made


@pytest.fixture
def other(own: Progress, clock: SimpleNamespace) -> Progress:
    """Shard 1 of 2 at the same moment: six rows of twenty, one failed, 800 tokens, 20 a second."""
    made = Progress(own.folder, 1, 2, rows=20, all_rows=30)
    clock.passed -= 10
    for tokens in (0, 0, 0, 0, 200):
        made.count(tokens, None, fresh=True)
    made.count(600, failure("refused"), fresh=False)
    clock.passed += 10
    made.save(running=True)
    return made


def test_what_a_job_counts(own: Progress) -> None:
    assert (own.done, own.failed, own.tokens) == (4, 1, 400)
    assert (own.fresh_rows, own.fresh_tokens, own.rate()) == (3, 300, 30)


def test_nothing_asked_is_no_speed(tmp_path: Path) -> None:
    idle = Progress(tmp_path, 0, 1, rows=2, all_rows=2)
    idle.count(500, None, fresh=False)
    assert idle.rate() == 0
    assert idle.line() == "1/2 rows (50 %), 0 failed | 0 tokens/s | shard 0: 1/2"


def test_the_line_alone(own: Progress) -> None:
    """26 rows left, 400 tokens in three answers: 26 x 400 / 3 / 30 = 115.6 s."""
    assert own.line() == (
        "4/30 rows (13 %), 1 failed | 30 tokens/s | about 1:55 left | shard 0: 4/10"
    )


def test_the_line_adds_up_all_shards(own: Progress, other: Progress) -> None:
    """20 rows left, 1,200 tokens in eight answers: 20 x 1,200 / 8 / 50 = 60 s."""
    rest = "4/10", "6/20"
    for k, job in enumerate((own, other)):
        own.save(running=True)
        assert job.line() == (
            f"10/30 rows (33 %), 2 failed | 50 tokens/s | about 1:00 left | shard {k}: {rest[k]}"
        )


def test_a_job_that_has_ended_adds_rows_and_no_speed(own: Progress, other: Progress) -> None:
    """At 30 tokens a second the same takes 100 s."""
    other.save(running=False)
    assert own.line() == (
        "10/30 rows (33 %), 2 failed | 30 tokens/s | about 1:40 left | shard 0: 4/10"
    )


@pytest.mark.parametrize(("silent_s", "rate"), [(59, 50), (61, 30)])
def test_a_silent_job_adds_no_speed(
    own: Progress, other: Progress, silent_s: float, rate: int
) -> None:
    found = json.loads(other.path.read_bytes())
    other.path.write_text(json.dumps(found | {"time": found["time"] - silent_s}))
    assert own.line().startswith(f"10/30 rows (33 %), 2 failed | {rate} tokens/s | about 1:")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", '{"done": 6, "fai', "\0\0", "{}", "[]", "null", "17", '{"done": "six"}',
        '{"done": 6}', '{"done": 6, "failed": 1, "tokens": 800, "time": "x", "rate": 1}',
        '{"done": 6, "failed": null, "tokens": 800, "time": 1, "rate": 1}',
    ],
)  # fmt: skip
def test_a_torn_or_foreign_file_is_left_out_whole(
    own: Progress, other: Progress, text: str
) -> None:
    other.path.write_text(text)
    assert own.line() == ALONE


def test_files_of_another_shard_count_are_left_out(own: Progress, other: Progress) -> None:
    before = own.line()
    Progress(own.folder, 1, 3, rows=9, all_rows=30, done=9, tokens=900).save(running=True)
    other.path.rename(own.folder / "shard-0001.n2.progress.json.123.part")
    assert before.startswith("10/30") and own.line().startswith("4/30")


def test_when_all_is_done_nothing_is_left(own: Progress, other: Progress) -> None:
    own.all_rows = 10
    assert own.line() == "10/10 rows (100 %), 2 failed | 50 tokens/s | shard 0: 4/10"


# ---- the file -----------------------------------------------------------------------------------


def test_the_file_holds_what_a_watcher_reads(own: Progress) -> None:
    own.save(running=True)
    assert own.path == own.folder / "shard-0000.n2.progress.json"
    assert json.loads(own.path.read_bytes()) == {
        "rows": 10,
        "done": 4,
        "failed": 1,
        "tokens": 400,
        "rate": 30,
        "running": True,
        "time": NOW + 160,
        "failures": {"timeout": 1},
        "recent": [[NOW + 150, "timeout", "told"]],
    }
    own.save(running=False)
    assert json.loads(own.path.read_bytes())["rate"] == 0
    assert [path.name for path in own.folder.iterdir()] == [own.path.name]


def test_recent_failures_are_five_with_a_short_message(own: Progress) -> None:
    for i in range(7):
        own.count(0, failure("refused", str(i) * 1000), fresh=True)
    own.save(running=True)
    found = json.loads(own.path.read_bytes())
    assert found["failures"] == {"timeout": 1, "refused": 7} and found["failed"] == 8
    assert [message for _, _, message in found["recent"]] == [str(i) * 300 for i in range(2, 7)]


def test_a_disk_that_takes_nothing_stops_no_job(own: Progress, tmp_path: Path) -> None:
    own.folder = tmp_path / "gone"
    own.save(running=True)
    assert not own.folder.exists() and own.line().startswith("4/30")


def test_a_folder_that_cannot_be_looked_through_ends_no_job(
    own: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under too many open files: the line tells of this job alone."""

    def failing(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "glob", failing)
    assert own.line().endswith("shard 0: 4/10")

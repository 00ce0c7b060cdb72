"""The journal: nothing that was written is lost, nothing that is torn is believed."""

import errno
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.generate.journal import (
    Journal,
    decode,
    encode,
    journal_path,
    overlapping,
    wait_for,
)
from workflow_scripts.identity import shard_of

ANSWER = {"request": "r1", "output_ids": [1, 2], "class": "complete"}
FAILURE = {"request": "r2", "reason": "timeout", "message": "late"}


def reopened(folder: Path, shard: int = 0, shards: int = 2) -> Journal:
    return Journal(folder, shard, shards)


def test_the_line_format() -> None:
    body = b'{"a":1}'
    assert encode({"a": 1}) == b"%08x %s\n" % (zlib.crc32(body), body)
    assert decode(encode({"a": 1})) == {"a": 1}


def test_answers_come_back(tmp_path: Path) -> None:
    journal = reopened(tmp_path)
    place = journal.append(ANSWER)
    assert journal.read(place) == ANSWER
    journal.close()
    again = reopened(tmp_path)
    assert again.read(again.done["r1"]) == ANSWER and not again.failed


def test_a_failure_is_final_once_sealed(tmp_path: Path) -> None:
    journal = reopened(tmp_path)
    journal.append(FAILURE)
    journal.close()
    journal = reopened(tmp_path)
    assert journal.failed == {} and not journal.sealed
    journal.seal()
    journal.append({**FAILURE, "request": "r3"})
    journal.close()
    journal = reopened(tmp_path)
    assert set(journal.failed) == {"r2"} and journal.sealed


@pytest.mark.parametrize(
    "odd",
    [
        {"accept_length": "lots"},
        {"retractions": 2**40},
        {"retractions": -1},
        {"attempts": 1.5},
        {"class": None},
        {"finish": ["stop"]},
        {"output_ids": None},
    ],
)
def test_an_odd_record_is_asked_again(tmp_path: Path, odd: dict[str, Any]) -> None:
    """What an older version took from a server as it came would end every rerun."""
    journal = reopened(tmp_path)
    journal.append({**ANSWER, **odd})
    journal.append({**ANSWER, "request": "r9", "accept_length": 3, "retractions": 0})
    journal.close()
    again = reopened(tmp_path)
    assert set(again.done) == {"r9"} and again.damaged == 1


@given(cut=st.integers(1, 200), garbage=st.binary(max_size=30))
def test_a_torn_tail_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    journal = reopened(folder)
    records = [{"request": f"r{i}", "output_ids": [i] * i} for i in range(5)]
    ends = [journal.append(r).offset + len(encode(r)) for r in records]
    journal.close()
    size = max(ends[-1] - cut, 0)
    with open(journal.path, "r+b") as f:
        f.truncate(size)
        f.seek(size)
        f.write(garbage.replace(b"\n", b""))
    again = reopened(folder)
    whole = [f"r{i}" for i, end in enumerate(ends) if end <= size]
    assert sorted(again.done) == whole
    again.append({"request": "new", "output_ids": [7]})
    again.close()
    last = reopened(folder)
    assert sorted(last.done) == sorted([*whole, "new"]) and last.damaged == 0


def test_a_damaged_line_is_skipped_and_the_others_are_kept(tmp_path: Path) -> None:
    journal = reopened(tmp_path)
    places = [journal.append({"request": f"r{i}", "output_ids": [i]}) for i in range(3)]
    journal.close()
    content = bytearray(journal.path.read_bytes())
    content[places[1].offset + 20] ^= 4
    journal.path.write_bytes(content)
    again = reopened(tmp_path)
    assert sorted(again.done) == ["r0", "r2"] and again.damaged == 1


def test_a_full_disk_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = reopened(tmp_path)
    journal.append(ANSWER)
    before = journal.path.read_bytes()

    class Full:
        def __init__(self, f: Any):
            self.f = f

        def write(self, data: bytes) -> int:
            self.f.write(data[:5])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.f, name)

    monkeypatch.setattr(journal, "_own", Full(journal._own))
    with pytest.raises(OSError, match="No space left"):
        journal.append({"request": "r9", "output_ids": [9]})
    assert journal.path.read_bytes() == before


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    first = reopened(tmp_path)
    said: list[str] = []
    with pytest.raises(TimeoutError, match="another process"):
        wait_for(tmp_path, 0, 2, 0.3, said.append)
    assert len(said) == 1
    assert first.wanted()
    first.close()
    second = wait_for(tmp_path, 0, 2, 0.3, said.append)
    assert not second.wanted()
    second.close()


@given(st.integers(1, 40), st.integers(1, 40), st.binary(min_size=16, max_size=16))
def test_another_shard_count_finds_the_row_again(
    tmp_path_factory: pytest.TempPathFactory, old: int, new: int, raw: bytes
) -> None:
    row = raw.hex()
    folder = tmp_path_factory.mktemp("overlap")
    then = journal_path(folder, shard_of(row, old), old)
    then.touch()
    assert then in overlapping(folder, shard_of(row, new), new)
    assert shard_of("0" * 32, new) == 0 and shard_of("f" * 32, new) == new - 1


def test_a_journal_that_was_removed_takes_no_more(tmp_path: Path) -> None:
    """Its job would go on for hours, and nothing of that would be there."""
    journal = reopened(tmp_path)
    journal.append(ANSWER)
    journal.sync()
    journal.path.unlink()
    with pytest.raises(FileNotFoundError, match="removed while its job went on"):
        journal.sync()
    with pytest.raises(FileNotFoundError):
        journal.close()
    assert journal._own.closed

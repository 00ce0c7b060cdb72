"""The append-only journal of a shard: what the engine answered, before anything else happens.

One line a record: eight hex digits of CRC-32, a space, JSON, LF. A record is written to the
operating system before its row counts as done, so a killed process loses only requests in flight;
`sync` forces it to the disk. A torn tail is cut off when the journal is opened for writing; a line
whose checksum does not fit is skipped, so its row is asked again.

A failure is final only once its shard was sealed, that is written out: a run that was stopped asks
its failed rows again, and a shard that is rebuilt from its journal does not.

One process at a time writes a journal. A job can outlive the Snakemake that started it, most of all
on a cluster; the job of the next Snakemake says that it waits for the journal, and the older one,
which nobody waits for any more, ends and leaves it the rest (`wait_for`, `Journal.wanted`).

Journals are named shard-<k>.n<n>.jsonl for shard k of n. With another n, the journals that can hold
a shard's rows are those whose range of row ids overlaps its own.
"""

import fcntl
import os
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from workflow_scripts.base.files import naming

# After the older job ended, its own Snakemake removes the outputs that it did not write.
CLEARED_S = 5.0
NAME = re.compile(r"shard-(\d{4})\.n(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class Span:
    """Where a record lies: file number, offset and length in bytes."""

    file: int
    offset: int
    length: int


def journal_path(folder: Path, shard: int, shards: int) -> Path:
    return folder / f"shard-{shard:04d}.n{shards}.jsonl"


def overlapping(folder: Path, shard: int, shards: int) -> list[Path]:
    """The journals in a folder that can hold rows of shard `shard` of `shards`, its own last."""
    own = journal_path(folder, shard, shards)
    found = []
    for path in sorted(folder.glob("shard-*.jsonl")) if folder.is_dir() else []:
        match = NAME.fullmatch(path.name)
        if match and path != own:
            k, n = int(match[1]), int(match[2])
            if k * shards < (shard + 1) * n and shard * n < (k + 1) * shards:
                found.append(path)
    return [*found, own]


def wanted_path(journal: Path) -> Path:
    return journal.with_suffix(".wanted")


def encode(record: dict[str, Any]) -> bytes:
    body = orjson.dumps(record)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> dict[str, Any] | None:
    """The record of a line, or None where the line is damaged."""
    if len(line) < 11 or line[8:9] != b" " or line[-1:] != b"\n":
        return None
    body = line[9:-1]
    try:
        if int(line[:8], 16) != zlib.crc32(body):
            return None
        record = orjson.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def sound(record: dict[str, Any]) -> bool:
    """Whether an answer's record holds what a shard's table can hold. An older version wrote down
    whatever a server said; such a record would end every rerun, so its row is asked again."""
    counts = (record.get("retractions", 0), record.get("attempts", 1))
    length = record.get("accept_length")
    return (
        isinstance(record["output_ids"], list)
        and all(type(n) is int and 0 <= n < 2**31 for n in counts)
        and (length is None or type(length) in (int, float))
        and all(isinstance(record.get(name, ""), str) for name in ("class", "finish"))
    )


class Journal:
    """The journals of a shard: others to read, its own to read and append.

    `done` maps the hash of an answered request to the place of its answer; `failed` that of a
    request whose failure is final. `damaged` counts lines that were skipped.

    Raises:
        BlockingIOError: another process writes this journal (see `wait_for`).
    """

    def __init__(self, folder: Path, shard: int, shards: int):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = journal_path(folder, shard, shards)
        self.done: dict[str, Span] = {}
        self.failed: dict[str, Span] = {}
        self.damaged = 0
        self.sealed = False
        self._unsynced = False
        self._own: BinaryIO = open(self.path, "a+b", buffering=0)  # noqa: SIM115
        try:
            fcntl.flock(self._own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._own.close()
            raise
        wanted_path(self.path).unlink(missing_ok=True)
        self._files: list[BinaryIO] = []
        for path in overlapping(folder, shard, shards):
            own = path == self.path
            self._files.append(self._own if own else path.open("rb"))
            self._read(len(self._files) - 1, own)

    def _read(self, number: int, own: bool) -> None:
        with open(self._files[number].name, "rb") as f:
            offset = 0
            pending: dict[str, Span] = {}
            for line in f:
                record = decode(line)
                if record is None and not line.endswith(b"\n"):
                    break  # the torn tail
                if record is None or ("output_ids" in record and not sound(record)):
                    self.damaged += 1
                elif record.get("sealed"):
                    self.failed.update(pending)
                    pending = {}
                    self.sealed = self.sealed or own
                else:
                    place = Span(number, offset, len(line))
                    if "output_ids" in record:
                        self.done[record["request"]] = place
                    else:
                        pending[record["request"]] = place
                offset += len(line)
        if own:
            self._end = offset
            if os.fstat(self._own.fileno()).st_size > offset:
                self._own.truncate(offset)

    def append(self, record: dict[str, Any]) -> Span:
        """Write a record; on a full disk the journal is left as it was before.

        Raises:
            OSError: the record could not be written.
        """
        line = encode(record)
        written = 0
        try:
            with naming(self.path):
                while written < len(line):
                    written += self._own.write(line[written:]) or 0
        except OSError:
            self._own.truncate(self._end)
            raise
        place = Span(len(self._files) - 1, self._end, len(line))
        self._end += len(line)
        self._unsynced = True
        if "output_ids" in record:
            self.done[record["request"]] = place
            self.failed.pop(record["request"], None)
        elif "request" in record:
            self.failed[record["request"]] = place
        return place

    def wanted(self) -> bool:
        """Whether another job waits for this journal (over NFS it may take a minute to show)."""
        return wanted_path(self.path).exists()

    def read(self, place: Span) -> dict[str, Any]:
        line = os.pread(self._files[place.file].fileno(), place.length, place.offset)
        record = decode(line)
        if record is None:
            raise OSError(f"{self._files[place.file].name}: damaged at byte {place.offset}")
        return record

    def sync(self) -> None:
        """Force what was written to the disk. Safe in another thread.

        Raises:
            OSError: it cannot be, or the journal was removed: what goes on into it would be lost.
        """
        if not os.fstat(self._own.fileno()).st_nlink:
            raise FileNotFoundError(f"{self.path} was removed while its job went on; run again")
        if self._unsynced:
            self._unsynced = False
            os.fdatasync(self._own.fileno())

    def seal(self) -> None:
        """The shard is written out: failures so far are final."""
        self.append({"sealed": True})
        self.sync()

    def close(self) -> None:
        try:
            self.sync()
        finally:
            for f in self._files:
                f.close()


def wait_for(
    folder: Path, shard: int, shards: int, wait_s: float, say: Callable[[str], None]
) -> Journal:
    """Open a shard's journal; while another process writes it, ask for it and wait.

    Raises:
        TimeoutError: the other process still writes after `wait_s` seconds.
    """
    until = time.monotonic() + wait_s
    told = False
    while True:
        try:
            journal = Journal(folder, shard, shards)
            if told:
                time.sleep(CLEARED_S)
            return journal
        except BlockingIOError:
            wanted_path(journal_path(folder, shard, shards)).touch()
            if time.monotonic() > until:
                path = journal_path(folder, shard, shards)
                raise TimeoutError(
                    f"{path}: still written by another process after {wait_s:.0f} s; "
                    "end that process (fuser names it), then run again"
                ) from None
            if not told:
                say("another job still works on this shard; it is told to end")
                told = True
            time.sleep(0.2)

"""What an input file is, and how it is cut into parts that can be read independently.

The first bytes decide, never the name. Plain JSON Lines are cut at line ends, Parquet between row
groups, Arrow between record batches; anything else is one part. Numbers of lines and rows do not
depend on how a file was cut.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import orjson
import pyarrow.parquet as pq

from workflow_scripts.input.arrow import ARROW_FILE, FAULTS, arrow_batches
from workflow_scripts.input.streams import HEAD, compression_of, head_of, open_stream

BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
ARROW_STREAM = b"\xff\xff\xff\xff"
PART = 16 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an input file.

    `start` and `end` are bytes of JSON Lines, row groups of Parquet and record batches of Arrow; an
    `end` of 0 is the end of the file. `first` is the number of the first line or row in it, from
    1; `number` is the part's own, from 0.
    """

    path: str
    format: str
    start: int
    end: int
    first: int
    number: int


# ---- formats ------------------------------------------------------------------------------------


def format_of(path: str, input_format: str = "auto") -> str:
    """The file's format, with .gz or .zst where it is compressed.

    Args:
        input_format: `auto`, or the format that the configuration forces.
    """
    kind = _kind(head_of(path)) if input_format == "auto" else input_format
    return kind + compression_of(path)


def _kind(head: bytes) -> str:
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((ARROW_FILE, ARROW_STREAM)):
        return "arrow"
    if head.startswith(UTF_16):
        return "utf-16"
    text = head.removeprefix(BOM).lstrip()
    return "json" if text.startswith(b"[") and _is_one_array(text, len(head) < HEAD) else "jsonl"


def _is_one_array(text: bytes, whole: bool) -> bool:
    """Whether text that starts with [ is one array of objects; lines of JSON Lines can be arrays
    as well, though unusable ones."""
    line, newline, rest = text.partition(b"\n")
    if not newline and not whole:
        return True
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return True
    return not rest.strip() and (not value or any(isinstance(item, dict) for item in value))


def parts(path: str, input_format: str = "auto", size: int = PART) -> list[Part]:
    """The parts of a file, of about `size` bytes each; none of an empty file."""
    if os.path.getsize(path) == 0:
        return []
    form = format_of(path, input_format)
    if form == "jsonl":
        return _jsonl_parts(path, size)
    if form == "parquet":
        return _parquet_parts(path, size)
    if form == "arrow":
        return _arrow_parts(path, size)
    return [Part(path, form, 0, 0, 1, 0)]


def _jsonl_parts(path: str, size: int) -> list[Part]:
    found: list[Part] = []
    start, first = 0, 1
    with open(path, "rb") as f:
        while block := f.read(size):
            rest = b"" if block.endswith(b"\n") else f.readline()
            end = start + len(block) + len(rest)
            found.append(Part(path, "jsonl", start, end, first, len(found)))
            start, first = end, first + block.count(b"\n") + rest.endswith(b"\n")
    return found


def _parquet_parts(path: str, size: int) -> list[Part]:
    try:
        metadata = pq.read_metadata(path)
    except FAULTS:
        return [Part(path, "parquet", 0, 0, 1, 0)]
    found: list[Part] = []
    start = held = rows = 0
    first = 1
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        held, rows = held + group.total_byte_size, rows + group.num_rows
        if held >= size or index == metadata.num_row_groups - 1:
            found.append(Part(path, "parquet", start, index + 1, first, len(found)))
            start, first = index + 1, first + rows
            held = rows = 0
    return found


def _arrow_parts(path: str, size: int) -> list[Part]:
    found: list[Part] = []
    start = held = rows = 0
    first = 1
    with suppress(*FAULTS):  # the last part reports it
        for index, batch in enumerate(arrow_batches(path)):
            held, rows = held + batch.get_total_buffer_size(), rows + batch.num_rows
            if held >= size:
                found.append(Part(path, "arrow", start, index + 1, first, len(found)))
                start, first = index + 1, first + rows
                held = rows = 0
    return [*found, Part(path, "arrow", start, 0, first, len(found))]


# ---- reading ------------------------------------------------------------------------------------


def raw_lines(part: Part) -> Iterator[bytes]:
    """The lines of a part of JSON Lines, with their ends.

    Raises:
        EOFError, OSError and others in DAMAGE: the compressed file is damaged.
    """
    with open_stream(part.path) as f:
        if part.start:
            f.seek(part.start)
        at = part.start
        for raw in f:
            if part.end and at >= part.end:
                return
            at += len(raw)
            yield raw

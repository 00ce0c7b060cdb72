"""What an input file is, and how it is cut into parts that can be read independently.

The first bytes decide, never the name. Plain JSON Lines are cut at line ends, Parquet between row
groups, Arrow between record batches; anything else is one part. Numbers of lines and rows do not
depend on how a file was cut.
"""

import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
ARROW_FILE = b"ARROW1"
ARROW_STREAM = b"\xff\xff\xff\xff"
COMPRESSIONS = {b"\x1f\x8b\x08": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
HEAD = 65536  # bytes that decide about the format
BLOCK = 65536
ROWS = 512  # rows of Parquet and Arrow that are Python objects at a time
PART = 16 << 20
LONGEST = 256 << 20  # bytes of an array's element
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{},"]', re.DOTALL)

DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)
FAULTS = (*DAMAGE, pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError)


class Bad(Exception):
    """A line or row that cannot be used: a reason class and a message."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason
        self.message = message


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


# ---- streams ------------------------------------------------------------------------------------


class _Zstandard(io.RawIOBase):
    """A Zstandard file as a stream that notices when a frame is cut off."""

    def __init__(self, path: str):
        self._file = open(path, "rb")  # noqa: SIM115
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._left = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = self._left or self._file.read(BLOCK)
            if not block:
                if self._frame is not None:
                    raise EOFError("the file ends inside a Zstandard frame")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            self._ready = memoryview(self._frame.decompress(block))
            self._left = b""
            if self._frame.eof:
                self._left, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _compression(path: str) -> str:
    with open(path, "rb") as f:
        magic = f.read(4)
    return next((name for start, name in COMPRESSIONS.items() if magic.startswith(start)), "")


def open_stream(path: str) -> BinaryIO:
    """The file's content, decompressed."""
    compression = _compression(path)
    if compression == ".gz":
        return cast(BinaryIO, gzip.open(path))
    if compression == ".zst":
        return io.BufferedReader(_Zstandard(path), BLOCK)
    return open(path, "rb")


def _head(path: str) -> bytes:
    head = b""
    with open_stream(path) as f, suppress(*DAMAGE):
        while len(head) < HEAD and (block := cast(io.BufferedReader, f).read1(HEAD)):
            head += block
    return head


# ---- formats ------------------------------------------------------------------------------------


def format_of(path: str, input_format: str = "auto") -> str:
    """The file's format, with .gz or .zst where it is compressed.

    Args:
        input_format: `auto`, or the format that the configuration forces.
    """
    kind = _kind(_head(path)) if input_format == "auto" else input_format
    return kind + _compression(path)


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
        for index, batch in enumerate(_arrow_batches(path)):
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


def rows(part: Part) -> Iterator[tuple[int, Any]]:
    """The elements of an array as bytes, or the rows of a table as objects, with their numbers; a
    `Bad` for each that is none."""
    kind, _, compression = part.format.partition(".")
    if kind == "json":
        return _elements(part)
    if kind == "arrow":
        return _arrow_rows(part)
    if kind == "parquet" and not compression:
        return _parquet_rows(part)
    if kind == "parquet":
        return iter([(1, Bad("damaged_file", f"Parquet inside {compression}: decompress it"))])
    return iter([(1, Bad("invalid_encoding", "the file is UTF-16: convert it to UTF-8"))])


def _damaged(error: BaseException, what: str = "the file") -> Bad:
    return Bad("damaged_file", f"{what} is damaged from here on: {_message(error)}")


def _message(error: BaseException) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__


def _elements(part: Part) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON array as bytes, found by brackets and strings alone, so that one that
    cannot be parsed costs only itself. Where the array itself breaks, a `Bad` is the last one."""
    data, opened = b"", False
    number = depth = at = 0  # `data` starts with an element and is scanned up to `at`
    with open_stream(part.path) as f:
        read = cast(io.BufferedReader, f).read1
        while True:
            try:
                block = read(max(BLOCK, len(data)))
            except DAMAGE as error:
                yield number + 1, _damaged(error)
                return
            data += block
            if not opened:
                data = data.removeprefix(BOM).lstrip()
                if not data and block:
                    continue
                if not data.startswith(b"["):
                    if data:
                        yield 1, Bad("invalid_json", "the file is no JSON array")
                    return
                data, opened = data[1:], True
            start = 0
            for match in TOKEN.finditer(data, at):
                at = match.start()
                token = data[at : at + 1]
                if token == b'"':
                    if match.end() == at + 1:  # its end is not read yet
                        break
                elif token in b"[{":
                    depth += 1
                elif token in b"]}" and depth:
                    depth -= 1
                elif token == b"}":
                    yield number + 1, Bad("invalid_json", "a } that closes nothing")
                    return
                elif not depth:
                    element = data[start:at].strip()
                    if element or number or token == b",":
                        number += 1
                        yield number, element
                    if token == b"]":
                        if fault := _after(data[at + 1 :], read):
                            yield number + 1, fault
                        return
                    start = at + 1
            else:
                at = len(data)
            if not block or len(data) - start > LONGEST:
                what = "goes on for too long" if block else "has no end"
                yield number + 1, Bad("invalid_json", f"the array or this element {what}")
                return
            data, at = data[start:], at - start


def _after(rest: bytes, read: Callable[[int], bytes]) -> Bad | None:
    """What is wrong with the text after an array: that there is any, or damage."""
    try:
        while not rest.strip():
            if not (rest := read(BLOCK)):
                return None
    except DAMAGE as error:
        return _damaged(error)
    return Bad("invalid_json", "text after the end of the array")


def _parquet_rows(part: Part) -> Iterator[tuple[int, Any]]:
    number = part.first
    try:
        file = pq.ParquetFile(part.path, pre_buffer=False, buffer_size=1 << 20)
    except FAULTS as error:
        yield number, _damaged(error)
        return
    with file:
        for group in range(part.start, part.end):
            after = number + file.metadata.row_group(group).num_rows
            try:
                for batch in file.iter_batches(ROWS, row_groups=[group]):
                    for value in _values(batch):
                        yield number, value
                        number += 1
                if number < after:
                    raise EOFError(f"row group {group} ends early")
            except FAULTS as error:
                yield number, _damaged(error, f"row group {group}")
            number = after


def _arrow_batches(path: str) -> Iterator[Any]:
    """The record batches of a stream, or of a file, which is a stream between two magics: so a file
    that was cut off can be read as far as it goes."""
    in_file = _head(path).startswith(ARROW_FILE)
    compressed = _compression(path)
    source: Any = open_stream(path) if compressed else pa.memory_map(path)
    with source as f:
        if in_file:
            f.read(8)
        with pa.ipc.open_stream(f) as reader:
            yield from reader
        if in_file and not compressed:
            f.seek(f.size() - len(ARROW_FILE))
            if f.read() != ARROW_FILE:
                raise EOFError("the Arrow file has no footer, it is cut off")


def _arrow_rows(part: Part) -> Iterator[tuple[int, Any]]:
    number = part.first
    try:
        for batch in islice(_arrow_batches(part.path), part.start, part.end or None):
            for value in _values(batch):
                yield number, value
                number += 1
    except FAULTS as error:
        yield number, _damaged(error)


def _values(batch: Any) -> Iterator[Any]:
    """The rows of a record batch as Python objects; a `Bad` for each that is damaged."""
    for start in range(0, batch.num_rows, ROWS):
        piece = batch.slice(start, ROWS)
        try:
            yield from _checked(piece)
        except FAULTS:
            for index in range(piece.num_rows):
                try:
                    yield from _checked(piece.slice(index, 1))
                except FAULTS as error:
                    yield Bad("unreadable_value", _message(error))


def _checked(piece: Any) -> list[Any]:
    piece.validate(full=True)
    return cast(list[Any], piece.to_pylist())

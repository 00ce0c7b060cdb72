"""Rows of JSON arrays, Parquet and Arrow; what is damaged costs only itself."""

import io
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, cast

import pyarrow.parquet as pq

from workflow_scripts.input.arrow import FAULTS, arrow_batches
from workflow_scripts.input.parts import BOM, Part
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.streams import BLOCK, DAMAGE, open_stream

ROWS = 512  # rows of Parquet and Arrow that are Python objects at a time
LONGEST = 256 << 20  # bytes of an array's element
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{},"]', re.DOTALL)


def rows(part: Part) -> Iterator[tuple[int, Any]]:
    """The elements of an array as bytes, or the rows of a table as objects, with their numbers; a
    `Reject` for each that is none."""
    kind, _, compression = part.format.partition(".")
    if kind == "json":
        return _elements(part)
    if kind == "arrow":
        return _arrow_rows(part)
    if kind == "parquet" and not compression:
        return _parquet_rows(part)
    if kind == "parquet":
        return iter([(1, Reject("damaged_file", f"Parquet inside {compression}: decompress it"))])
    return iter([(1, Reject("invalid_encoding", "the file is UTF-16: convert it to UTF-8"))])


def _damaged(error: BaseException, what: str = "the file") -> Reject:
    return Reject("damaged_file", f"{what} is damaged from here on: {_message(error)}")


def _message(error: BaseException) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__


def _elements(part: Part) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON array as bytes, found by brackets and strings alone, so that one that
    cannot be parsed costs only itself. Where the array itself breaks, a `Reject` ends it."""
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
                        yield 1, Reject("invalid_json", "the file is no JSON array")
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
                    yield number + 1, Reject("invalid_json", "a } that closes nothing")
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
                yield number + 1, Reject("invalid_json", f"the array or this element {what}")
                return
            data, at = data[start:], at - start


def _after(rest: bytes, read: Callable[[int], bytes]) -> Reject | None:
    """What is wrong with the text after an array: that there is any, or damage."""
    try:
        while not rest.strip():
            if not (rest := read(BLOCK)):
                return None
    except DAMAGE as error:
        return _damaged(error)
    return Reject("invalid_json", "text after the end of the array")


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


def _arrow_rows(part: Part) -> Iterator[tuple[int, Any]]:
    number = part.first
    try:
        for batch in islice(arrow_batches(part.path), part.start, part.end or None):
            for value in _values(batch):
                yield number, value
                number += 1
    except FAULTS as error:
        yield number, _damaged(error)


def _values(batch: Any) -> Iterator[Any]:
    """The rows of a record batch as Python objects; a `Reject` for each that is damaged."""
    for start in range(0, batch.num_rows, ROWS):
        piece = batch.slice(start, ROWS)
        try:
            yield from _checked(piece)
        except FAULTS:
            for index in range(piece.num_rows):
                try:
                    yield from _checked(piece.slice(index, 1))
                except FAULTS as error:
                    yield Reject("unreadable_value", _message(error))


def _checked(piece: Any) -> list[Any]:
    piece.validate(full=True)
    return cast(list[Any], piece.to_pylist())

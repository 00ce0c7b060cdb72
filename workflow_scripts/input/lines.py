"""Input files, line by line or row by row, with every one of them accounted for."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from workflow_scripts.identity import canonical_content, row_id
from workflow_scripts.input.parts import BOM, Part, parts, raw_lines
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.rows import rows
from workflow_scripts.input.streams import DAMAGE


@dataclass(slots=True)  # not frozen: a tenth of the audit's reading would go into setting fields
class Line:
    """One line that is not blank, one element of an array or one row of a table.

    `record` is the parsed JSON object; where there is none, it is None and `reject` holds a reason
    class and a message.
    """

    source: str
    line: int
    content: bytes
    record: dict[str, Any] | None
    reject: tuple[str, str] | None = None

    @property
    def row_id(self) -> str:
        return row_id(self.source, self.line, self.content)


@dataclass(slots=True)
class Counts:
    """`bytes` are those of the text; of Parquet and Arrow, those of the rows as JSON."""

    lines: int = 0
    blank: int = 0
    bytes: int = 0


def read_lines(
    path: str, counts: Counts | None = None, input_format: str = "auto"
) -> Iterator[Line]:
    """The lines or rows of one file, blank lines counted and left out.

    Only LF ends a line (U+2028 and U+0085 are text); a CR before it and a byte order mark at the
    start are not content. Numbers count from 1 and include blank lines.
    """
    counts = counts if counts is not None else Counts()
    for part in parts(path, input_format):
        yield from read_part(part, counts)


def read_part(part: Part, counts: Counts) -> Iterator[Line]:
    """The lines or rows of a part, as `read_lines` gives them."""
    if part.format.startswith("jsonl"):
        yield from _text_lines(part, counts)
        return
    for number, value in rows(part):
        line = _row(part.path, number, value)
        counts.lines += 1
        counts.bytes += len(line.content)
        yield line


def _text_lines(part: Part, counts: Counts) -> Iterator[Line]:
    number = part.first - 1
    try:
        for number, raw in enumerate(raw_lines(part), part.first):
            counts.lines += 1
            counts.bytes += len(raw)
            text = raw.removeprefix(BOM) if number == 1 else raw
            text = text.rstrip(b"\r\n")
            if not text.strip():
                counts.blank += 1
                continue
            yield parse_line(part.path, number, text)
    except DAMAGE as error:
        counts.lines += 1
        message = f"the file is damaged from here on: {error}"
        yield Line(part.path, number + 1, b"", None, ("damaged_file", message))


def parse_line(source: str, number: int, text: bytes) -> Line:
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as fault:
            message = f"not UTF-8 at byte {fault.start}"
            return Line(source, number, text, None, ("invalid_encoding", message))
        return Line(source, number, text, None, ("invalid_json", _fault(text, str(error))))
    if not isinstance(record, dict):
        message = f"a JSON {type(record).__name__}, not an object"
        return Line(source, number, text, None, ("not_an_object", message))
    try:
        content = canonical_content(record)
        # what orjson drops or rounds without a word: a key that is there twice leaves quotes
        # behind, a large integer becomes a float
        rounded = b"+" in content and b"e+" in content
        if rounded or content.count(b'"') != text.count(b'"') or b"\\u0022" in text:
            json.loads(text.decode(), object_pairs_hook=_pairs, parse_int=_integer)
    except TypeError:
        return Line(source, number, text, None, ("invalid_json", "nested too deeply"))
    except Reject as bad:
        return Line(source, number, text, None, (bad.reason, bad.message))
    return Line(source, number, content, record)


def _fault(text: bytes, message: str) -> str:
    """What is wrong with a line that is no JSON; other parsers write and read NaN."""
    try:
        json.loads(text, parse_constant=_constant)
    except Reject as bad:
        return bad.message
    except (ValueError, RecursionError):
        pass
    return message


def _constant(name: str) -> Any:
    raise Reject("invalid_json", f"{name} is not JSON; write null for NaN and Infinity")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise Reject("duplicate_key", f"the key {double!r} occurs twice in an object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise Reject("large_integer", f"the integer {digits[:24]} does not fit into 64 bits")
    return int(digits)


def _row(source: str, number: int, value: Any) -> Line:
    """A line of an array's element or a table's row; a table's NaN and infinity become null."""
    if isinstance(value, Reject):
        return Line(source, number, b"", None, (value.reason, value.message))
    if isinstance(value, bytes):
        return parse_line(source, number, value)
    try:
        content = orjson.dumps(value, default=_json_default, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        return Line(source, number, b"", None, ("unreadable_value", str(error)))
    # the content's keys are sorted, but a template writes a schema's as they stand
    record = orjson.loads(orjson.dumps(value, default=_json_default))
    return Line(source, number, content, record)


def _json_default(value: Any) -> str:
    """Bytes are text where they are UTF-8, else hex digits; decimals and durations are text."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value.hex()
    return str(value)

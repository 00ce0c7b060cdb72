"""Input files, line by line, with every line accounted for."""

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts.config import ConfigError
from workflow_scripts.identity import canonical_content, row_id

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank.

    `record` is the parsed JSON object; where the line is none, it is None and `reject` holds a
    reason class and a message.
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
    lines: int = 0
    blank: int = 0
    bytes: int = 0


def input_files(patterns: list[str]) -> list[str]:
    """The files that paths and globs name, sorted, each once.

    Raises:
        ConfigError: a pattern matches nothing.
    """
    found: set[str] = set()
    for pattern in patterns:
        matches = [m for m in glob.glob(pattern, recursive=True) if Path(m).is_file()]
        if not matches:
            raise ConfigError(f"input: {pattern} matches no file")
        found.update(Path(m).as_posix() for m in matches)
    return sorted(found)


def read_lines(path: str, counts: Counts | None = None) -> Iterator[Line]:
    """The lines of one JSON Lines file, blank ones counted and left out.

    Only LF ends a line (U+2028 and U+0085 are text); a CR before it and a byte order mark at the
    start are not content. Line numbers count from 1 and include blank lines.
    """
    counts = counts if counts is not None else Counts()
    with open(path, "rb") as f:
        for number, raw in enumerate(f, 1):
            counts.lines += 1
            counts.bytes += len(raw)
            text = raw.removeprefix(BOM) if number == 1 else raw
            text = text.rstrip(b"\r\n")
            if not text.strip():
                counts.blank += 1
                continue
            yield parse_line(path, number, text)


def parse_line(source: str, number: int, text: bytes) -> Line:
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as fault:
            message = f"not UTF-8 at byte {fault.start}"
            return Line(source, number, text, None, ("invalid_encoding", message))
        return Line(source, number, text, None, ("invalid_json", str(error)))
    if not isinstance(record, dict):
        message = f"a JSON {type(record).__name__}, not an object"
        return Line(source, number, text, None, ("not_an_object", message))
    return Line(source, number, canonical_content(record), record)

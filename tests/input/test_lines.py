"""Input lines: every one of them is accounted for, whatever is in it."""

import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.made.input_files import write
from tests.made.strategies import JSON
from workflow_scripts.input.lines import Counts, read_lines
from workflow_scripts.input.streams import COMPRESSIONS


def test_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b'\xef\xbb\xbf{"id": "a"}\n{"id": "b"}\n')
    assert [line.record for line in read_lines(path)] == [{"id": "a"}, {"id": "b"}]


def test_crlf_blank_and_torn_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b'{"id": "a"}\r\n\r\n{"id": "b"}\r\n{"id":"c","messages":[{"ro')
    counts = Counts()
    lines = list(read_lines(path, counts))
    assert [(line.line, line.record) for line in lines[:2]] == [(1, {"id": "a"}), (3, {"id": "b"})]
    assert lines[2].line == 4 and lines[2].reject is not None
    assert lines[2].reject[0] == "invalid_json"
    assert (counts.lines, counts.blank) == (4, 1)


def test_only_lf_ends_a_line(tmp_path: Path) -> None:
    text = '{"a": "x\u2028y\u0085z"}\n'
    lines = list(read_lines(write(tmp_path / "x", text.encode())))
    assert [line.record for line in lines] == [{"a": "x\u2028y\u0085z"}]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"[1, 2]\n", "not_an_object"),
        (b'"text"\n', "not_an_object"),
        (b'{"a": "\xff"}\n', "invalid_encoding"),
        (b'{"a": NaN}\n', "invalid_json"),
        (b'{"a": "\\ud800"}\n', "invalid_json"),
        (b"\x00\x00\n", "invalid_json"),
    ],
)
def test_unusable_lines(tmp_path: Path, raw: bytes, expected: str) -> None:
    (line,) = read_lines(write(tmp_path / "x", raw))
    assert line.reject is not None and line.reject[0] == expected


@given(st.lists(st.binary(max_size=40) | JSON.map(lambda v: json.dumps(v).encode()), max_size=8))
def test_any_bytes_are_lines(tmp_path_factory: pytest.TempPathFactory, rows: list[bytes]) -> None:
    raw = b"\n".join(rows)
    assume(not raw.startswith(tuple(COMPRESSIONS)))  # such a file is a damaged archive, one reject
    path = write(tmp_path_factory.mktemp("any") / "x", raw)
    counts = Counts()
    lines = list(read_lines(path, counts, "jsonl"))
    assert counts.lines == len(raw.split(b"\n")) - (raw.endswith(b"\n") or not raw)
    assert len(lines) + counts.blank == counts.lines
    assert all((line.record is None) != (line.reject is None) for line in lines)

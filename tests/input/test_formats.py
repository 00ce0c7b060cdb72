"""Input files of every format: what is in them is read, what cannot be read is named, and a row
keeps its id however its file was cut."""

import base64
import datetime
import gzip
import io
import json
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.made.input_files import write
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.input.files import input_files
from workflow_scripts.input.lines import Counts, Line, parse_line, read_lines, read_part
from workflow_scripts.input.parts import Part, format_of, parts

RECORDS = [{"id": n, "text": f"row {n}"} for n in range(1, 8)]


def jsonl(records: list[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def zst(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(raw)


def parquet(records: list[Any], group: int = 3) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), out, row_group_size=group)
    return out.getvalue()


def arrow(records: list[Any], batch: int = 3, stream: bool = True) -> bytes:
    out = io.BytesIO()
    table = pa.Table.from_pylist(records)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return out.getvalue()


def arrow_file(records: list[Any]) -> bytes:
    return arrow(records, stream=False)


def array(records: list[Any]) -> bytes:
    return json.dumps(records, indent=1).encode()


def rejects(lines: list[Line]) -> list[tuple[int, str]]:
    return [(line.line, line.reject[0]) for line in lines if line.reject]


MAKERS: list[tuple[str, Callable[[list[Any]], bytes]]] = [
    ("jsonl", jsonl),
    ("jsonl.gz", lambda records: gzip.compress(jsonl(records))),
    ("jsonl.zst", lambda records: zst(jsonl(records))),
    ("json", array),
    ("json.gz", lambda records: gzip.compress(array(records))),
    ("json.zst", lambda records: zst(array(records))),
    ("parquet", parquet),
    ("arrow", arrow),
    ("arrow", arrow_file),
    ("arrow.gz", lambda records: gzip.compress(arrow(records))),
    ("arrow.zst", lambda records: zst(arrow_file(records))),
]


@pytest.mark.parametrize(("form", "make"), MAKERS)
def test_every_format_by_its_content(
    tmp_path: Path, form: str, make: Callable[[list[Any]], bytes]
) -> None:
    path = write(tmp_path / "data.txt", make(RECORDS))  # the name says nothing
    assert format_of(path) == form
    counts = Counts()
    lines = list(read_lines(path, counts))
    assert [(line.line, line.record) for line in lines] == list(enumerate(RECORDS, 1))
    assert lines[0].content == b'{"id":1,"text":"row 1"}'
    assert lines[0].row_id == parse_line(path, 1, b'{"text": "row 1", "id": 1}').row_id
    assert (counts.lines, counts.blank) == (7, 0)


@pytest.mark.parametrize("form", ["auto", "jsonl", "json", "parquet", "arrow"])
def test_an_empty_file_has_no_lines(tmp_path: Path, form: str) -> None:
    assert list(read_lines(write(tmp_path / "x", b""), input_format=form)) == []


def test_an_array_with_nothing_in_it_and_blank_files(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path / "a", b"[]"))) == []
    assert list(read_lines(write(tmp_path / "b", b" \n "), input_format="json")) == []
    assert list(read_lines(write(tmp_path / "c", gzip.compress(b"")))) == []


def test_a_first_byte_of_a_bracket_can_be_json_lines(tmp_path: Path) -> None:
    raw = b'[{"role": "user"}]\n[{"role": "user"}]\n{"id": 3}\n'
    lines = list(read_lines(write(tmp_path / "x.json", raw)))
    assert rejects(lines) == [(1, "not_an_object"), (2, "not_an_object")]
    assert lines[2].record == {"id": 3}
    one = write(tmp_path / "y", b'\xef\xbb\xbf [{"id": 1}, 5, {"id": 2}]')
    assert format_of(one) == "json"
    assert rejects(list(read_lines(one))) == [(2, "not_an_object")]


def test_a_forced_format_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b'{"item": {"id": 1}}\n')
    assert format_of(path, "json") == "json"
    (line,) = read_lines(path, input_format="json")
    assert line.reject == ("invalid_json", "the file is no JSON array")
    (line,) = read_lines(path, input_format="parquet")
    assert line.reject and line.reject[0] == "damaged_file"
    packed = write(tmp_path / "y", gzip.compress(b'[{"id": 1}]'))
    assert format_of(packed, "jsonl") == "jsonl.gz"
    assert rejects(list(read_lines(packed, input_format="jsonl"))) == [(1, "not_an_object")]


def test_utf_16_is_named_once(tmp_path: Path) -> None:
    path = write(tmp_path / "x", '{"id": 1}\n{"id": 2}\n'.encode("utf-16"))
    (line,) = read_lines(path)
    assert line.reject == ("invalid_encoding", "the file is UTF-16: convert it to UTF-8")


# ---- elements of an array ----


def test_an_element_that_is_no_json_costs_only_itself(tmp_path: Path) -> None:
    raw = b'[{"id": 1}, {"id": NaN}, {"id": 2.5}, , {"id": 4]]'
    lines = list(read_lines(write(tmp_path / "x", raw)))
    assert [line.record for line in lines] == [{"id": 1}, None, {"id": 2.5}, None, None]
    assert rejects(lines) == [(2, "invalid_json"), (4, "invalid_json"), (5, "invalid_json")]
    assert lines[1].reject and lines[1].reject[1].startswith("NaN is not JSON")


@pytest.mark.parametrize("rest", [b"", b', {"id"', b', "a \\"', b"}", b",]", b"] x", b"\n]\n[]"])
def test_an_array_is_read_up_to_where_it_breaks(tmp_path: Path, rest: bytes) -> None:
    path = write(tmp_path / "x", b'[{"id": 1}, {"id": 2}' + rest)
    lines = list(read_lines(path, input_format="json"))
    known = 1 if rest in (b"", b"}") else 2
    assert [line.record for line in lines] == [*[{"id": 1}, {"id": 2}][:known], None]
    assert rejects(lines) == [(known + 1, "invalid_json")]


def test_an_array_with_long_texts_and_brackets_in_them(tmp_path: Path) -> None:
    records = [{"text": '[{"\\",\n' * size} for size in (1, 30_000, 0, 3, 20_000)]
    for raw in (array(records), json.dumps(records).encode()):
        for name, packed in (("x", raw), ("y", gzip.compress(raw)), ("z", zst(raw))):
            lines = list(read_lines(write(tmp_path / name, packed)))
            assert [line.record for line in lines] == records


DEEP = b'{"a":' * 300 + b"1" + b"}" * 300


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"id": 18446744073709551616}', "large_integer"),
        (b'{"id": -9223372036854775809}', "large_integer"),
        (b'{"id": [' + b"9" * 300 + b"]}", "large_integer"),
        (b'{"id": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b'{"id": 1, "id": 2}', "duplicate_key"),
        (b'{"a": [{"b": 1, "c": 1, "b": 1}]}', "duplicate_key"),
        (b'{"a": "\\u0022", "b": 1, "b": "\\u0022"}', "duplicate_key"),
        (DEEP, "invalid_json"),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, "invalid_json"),
    ],
)
def test_what_json_readers_lose_is_rejected(tmp_path: Path, text: bytes, reason: str) -> None:
    rest = b'{"id": 18446744073709551615, "e+": 1e+300, "s": "\\u0022"}'
    lines = list(read_lines(write(tmp_path / "x", text + b"\n" + rest)))
    assert rejects(lines) == [(1, reason)]
    assert lines[1].record == {"id": 18446744073709551615, "e+": 1e300, "s": '"'}
    elements = list(read_lines(write(tmp_path / "y", b"[" + text + b",\n" + rest + b"]")))
    assert rejects(elements) == [(1, reason)]
    assert elements[1].content == lines[1].content


# ---- tables ----


def test_values_that_json_lacks(tmp_path: Path) -> None:
    record = {
        "when": datetime.datetime(2024, 5, 6, 7, 8, 9),
        "day": datetime.date(2024, 5, 6),
        "took": datetime.timedelta(seconds=90),
        "price": Decimal("12.50"),
        "text": "ä".encode(),
        "bytes": b"\xff\x00",
        "nan": float("nan"),
        "map": [{"a": 1, "b": None}, {"a": None, "b": 2}],
    }
    expected = {
        "when": "2024-05-06T07:08:09",
        "day": "2024-05-06",
        "took": "0:01:30",
        "price": "12.50",
        "text": "ä",
        "bytes": "ff00",
        "nan": None,
        "map": [{"a": 1, "b": None}, {"a": None, "b": 2}],
    }
    for name, raw in (("p", parquet([record])), ("a", arrow([record]))):
        (line,) = read_lines(write(tmp_path / name, raw))
        assert line.record == expected


def test_a_row_with_a_damaged_text_is_one_reject(tmp_path: Path) -> None:
    bad = pa.array([b"one", b"\xff\xfe", b"three"]).view(pa.string())
    batch = pa.record_batch([bad], names=["text"])
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    lines = list(read_lines(write(tmp_path / "x", out.getvalue())))
    assert [line.record for line in lines] == [{"text": "one"}, None, {"text": "three"}]
    assert rejects(lines) == [(2, "unreadable_value")]


# ---- damage ----


def test_truncated_files_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    many = [{"id": n, "text": base64.b85encode(bytes([n % 251] * 40)).decode()} for n in range(900)]
    for form, raw in (
        ("gz", gzip.compress(jsonl(many))),
        ("zst", zst(jsonl(many))),
        ("array gz", gzip.compress(array(many))),
        ("stream", arrow(many, batch=50)),
        ("file", arrow(many, batch=50, stream=False)),
    ):
        lines = list(read_lines(write(tmp_path / form, raw[: len(raw) // 2])))
        assert [line.record for line in lines[:-1]] == many[: len(lines) - 1], form
        assert rejects(lines) == [(len(lines), "damaged_file")], form
        assert form == "zst" or 1 < len(lines) < 901, form
    (line,) = read_lines(write(tmp_path / "parquet", parquet(many)[:-9]))
    assert line.reject and line.reject[0] == "damaged_file"


def test_a_damaged_row_group_costs_its_own_rows(tmp_path: Path) -> None:
    out = io.BytesIO()
    table = pa.Table.from_pylist([{"text": f"{n:040d}"} for n in range(6)])
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    pq.write_table(table, out, row_group_size=2, write_page_checksum=True, **options)
    raw = out.getvalue()
    at = pq.ParquetFile(io.BytesIO(raw)).metadata.row_group(1).column(0).data_page_offset
    path = write(tmp_path / "x", raw[:at] + b"\xff" * 12 + raw[at + 12 :])
    lines = list(read_lines(path))
    assert [line.line for line in lines] == [1, 2, 3, 5, 6]
    assert rejects(lines) == [(3, "damaged_file")]


# ---- parts and ids ----


def test_a_row_id_depends_on_source_line_and_content_not_on_spelling() -> None:
    one = parse_line("f", 1, b'{"a": 1, "b": [2]}')
    assert one.row_id == parse_line("f", 1, b'{ "b":[2],"a":1}').row_id
    others = [("g", 1, b'{"a":1,"b":[2]}'), ("f", 2, b'{"a":1,"b":[2]}'), ("f", 1, b'{"a":1}')]
    assert one.row_id not in {parse_line(*other).row_id for other in others}


def ids_by_parts(path: str, size: int, form: str = "auto") -> list[str]:
    counts = Counts()
    return [line.row_id for part in parts(path, form, size) for line in read_part(part, counts)]


def test_parts_of_json_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b'{"a":1}\n\n{"a":3}\n{"a":4}')
    assert parts(path, "auto", 8) == [
        Part(path, "jsonl", 0, 8, 1, 0),
        Part(path, "jsonl", 8, 17, 2, 1),
        Part(path, "jsonl", 17, 24, 4, 2),
    ]
    assert [line.line for line in read_part(parts(path, "auto", 8)[1], Counts())] == [3]


@pytest.mark.parametrize("make", [parquet, arrow, arrow_file])
def test_parts_of_tables(tmp_path: Path, make: Callable[[list[Any]], bytes]) -> None:
    path = write(tmp_path / "x", make(RECORDS))
    cut = parts(path, "auto", 1)
    firsts = [(part.first, part.start) for part in cut]
    assert firsts[:3] == [(1, 0), (4, 1), (7, 2)]
    assert [line.record for line in read_part(cut[1], Counts())] == RECORDS[3:6]
    assert ids_by_parts(path, 1) == [line.row_id for line in read_lines(path)]
    (whole,) = parts(path)
    assert whole.first == 1


@given(st.lists(st.binary(max_size=30) | st.just(b'{"a":1}\r')), st.integers(1, 64))
def test_a_row_keeps_its_id_however_the_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes], size: int
) -> None:
    path = write(tmp_path_factory.mktemp("cut") / "x", b"\n".join(rows))
    counts = Counts()
    whole = [line.row_id for line in read_lines(path, counts, "jsonl")]
    assert ids_by_parts(path, size, "jsonl") == whole
    cut = parts(path, "jsonl", size)
    assert sum(part.end - part.start for part in cut) == counts.bytes
    assert [part.number for part in cut] == list(range(len(cut)))


PREFIXES = [b"", b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff", b"\x1f\x8b\x08\x00", b"[", b"{"]
WHOLE = [make(RECORDS) for _, make in MAKERS]


@given(
    st.builds(lambda prefix, raw: prefix + raw, st.sampled_from(PREFIXES), st.binary(max_size=200))
    | st.builds(
        lambda raw, at, change, end: (raw[:at] + change + raw[at + len(change) :])[:end],
        st.sampled_from(WHOLE),
        st.integers(0, 2000),
        st.binary(max_size=8),
        st.integers(1, 4000),
    ),
    st.sampled_from(["auto", "jsonl", "json", "parquet", "arrow"]),
)
def test_any_bytes_are_accounted_for_in_any_format(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, form: str
) -> None:
    path = write(tmp_path_factory.mktemp("any") / "x", raw)
    counts = Counts()
    lines = list(read_lines(path, counts, form))
    assert len(lines) + counts.blank == counts.lines
    numbers = [line.line for line in lines]
    assert numbers == sorted(set(numbers))
    assert all((line.record is None) != (line.reject is None) for line in lines)
    assert ids_by_parts(path, 1, form) == [line.row_id for line in lines]


# ---- files and folders ----


def test_input_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(tmp_path / f"{name}.jsonl", b"")
    both = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    assert input_files([f"{tmp_path}/*.jsonl", both[0]]) == both
    with pytest.raises(ConfigError, match="nothing.jsonl matches no file"):
        input_files([f"{tmp_path}/nothing.jsonl"])


def test_a_saved_dataset_is_read_in_the_order_of_its_state(tmp_path: Path) -> None:
    folder = tmp_path / "set/train"
    for name in ("data-00001-of-00002.arrow", "data-00000-of-00002.arrow"):
        write(folder / name, arrow(RECORDS))
    names = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    state: dict[str, Any] = {"_data_files": [{"filename": name} for name in names]}
    write(folder / "state.json", json.dumps(state).encode())
    write(folder / "dataset_info.json", b"{}")
    write(tmp_path / "set/dataset_dict.json", b'{"splits": ["train"]}')
    assert input_files([str(tmp_path / "set")]) == [str(folder / name) for name in names]
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    write(folder / "state.json", json.dumps(state).encode())
    with pytest.raises(ConfigError, match="flatten_indices"):
        input_files([str(tmp_path / "set")])
    write(folder / "state.json", b'{"_data_files": [{"filename": "data-9.arrow"}]}')
    with pytest.raises(ConfigError, match=r"data-9\.arrow, which is missing"):
        input_files([str(tmp_path / "set")])


def test_a_downloaded_folder(tmp_path: Path) -> None:
    data = ["data/test.parquet", "data/train-0.parquet", "extra.jsonl.gz", "more.JSONL"]
    others = ["README.md", "dataset_infos.json", ".gitattributes", ".cache/x.jsonl", "a.png"]
    for name in [*data, *others]:
        write(tmp_path / "hub" / name, b"")
    found = input_files([str(tmp_path / "hub")])
    assert found == [str(tmp_path / "hub" / name) for name in data]
    assert input_files([f"{tmp_path}/hub/[dR]*", f"{tmp_path}/hub/data/test.parquet"]) == found[:2]
    write(tmp_path / "empty/README.md", b"")
    with pytest.raises(ConfigError, match=r"empty has no data file; looked for .jsonl, .ndjson"):
        input_files([str(tmp_path / "empty")])


def test_a_saved_dataset_names_only_files_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.arrow").write_bytes(b"")
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("../secret.arrow", str(tmp_path / "secret.arrow")):
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        with pytest.raises(ConfigError, match="which is not in its folder"):
            input_files([str(folder)])


def test_a_pipe_is_no_input(tmp_path: Path) -> None:
    """To read it would wait for ever."""
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="no file .a pipe, socket or device."):
        input_files([str(tmp_path / "*.jsonl")])

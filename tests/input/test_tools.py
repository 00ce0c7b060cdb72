"""Tools and documents: what the chat template is given, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from tests.made.conversations import HI, RULES, assistant, rejected, user
from workflow_scripts.config.audit import Columns
from workflow_scripts.input.conversation import Conversation, read_conversation
from workflow_scripts.input.lines import read_lines

SHAPE = {"type": "object", "properties": {"town": {"type": "string", "enum": ["Graz", None]}}}
FUNCTION = {"name": "rain", "description": "Rain by town.", "parameters": SHAPE}
TOOL = {"type": "function", "function": FUNCTION}
CHAT = [user("hi"), assistant("hello")]


def read(record: dict[str, Any], **columns: str) -> Conversation:
    return read_conversation(record, RULES, Columns(**columns))


FORMS: dict[str, Any] = {
    "a list": [TOOL],
    "a list as text": json.dumps([TOOL]),
    "a list of texts": [json.dumps(TOOL)],
    "a text of a list of texts": json.dumps([json.dumps(TOOL)]),
    "one": TOOL,
    "one as text": json.dumps(TOOL),
    "bare": [FUNCTION],
    "bare, as text": json.dumps(FUNCTION),
    "bare, with its type beside its name": [{"type": "function", **FUNCTION}],
    "without a type": [{"function": FUNCTION}],
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_of_a_tool(name: str) -> None:
    found = read({"messages": CHAT, "tools": FORMS[name]})
    assert found.given.tools == [TOOL] and found.given.documents is None
    assert found.used == (["tools_wrapped"] if name.startswith(("bare", "without")) else [])
    assert found.taken == {"messages", "tools"}


@pytest.mark.parametrize(
    "column", ["tools", "functions", "tool_defs", "available_tools", "tool_definitions"]
)
def test_each_column_of_tools(column: str) -> None:
    for record in ({"messages": CHAT}, {"prompt": "hi", "response": "hello"}):
        assert read({**record, column: [TOOL]}).given.tools == [TOOL]


def test_tools_under_a_system_message() -> None:
    system = {"role": "system", "content": "Be brief.", "tools": json.dumps([TOOL])}
    assert read({"messages": [system, *CHAT]}).given.tools == [TOOL]
    both = read({"messages": [system, *CHAT], "functions": [{**FUNCTION, "name": "snow"}]})
    assert both.given.tools is not None
    assert [tool["function"]["name"] for tool in both.given.tools] == ["snow"]
    assert both.ignored == {"messages[].tools"}
    renamed = {"role": "system", "content": "Be brief.", "functions": [FUNCTION]}
    both = read({"messages": [renamed, *CHAT], "tools": [TOOL]})
    assert both.ignored == {"messages[].functions"}


def test_the_first_column_that_holds_something_counts() -> None:
    nothing: list[Any] = [None, [], "", " ", "[]", {}]
    for empty in nothing:
        found = read({"messages": CHAT, "tools": empty})
        assert found.given.tools is None
        assert read({"messages": CHAT, "functions": [TOOL], "tools": empty}).given.tools == (
            None if empty in (" ", "[]") else [TOOL]
        )


def test_a_forced_column_is_the_only_one() -> None:
    record = {"messages": CHAT, "tools": [TOOL], "meta": {"api": [{**FUNCTION, "name": "snow"}]}}
    (tool,) = read(record, tools="meta.api").given.tools or []
    assert tool["function"]["name"] == "snow"
    assert read(record, tools="none").given.tools is None
    assert read(record, tools="none").taken == {"messages"}


def test_other_types_of_tools_stay_as_they_are() -> None:
    search = {"type": "web_search", "filters": {"a": 1}}
    assert read({"messages": CHAT, "tools": [search, TOOL]}).given.tools == [search, TOOL]


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ("[{", "`tools` is a text that is no JSON list or object of tools"),
        ("rain(town)", "`tools` is a text that is no JSON list or object of tools"),
        ('[{"name": NaN}]', "`tools` is a text that is no JSON list or object of tools"),
        (7, "`tools` is a int, not a list of tools"),
        (["rain"], "tools[0] is a str, not the schema of a tool"),
        ([TOOL, {"description": "x"}], "tools[1] is a function without a name"),
        ([{"type": "function", "function": {"name": ""}}], "tools[0] is a function without a name"),
    ],
)
def test_tools_that_are_none(tools: Any, told: str) -> None:
    assert rejected({"messages": CHAT, "tools": tools}) == ("bad_tools", told)


def test_rows_that_differ_in_tools_alone_are_told_apart() -> None:
    one, two = (read({"messages": CHAT, "tools": [TOOL] * n}) for n in (1, 2))
    assert one.turns == two.turns and one.given != two.given


# ---- tables ----


def test_a_tables_nulls_are_no_part_of_a_schema(tmp_path: Path) -> None:
    """Arrow gives every object of a column all keys that one of them has."""
    other = {"type": "object", "properties": {"depth": {"type": "integer"}}}
    tools = [TOOL, {"type": "function", "function": {"name": "snow", "parameters": other}}]
    rows = [{"messages": CHAT, "tools": tools}]
    table = pa.Table.from_pylist(rows)
    assert table.to_pylist() != rows  # padded
    pq.write_table(table, tmp_path / "a.parquet")
    (line,) = read_lines(str(tmp_path / "a.parquet"))
    assert line.record is not None
    assert read(line.record).given.tools == tools


def test_nulls_in_json_text_are_values() -> None:
    tool = {"type": "function", "function": {**FUNCTION, "default": None, "strict": None}}
    assert read({"messages": CHAT, "tools": json.dumps([tool])}).given.tools == [tool]
    assert read({"messages": CHAT, "tools": [tool]}).given.tools == [TOOL]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_keys_stay_in_their_order(tmp_path: Path, form: str) -> None:
    """A template writes a schema as it stands, so sorted keys would be another prompt."""
    function = {"parameters": {"z": 1, "a": 2}, "name": "rain"}
    rows = [{"tools": [{"type": "function", "function": function}], "messages": CHAT}]
    path = str(tmp_path / "x")
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        feather.write_feather(pa.Table.from_pylist(rows), path, compression="uncompressed")
    text = tmp_path / "x.jsonl"
    text.write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    (line,), (other,) = read_lines(path), read_lines(str(text))
    assert line.record is not None
    assert json.dumps(line.record) == json.dumps(rows[0])
    assert line.content == other.content  # the content, and with it the id, knows no order


# ---- documents ----


@pytest.mark.parametrize(
    "value",
    [
        [{"title": "a", "text": "b"}],
        json.dumps([{"title": "a", "text": "b"}]),
        {"title": "a", "text": "b"},
    ],
)
def test_documents(value: Any) -> None:
    for record in ({"messages": CHAT}, {"question": "hi", "answer": "hello"}):
        found = read({**record, "documents": value})
        assert found.given.documents == [{"title": "a", "text": "b"}]
        assert [(turn.role, turn.content) for turn in found.turns] == HI
        assert found.taken == {*record, "documents"}


def test_texts_are_documents_of_a_text() -> None:
    found = read({"messages": CHAT, "documents": ["b", "c"]})
    assert found.given.documents == [{"text": "b"}, {"text": "c"}]
    assert found.used == ["documents_wrapped"] * 2


def test_documents_that_are_none() -> None:
    assert read({"messages": CHAT, "documents": []}).given.documents is None
    found = rejected({"messages": CHAT, "documents": "A text."})
    assert found[0] == "bad_documents" and found[1].startswith("`documents` is a text that is no")
    found = rejected({"messages": CHAT, "documents": [["b"]]})
    assert found == ("bad_documents", "documents[0] is a list, not a document with a text")
    named = read({"messages": CHAT, "meta": {"found": ["b"]}}, documents="meta.found")
    assert named.given.documents == [{"text": "b"}]

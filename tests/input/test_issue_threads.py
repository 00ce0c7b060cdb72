"""Inputs that users of similar tools stumbled over, from public threads; each is named."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.made.conversations import KEEP, RULES, rejected, turns
from tests.made.input_files import write
from workflow_scripts.config.audit import Rules
from workflow_scripts.input.conversation import read_conversation
from workflow_scripts.input.files import input_files
from workflow_scripts.input.lines import Line, read_lines
from workflow_scripts.input.parts import format_of


def read(path: Path, raw: bytes | str) -> list[Line]:
    return list(read_lines(write(path, raw.encode() if isinstance(raw, str) else raw)))


def call(name: str, **arguments: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_tables_pad_objects_with_nulls(tmp_path: Path) -> None:
    """huggingface/datasets#7617: in a list of objects, each gets the others' keys as nulls; a
    null `tool_calls` is no tool turn, and an argument that is null was never there."""
    plain = {"messages": [{"role": "user", "content": "2+2?"}, {"from": "gpt", "value": "4"}]}
    called = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "tool_calls": [call("add", a=2, b=2), call("neg", c=4)]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "4"},
    ]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([plain, {"messages": called}]), out)
    lines = read(tmp_path / "x.parquet", out.getvalue())
    assert lines[0].record and set(lines[0].record["messages"][0]) > {"from", "tool_calls"}
    assert turns(lines[0].record) == [("user", "2+2?"), ("assistant", "4")]
    assert lines[1].record
    found = read_conversation(lines[1].record, KEEP).turns
    assert found[1].tool_calls == [call("add", a=2, b=2), call("neg", c=4)]
    assert [turn.role for turn in found] == ["user", "assistant", "tool", "assistant"]


def test_conversations_without_a_question() -> None:
    """sgl-project/SpecForge#482: entries that are empty, or empty but for a system prompt or an
    assistant's greeting, crashed the parser; each is rejected and says why."""
    system = {"role": "system", "content": "Be short."}
    greeting = {"role": "assistant", "content": "Hello!"}
    assert rejected({"conversations": []}) == (
        "empty_conversation",
        "`conversations` is an empty list",
    )
    for messages in ([system], [greeting], [system, greeting]):
        found = rejected({"conversations": messages})
        assert found == ("no_user_turn", "the conversation has no user turn")


def test_a_column_that_changes_its_type(tmp_path: Path) -> None:
    """RUC-NLPIR/FlashRAG#132: a title of digits is a number in one row and text in others, which
    typed tables refuse; here each row keeps its own."""
    titles = ["Topaz", "1984", 1984, None]
    rows = [{"id": n, "question": "Who?", "metadata": {"title": t}} for n, t in enumerate(titles)]
    lines = read(tmp_path / "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert [line.record["metadata"]["title"] for line in lines if line.record] == titles
    assert lines[1].content != lines[2].content
    assert all(turns(line.record) == [("user", "Who?"), ("assistant", None)] for line in lines)


def test_a_cache_beside_a_saved_dataset(tmp_path: Path) -> None:
    """allenai/open-instruct#638: `cache-*.arrow`, which a shuffle left in the folder, is no data,
    though it is an Arrow file."""
    folder = tmp_path / "1b7223d7c4"
    table = pa.table({"question": ["Who?", "Where?"]})
    for name in ("cache-2d0a802b78a30b76.arrow", "data-00000-of-00001.arrow"):
        out = io.BytesIO()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        assert len(read(folder / name, out.getvalue())) == 2
    for name in ("config.json", "dataset_info.json"):
        (folder / name).write_text("{}")
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    assert input_files([str(folder)]) == [str(folder / "data-00000-of-00001.arrow")]


def test_json_lines_in_a_file_named_json(tmp_path: Path) -> None:
    """huggingface/datasets#1784: "Extra data" for a .json file with an object per line."""
    raw = '{"key1":11, "key2":12, "key3":13}\n{"key1":21, "key2":22, "key3":23}\n'
    lines = read(tmp_path / "x.json", raw)
    assert format_of(str(tmp_path / "x.json")) == "jsonl"
    assert [line.record and line.record["key2"] for line in lines] == [12, 22]


def test_a_byte_order_mark_before_an_array(tmp_path: Path) -> None:
    """WangRongsheng/MedQA-ChatGLM#2: "Unexpected UTF-8 BOM" for an array that an editor saved."""
    raw = '\ufeff[\n  {"instruction": "你好", "input": "", "output": "您好"}\n]\n'
    (line,) = read(tmp_path / "self_cognition.json", raw)
    assert line.line == 1
    assert turns(line.record) == [("user", "你好"), ("assistant", "您好")]


def test_an_answer_with_the_role_of_the_user() -> None:
    """huggingface/smol-course#260: the last turn of user/assistant/user/user was an answer; the
    template refused it. A rule is applied and counted, or the row rejected."""
    texts = ["Hi!", "Hello! How can I help?", "What is 2+2?", "It is 4."]
    roles = ["user", "assistant", "user", "user"]
    messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
    found = read_conversation({"messages": messages}, RULES)
    assert found.used == ["repeated_user"]
    assert found.turns[2].content == "What is 2+2?\n\nIt is 4."
    assert found.turns[3].content is None
    assert rejected({"messages": messages}, Rules(repeated_user="reject"))[0] == "repeated_user"


def test_a_file_that_is_one_conversation(tmp_path: Path) -> None:
    """hiyouga/LlamaFactory#8323: the array of turns is the whole file, with a comma after its last
    element. Each turn is rejected, naming its columns, and so is the comma."""
    pairs = [("system", "You help."), ("user", "a"), ("assistant", "b")]
    items = "".join(json.dumps({"role": r, "content": c}) + ",\n" for r, c in pairs)
    lines = read(tmp_path / "webshop.jsonl", f"[\n{items}]")
    expected = "no known conversation or prompt column; columns: content, role"
    assert [rejected(line.record) for line in lines[:3]] == [("no_conversation", expected)] * 3
    assert [line.reject and line.reject[0] for line in lines[3:]] == ["invalid_json"]


def test_calls_of_tools_are_never_lost_without_a_word() -> None:
    """vllm-project/speculators#561: tool turns were skipped and `tool_calls` and `tool_call_id`
    stripped. Here the row is rejected as what it is, or all five turns are kept."""
    messages = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [call("weather", city=1)]},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "It is sunny."},
    ]
    record = {"messages": messages}
    assert rejected(record) == ("tool_turn", "messages[2] is a tool turn (assistant)")
    found = read_conversation(record, KEEP)
    assert [turn.as_dict() for turn in found.turns] == messages
    assert [turn.content for turn in found.responses()] == ["It is sunny."]


def test_a_null_is_not_the_text_none() -> None:
    """NVIDIA-NeMo/Megatron-Bridge#5742: a null `value` of ShareGPT was trained on as "None"."""
    asked = {"from": "human", "value": "Say hi."}
    record = {"conversations": [asked, {"from": "gpt", "value": None}]}
    assert turns(record) == [("user", "Say hi."), ("assistant", None)]
    record = {"conversations": [{"from": "human", "value": None}, {"from": "gpt", "value": "hi"}]}
    assert rejected(record) == ("null_content", "conversations[0] (user) has no content")

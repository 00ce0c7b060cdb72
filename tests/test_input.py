"""Input lines and conversations: nothing crashes, every line is accounted for, and what is
accepted means what the user meant."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.config import ConfigError, Rules
from workflow_scripts.conversation import Reject, read_conversation
from workflow_scripts.read_input import Counts, input_files, parse_line, read_lines

RULES = Rules()


def write(path: Path, raw: bytes) -> str:
    path.write_bytes(raw)
    return str(path)


def turns(record: dict[str, Any], rules: Rules = RULES) -> list[tuple[str, str | None]]:
    return [(t.role, t.content) for t in read_conversation(record, rules).turns]


def reason(record: dict[str, Any], rules: Rules = RULES) -> str:
    with pytest.raises(Reject) as caught:
        read_conversation(record, rules)
    return caught.value.reason


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


# ---- lines ----


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


def test_a_row_id_depends_on_source_line_and_content_not_on_spelling() -> None:
    one = parse_line("f", 1, b'{"a": 1, "b": [2]}')
    assert one.row_id == parse_line("f", 1, b'{ "b":[2],"a":1}').row_id
    others = [("g", 1, b'{"a":1,"b":[2]}'), ("f", 2, b'{"a":1,"b":[2]}'), ("f", 1, b'{"a":1}')]
    assert one.row_id not in {parse_line(*other).row_id for other in others}


def test_input_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(tmp_path / f"{name}.jsonl", b"")
    both = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    assert input_files([f"{tmp_path}/*.jsonl", both[0]]) == both
    with pytest.raises(ConfigError, match="nothing.jsonl matches no file"):
        input_files([f"{tmp_path}/nothing.jsonl"])


# ---- dialects ----


def test_dialects_give_one_conversation() -> None:
    records: list[dict[str, Any]] = [
        {"conversations": [{"from": "human", "value": "Say hi."}, {"from": "gpt", "value": "hi"}]},
        {"messages": [user("Say hi."), assistant("hi")]},
        {"prompt": "Say hi.", "response": "hi"},
        {"instruction": "Say hi.", "input": "", "output": "hi"},
    ]
    for record in records:
        assert turns(record) == [("user", "Say hi."), ("assistant", "hi")]
    assert reason({"conversations": [{"from": "robot9", "value": "Say hi."}]}) == "unknown_role"


def test_alpaca_input_follows_the_instruction() -> None:
    record = {"instruction": "Add.", "input": "1 2", "output": "3"}
    assert turns(record)[0] == ("user", "Add.\n\n1 2")


def test_system_turns() -> None:
    system = {"role": "system", "content": "Be short."}
    rest = [user("2+2?"), assistant("4")]
    answered = [("user", "2+2?"), ("assistant", "4")]
    assert turns({"messages": [system, *rest]}) == [("system", "Be short."), *answered]
    two = {"messages": [system, {"role": "system", "content": "Be kind."}, *rest]}
    assert turns(two)[0] == ("system", "Be short.\n\nBe kind.")
    assert read_conversation(two, RULES).used == ["second_system"]
    assert reason(two, Rules(second_system="reject")) == "second_system"
    developer = {"messages": [{"role": "developer", "content": "Be short."}, *rest]}
    assert turns(developer)[0] == ("system", "Be short.")
    middle = {"messages": [user("a"), assistant("b"), system, user("c")]}
    assert reason(middle) == "system_in_the_middle"


def test_order_of_turns() -> None:
    first = {"messages": [assistant("Hello!"), user("3+3?"), assistant("6")]}
    assert turns(first) == [("user", "3+3?"), ("assistant", "6")]
    assert reason(first, Rules(leading_assistant="reject")) == "leading_assistant"
    users = {"messages": [user("Are you there?"), user("3+3?"), assistant("6")]}
    assert turns(users) == [("user", "Are you there?\n\n3+3?"), ("assistant", "6")]
    assert reason(users, Rules(repeated_user="reject")) == "repeated_user"
    answers = {"messages": [user("3+3?"), assistant("Well,"), assistant("6")]}
    assert turns(answers)[1:] == [("assistant", "Well,\n\n6")]
    assert turns(answers, Rules(repeated_assistant="last"))[1:] == [("assistant", "6")]
    open_end = {"messages": [user("3+3?"), assistant("6"), user("And 4+4?")]}
    assert turns(open_end)[-2:] == [("user", "And 4+4?"), ("assistant", None)]


def test_nothing_to_answer_has_a_reason_of_its_own_each_time() -> None:
    records: list[dict[str, Any]] = [
        {"messages": []},
        {"messages": None},
        {"id": "missing"},
        {"messages": [user(None)]},
        {"messages": [user("  \n ")]},
    ]
    reasons = [reason(record) for record in records]
    assert len(set(reasons)) == 5, reasons


def test_content_parts() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "6+6?"}]
    assert turns({"messages": [user(parts)]})[0] == ("user", "What is 6+6?")
    image = {"type": "image_url", "image_url": {"url": "x.png"}}
    assert reason({"messages": [user([*parts, image])]}) == "not_text"


def test_tool_turns_are_rejected_by_name() -> None:
    record = {"messages": [user("x"), {"role": "tool", "content": "y"}]}
    assert reason(record) == "tool_turn"
    called = assistant(None, tool_calls=[{"function": {"name": "f"}}])
    assert reason({"messages": [user("x"), called]}) == "tool_turn"


# ---- reasoning ----


def test_think_tags_in_a_question_are_text() -> None:
    text = "What does <think> mean, and </think>?"
    record = {"messages": [user(text), assistant("They are literal tags in your code.")]}
    (question, answer) = read_conversation(record, RULES).turns
    assert question.content == text and question.reasoning is None
    assert answer.reasoning is None


@pytest.mark.parametrize(
    ("message", "reasoning", "content"),
    [
        (assistant("<think>\nTwo.\n</think>\n\n4"), "Two.", "4"),
        (assistant("Two plus two.\n</think>\n\n4"), "Two plus two.", "4"),
        (assistant("4", reasoning_content="Two plus two is four."), "Two plus two is four.", "4"),
        (assistant("<think>\n\n</think>\n\n"), "", ""),
        (assistant("The tag <think> and </think>"), None, "The tag <think> and </think>"),
    ],
)
def test_reasoning(message: dict[str, Any], reasoning: str | None, content: str) -> None:
    turn = read_conversation({"messages": [user("2+2?"), message]}, RULES).turns[-1]
    assert (turn.reasoning, turn.content) == (reasoning, content)


def test_a_closing_tag_alone_can_be_rejected() -> None:
    record = {"messages": [user("2+2?"), assistant("It is\n</think>\n\n4")]}
    assert reason(record, Rules(reasoning_closer_only="reject")) == "reasoning_closer_only"


# ---- anything ----

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
ROLE = st.sampled_from(["user", "human", "assistant", "gpt", "system", "tool", "x"]) | JSON
MESSAGE = st.dictionaries(
    st.sampled_from(["role", "from", "content", "value", "reasoning_content"]), ROLE | st.text()
)
RECORD = st.dictionaries(
    st.sampled_from(["messages", "conversations", "prompt", "response", "instruction", "input"]),
    JSON | st.lists(MESSAGE | JSON, max_size=5),
    max_size=4,
)


@given(RECORD)
def test_any_record_is_accepted_whole_or_rejected(record: dict[str, Any]) -> None:
    try:
        found = read_conversation(record, RULES).turns
    except Reject as reject:
        assert reject.reason and reject.message
        return
    roles = [turn.role for turn in found]
    if roles[0] == "system":
        roles = roles[1:]
    assert roles == ["user", "assistant"] * (len(roles) // 2) and roles
    assert all(turn.content is not None for turn in found if turn.role != "assistant")
    json.dumps([turn.as_dict() for turn in found])


@given(st.lists(st.binary(max_size=40) | JSON.map(lambda v: json.dumps(v).encode()), max_size=8))
def test_any_bytes_are_lines(tmp_path_factory: pytest.TempPathFactory, rows: list[bytes]) -> None:
    raw = b"\n".join(rows)
    path = write(tmp_path_factory.mktemp("any") / "x", raw)
    counts = Counts()
    lines = list(read_lines(path, counts))
    assert counts.lines == len(raw.split(b"\n")) - (raw.endswith(b"\n") or not raw)
    assert len(lines) + counts.blank == counts.lines
    assert all((line.record is None) != (line.reject is None) for line in lines)

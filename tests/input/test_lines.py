"""Input lines and conversations: nothing crashes, every line is accounted for, and what is
accepted means what the user meant."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workflow_scripts.config.audit import Columns, Rules
from workflow_scripts.input.conversation import read_conversation
from workflow_scripts.input.lines import Counts, read_lines
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.streams import COMPRESSIONS

RULES = Rules()
KEEP = Rules(tool_turns="keep")
NO_COLUMNS = Columns()


def write(path: Path, raw: bytes) -> str:
    path.write_bytes(raw)
    return str(path)


def turns(
    record: dict[str, Any], rules: Rules = RULES, columns: Columns = NO_COLUMNS
) -> list[tuple[str, str | None]]:
    return [(t.role, t.content) for t in read_conversation(record, rules, columns).turns]


def reason(record: dict[str, Any], rules: Rules = RULES, columns: Columns = NO_COLUMNS) -> str:
    with pytest.raises(Reject) as caught:
        read_conversation(record, rules, columns)
    assert caught.value.message
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


def test_the_first_instance_of_an_instruction_counts() -> None:
    pairs = [{"input": "1 2", "output": "3"}, {"input": "2 2", "output": "4"}]
    record = {"instruction": "Add.", "instances": pairs}
    assert turns(record) == [("user", "Add.\n\n1 2"), ("assistant", "3")]
    assert read_conversation(record, RULES).used == ["first_instance_taken"]
    assert turns({**record, "instances": [{"input": "", "output": "3"}]})[0] == ("user", "Add.")


def test_plain_rows_are_read_as_any_other() -> None:
    """The short way for the commonest form gives what the long way gives."""
    for answer in ("4", "", " ", "<think>\nso\n</think>\n\n4", "so</think>4", "a<think>b</think>"):
        record = {"messages": [user("2+2?"), assistant(answer)], "id": 3}
        short = read_conversation(record, RULES)
        long = read_conversation(record, RULES, Columns())
        assert (short.turns, short.used) == (long.turns, long.used), answer


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
    assert turns({"messages": [user([{"type": "input_text", "text": "hi"}])]})[0] == HI[0]
    thought = {"type": "thinking", "thinking": "hm"}
    assert reason({"messages": [user([*parts, thought])]}) == "not_text"
    image = {"type": "image_url", "image_url": {"url": "x.png"}}
    assert reason({"messages": [user([*parts, image])]}) == "not_text"


def test_tool_turns_are_rejected_by_name() -> None:
    record = {"messages": [user("x"), {"role": "tool", "content": "y"}]}
    assert reason(record) == "tool_turn"
    called = assistant(None, tool_calls=[{"function": {"name": "f"}}])
    assert reason({"messages": [user("x"), called]}) == "tool_turn"


HI = [("user", "hi"), ("assistant", "hello")]
TWICE = [*HI, ("user", "bye"), ("assistant", "ciao")]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt": [user("hi")], "completion": [assistant("hello")]}, HI),
        ({"prompt": [user("hi")], "chosen": [assistant("hello")], "rejected": []}, HI),
        ({"prompt": "hi", "chosen": "hello", "rejected": "what"}, HI),
        ({"prompt": "hi", "chosen": [user("hi"), assistant("hello")]}, HI),
        ({"chosen": [user("hi"), assistant("hello")], "rejected": [user("hi")]}, HI),
        ({"prompt": [user("hi"), assistant("hello"), user("bye")], "response": "ciao"}, TWICE),
        ({"conversation": [["hi", "hello"], ["bye", "ciao"]]}, TWICE),
        ({"data": ["hi", "hello", "bye", "ciao"], "id": "0"}, TWICE),
        ({"dialogue": ["hi", "hello"]}, HI),
        ({"dialogue": [user("hi"), assistant("hello")]}, HI),
        ({"items": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}, HI),
        ({"turns": ["hi", "bye"]}, [HI[0], ("assistant", None), TWICE[2], ("assistant", None)]),
        ({"instruction": "bye", "history": [["hi", "hello"]], "output": "ciao"}, TWICE),
        (
            {"messages": [{"role": "Human", "content": "hi"}, {"role": "AI", "content": "hello"}]},
            HI,
        ),
        (
            {"messages": [{"role": "USER", "content": "hi"}, {"role": "llm", "content": "hello"}]},
            HI,
        ),
        ({"messages": [user("hi"), {**assistant("hello"), "weight": 0, "train": False}]}, HI),
        ({"messages": None, "prompt": "hi", "response": None, "answer": "hello"}, HI),
        ({"prompt": None, "messages": [user("hi"), assistant("hello")]}, HI),
    ],
)
def test_more_dialects(record: dict[str, Any], expected: list[tuple[str, str | None]]) -> None:
    assert turns(record) == expected


def test_a_system_prompt_beside_the_turns() -> None:
    system = ("system", "Be short.")
    sharegpt = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    record: dict[str, Any] = {"conversations": sharegpt, "system": "Be short."}
    assert turns(record) == [system, *HI]
    assert turns({"prompt": "hi", "response": "hello", "system_prompt": "Be short."})[0] == system
    record["conversations"] = [{"from": "system", "value": "Be kind."}, *sharegpt]
    assert turns(record)[0] == ("system", "Be kind.")
    assert read_conversation(record, RULES).used == ["system_column_ignored"]
    assert reason({"messages": [user("hi")], "system": {"text": "x"}}) == "bad_content"


def test_forced_columns() -> None:
    record = {
        "messages": [user("x")],
        "meta": {"question": "hi", "old": {"answer": "hello", "why": "They greet."}},
        "rules": "Be short.",
        "chat": [user("hi"), assistant("hello")],
    }
    assert turns(record, columns=Columns(messages="chat")) == HI
    columns = Columns(
        prompt="meta.question",
        response="meta.old.answer",
        system="rules",
        reasoning="meta.old.why",
    )
    assert turns(record, columns=columns) == [("system", "Be short."), *HI]
    assert read_conversation(record, RULES, columns).turns[-1].reasoning == "They greet."
    assert turns({"a.b": "hi"}, columns=Columns(prompt="a.b"))[0] == HI[0]
    assert turns({"prompt": "hi", "old": "hello"}, columns=Columns(response="old")) == HI
    for missing in (Columns(prompt="meta.answer"), Columns(messages="conversations")):
        assert reason(record, columns=missing) == "missing_column"
    assert reason({"prompt": None}, columns=Columns(prompt="prompt")) == "missing_column"


def test_what_was_rejected_stays_rejected() -> None:
    assert reason({"messages": ["hi", "hello"]}) == "bad_content"
    assert reason({"conversation": ["hi"]}) == "bad_content"
    assert reason({"prompt": ["hi"]}) == "bad_content"
    assert reason({"prompt": None}) == "bad_content"
    assert reason({"chosen": ["hi", "hello"]}) == "no_conversation"
    assert reason({"items": [1, 2], "data": {}, "turns": 3}) == "no_conversation"


# ---- tools ----

CALL = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
RESULT = {"role": "tool", "content": {"sum": 4}, "name": "add", "tool_call_id": "c1"}


def test_tool_turns_can_be_kept() -> None:
    called = assistant(None, tool_calls=[CALL])
    record = {"messages": [user("2+2?"), called, RESULT, assistant("4"), user("Sure?")]}
    found = read_conversation(record, KEEP)
    assert [turn.as_dict() for turn in found.turns] == [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": '{"sum":4}', "name": "add", "tool_call_id": "c1"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": None},
    ]
    assert [turn.content for turn in found.responses()] == ["4", None]
    assert set(found.used) == {"tool_turns"}
    assert reason(record) == "tool_turn"


def test_calls_in_other_spellings() -> None:
    result = {"from": "observation", "value": "4"}
    text = '{"name": "add", "arguments": {"a": 2}}'
    calls = [{"from": "function_call", "value": text}, {"from": "function_call", "value": text}]
    record = {"conversations": [{"from": "human", "value": "2+2?"}, *calls, result]}
    found = read_conversation(record, KEEP)
    function = {"name": "add", "arguments": {"a": 2}}
    assert found.turns[1].tool_calls == [{"type": "function", "function": function}] * 2
    assert [turn.role for turn in found.turns] == ["user", "assistant", "tool", "assistant"]
    assert "parallel_calls_joined" in found.used
    legacy = assistant(None, function_call={"name": "add", "arguments": "{}"})
    record = {"messages": [user("2+2?"), legacy, {"role": "function", "content": "4"}]}
    assert read_conversation(record, KEEP).turns[1].tool_calls == [CALL]
    assert reason(record) == "tool_turn"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user("x"), RESULT], "tool_order"),
        ([user("x"), assistant(None, tool_calls=[CALL]), assistant("4")], "tool_order"),
        ([user("x"), assistant(None, tool_calls=[CALL]), user("y")], "tool_order"),
        ([user("x"), assistant(None, tool_calls=[CALL]), RESULT, user("y")], "tool_order"),
        ([user("x"), assistant(None, tool_calls=[CALL])], "only_tool_calls"),
        ([user("x"), {"role": "function_call", "content": "add(2)"}], "bad_tool_call"),
        ([user("x"), assistant("y", tool_calls="add")], "bad_tool_call"),
        ([{**user("x"), "tool_calls": [CALL]}], "tool_turn"),
    ],
)
def test_tool_turns_out_of_order(messages: list[dict[str, Any]], expected: str) -> None:
    assert reason({"messages": messages}, KEEP) == expected


def test_a_call_at_the_end_is_dropped() -> None:
    rest = [user("y"), assistant(None, tool_calls=[CALL])]
    found = read_conversation({"messages": [user("hi"), assistant("hello"), *rest]}, KEEP)
    assert [(turn.role, turn.content) for turn in found.turns] == HI
    assert found.used == ["tool_turns", "trailing_call_dropped"]


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
        (assistant("4", reasoning_text="Two."), "Two.", "4"),
        (assistant("4", thought="Two.", reasoning=None), "Two.", "4"),
        (
            assistant([{"type": "thinking", "thinking": "Two."}, {"type": "text", "text": "4"}]),
            "Two.",
            "4",
        ),
        (assistant([{"type": "output_text", "text": "4"}]), None, "4"),
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
ROLES = ["user", "human", "assistant", "gpt", "system", "tool", "function_call", "x"]
ROLE = st.sampled_from(ROLES) | JSON
MESSAGE = st.dictionaries(
    st.sampled_from(["role", "from", "content", "value", "reasoning_content", "tool_calls"]),
    ROLE | st.text() | st.just([CALL]),
)
KEYS = ["messages", "conversations", "conversation", "turns", "data", "prompt", "response"]
RECORD = st.dictionaries(
    st.sampled_from([*KEYS, "instruction", "input", "history", "chosen", "system", "x"]),
    JSON | st.lists(MESSAGE | JSON, max_size=5) | st.lists(st.text() | st.lists(st.text())),
    max_size=4,
)
FORCED = st.sampled_from([None, "x", "x.y", "messages", "prompt"])
COLUMNS = st.builds(Columns, messages=FORCED, prompt=FORCED, response=FORCED, system=FORCED)


@given(RECORD, COLUMNS | st.just(NO_COLUMNS), st.sampled_from([RULES, KEEP]))
def test_any_record_is_accepted_whole_or_rejected(
    record: dict[str, Any], columns: Columns, rules: Rules
) -> None:
    try:
        conversation = read_conversation(record, rules, columns)
    except Reject as reject:
        assert reject.reason and reject.message
        return
    found = conversation.turns
    roles = "".join("c" if turn.tool_calls else turn.role[0] for turn in found)
    assert re.fullmatch("s?(u(ct+)*a)+", roles), roles
    assert conversation.responses()[-1] is found[-1]
    asked = [turn for turn in found if turn.role != "assistant"]
    assert all(turn.content is not None for turn in asked)
    json.dumps([turn.as_dict() for turn in found])


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

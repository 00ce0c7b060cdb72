"""Conversations: what is accepted means what the user meant, and each rule that is used is told."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made.conversations import (
    CALL,
    HI,
    KEEP,
    NO_COLUMNS,
    RULES,
    assistant,
    reason,
    turns,
    user,
)
from tests.made.strategies import JSON
from workflow_scripts.config.audit import Columns, Rules
from workflow_scripts.input.conversation import read_conversation
from workflow_scripts.input.reject import Reject


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


# ---- tools ----

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


def test_parallel_calls_are_one_turn() -> None:
    result = {"from": "observation", "value": "4"}
    text = '{"name": "add", "arguments": {"a": 2}}'
    calls = [{"from": "function_call", "value": text}, {"from": "function_call", "value": text}]
    record = {"conversations": [{"from": "human", "value": "2+2?"}, *calls, result]}
    found = read_conversation(record, KEEP)
    function = {"name": "add", "arguments": {"a": 2}}
    assert found.turns[1].tool_calls == [{"type": "function", "function": function}] * 2
    assert [turn.role for turn in found.turns] == ["user", "assistant", "tool", "assistant"]
    assert "parallel_calls_joined" in found.used


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user("x"), RESULT], "tool_order"),
        ([user("x"), assistant(None, tool_calls=[CALL]), assistant("4")], "tool_order"),
        ([user("x"), assistant(None, tool_calls=[CALL]), user("y")], "tool_order"),
        ([user("x"), assistant(None, tool_calls=[CALL]), RESULT, user("y")], "tool_order"),
        ([user("x"), assistant(None, tool_calls=[CALL])], "only_tool_calls"),
    ],
)
def test_tool_turns_out_of_order(messages: list[dict[str, Any]], expected: str) -> None:
    assert reason({"messages": messages}, KEEP) == expected


def test_a_call_at_the_end_is_dropped() -> None:
    rest = [user("y"), assistant(None, tool_calls=[CALL])]
    found = read_conversation({"messages": [user("hi"), assistant("hello"), *rest]}, KEEP)
    assert [(turn.role, turn.content) for turn in found.turns] == HI
    assert found.used == ["tool_turns", "trailing_call_dropped"]


def test_calls_can_be_asked_too() -> None:
    """Each assistant turn is one to answer, also a call that nothing follows, as in xLAM's rows."""
    rules = Rules(tool_turns="regenerate")
    called = assistant(None, tool_calls=[CALL])
    record = {"messages": [user("2+2?"), called, RESULT, assistant("4")]}
    found = read_conversation(record, rules)
    assert [turn.content for turn in found.responses()] == [None, "4"]
    found = read_conversation({"messages": [user("2+2?"), called]}, rules)
    assert found.responses() == [found.turns[1]] and found.turns[1].tool_calls == [CALL]
    assert found.used == ["tool_turns"]


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

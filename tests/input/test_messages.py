"""One list as turns: roles as datasets spell them, contents, tools, and what is no turn."""

from typing import Any

import pytest

from tests.made.conversations import (
    CALL,
    HI,
    KEEP,
    READ_CALL,
    RULES,
    assistant,
    reason,
    rejected,
    turns,
    user,
)
from workflow_scripts.config.audit import Rules
from workflow_scripts.input.conversation import read_conversation
from workflow_scripts.input.messages import MessageReader
from workflow_scripts.input.turn import Turn
from workflow_scripts.input.values import Told


def read(messages: Any, key: str = "messages", rules: Rules = RULES) -> list[Turn]:
    return MessageReader(rules, Told()).turns(messages, key)


# ---- roles ----

# As docs/inputs.md has them.
SPELLED = {
    "system": ["system", "developer", "System"],
    "user": ["user", "human", "prompter", "USER", "Human"],
    "assistant": ["assistant", "gpt", "model", "bot", "chatbot", "chatgpt", "ai", "llm", "AI"],
}


@pytest.mark.parametrize("role", SPELLED)
def test_roles(role: str) -> None:
    for name in SPELLED[role]:
        assert read([{"role": name, "content": "hi"}]) == [Turn(role, "hi")]
        assert read([{"from": name, "value": "hi"}], "conversations") == [Turn(role, "hi")]


def test_a_developers_turn_is_told() -> None:
    told = Told()
    MessageReader(RULES, told).turns([{"role": "developer", "content": "Be short."}], "messages")
    assert told.used == ["developer_as_system"]


def test_an_unknown_role_is_never_guessed() -> None:
    why, message = rejected({"messages": [user("hi"), {"role": "robot9", "content": "hello"}]})
    assert why == "unknown_role"
    assert message.startswith("messages[1] has the role 'robot9'; known: ai, assistant, bot, ")
    for item in ({"content": "hi"}, {"role": None, "content": "hi"}, {"role": 1, "content": "hi"}):
        found = rejected({"conversations": [item]})
        assert found == ("unknown_role", "conversations[0] has no role")


def test_messages_with_both_spellings() -> None:
    """The list's own keys count; where they are null, the others."""
    both = {"role": "user", "content": "hi", "from": "gpt", "value": "hello"}
    assert read([both]) == [Turn("user", "hi")]
    assert read([both], "conversations") == [Turn("assistant", "hello")]
    assert read([{**both, "role": None, "content": None}]) == [Turn("assistant", "hello")]
    assert read([{**both, "from": None}], "conversations") == [Turn("user", "hello")]


def test_other_keys_are_ignored_and_listed() -> None:
    assert read([{**assistant("hello"), "weight": 0, "train": False}]) == [Turn(*HI[1])]
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    chat = [{**user([part]), "name": "Ann"}, assistant("hello", weight=1, name="", refusal=None)]
    found = read_conversation({"messages": chat, "source": "x"}, RULES)
    assert [(turn.role, turn.content) for turn in found.turns] == HI
    parts = "messages[].content[].cache_control"
    assert found.ignored == {parts, "messages[].name", "messages[].weight"}
    assert found.taken == {"messages"}
    both = [{"from": "human", "value": "hi", "role": "user"}, {"from": "gpt", "value": "hello"}]
    assert read_conversation({"conversations": both}, RULES).ignored == {"conversations[].role"}


# ---- lists and contents ----


def test_a_column_in_an_object_goes_by_its_last_name() -> None:
    asked = [Turn("user", "hi"), Turn("assistant", None)]
    assert read(["hi"], "meta.turns") == asked
    assert read(["hi", "hello"], "turns.meta") == [asked[0], Turn(*HI[1])]


@pytest.mark.parametrize(
    ("record", "expected", "told"),
    [
        ({"messages": "hi"}, "bad_content", "`messages` is a str, not a list"),
        ({"messages": []}, "empty_conversation", "`messages` is an empty list"),
        ({"messages": ["hi", "hello"]}, "bad_content", "messages[0] is a str, not an object"),
        ({"messages": [["hi", "hello"]]}, "bad_content", "messages[0] is a list, not an object"),
        ({"messages": [None]}, "bad_content", "messages[0] is a null, not an object"),
        ({"conversation": ["hi"]}, "bad_content", "conversation[0] is a str, not an object"),
        ({"messages": [user(3)]}, "bad_content", "messages[0]: content is a int, not text"),
        ({"messages": [user(None)]}, "null_content", "messages[0] (user) has no content"),
        ({"messages": [user("\ud800")]}, "invalid_encoding", "at character 0 is no text"),
        ({"dialog": [[None, "hello"]]}, "null_content", "dialog, text 0 (user) has no content"),
    ],
)
def test_no_turns(record: dict[str, Any], expected: str, told: str) -> None:
    why, message = rejected(record)
    assert why == expected and message.endswith(told)


def test_content_parts() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "6+6?"}]
    assert turns({"messages": [user(parts)]})[0] == ("user", "What is 6+6?")
    assert turns({"messages": [user([{"type": "input_text", "text": "hi"}])]})[0] == HI[0]
    thought = {"type": "thinking", "thinking": "hm"}
    assert reason({"messages": [user([*parts, thought])]}) == "not_text"
    image = {"type": "image_url", "image_url": {"url": "x.png"}}
    assert reason({"messages": [user([*parts, image])]}) == "not_text"


def test_reasoning_parts() -> None:
    parts = [{"type": "thinking", "thinking": "a"}, {"type": "reasoning", "text": "b"}, "4"]
    assert read([assistant(parts)]) == [Turn("assistant", "4", "a\n\nb")]
    assert read([assistant(parts, thinking="c")]) == [Turn("assistant", "4", "c")]


# ---- tools ----


def test_tool_turns_are_rejected_by_name() -> None:
    record = {"messages": [user("x"), {"role": "tool", "content": "y"}]}
    assert reason(record) == "tool_turn"
    called = assistant(None, tool_calls=[{"function": {"name": "f"}}])
    assert reason({"messages": [user("x"), called]}) == "tool_turn"


@pytest.mark.parametrize("role", ["function_call", "tool_call", "tool_calls"])
def test_turns_that_are_calls(role: str) -> None:
    call = {"name": "add", "arguments": {"a": 2}}
    expected = [Turn("assistant", None, tool_calls=[{"type": "function", "function": call}])]
    text = '{"name": "add", "arguments": {"a": 2}}'
    for content in (text, call, {"function": call}):
        assert read([{"from": role, "value": content}], "conversations", KEEP) == expected
    two = read([{"role": role, "content": f"[{text}, {text}]"}], rules=KEEP)
    assert two[0].tool_calls == [{"type": "function", "function": call}] * 2
    assert reason({"messages": [user("x"), {"role": role, "content": text}]}) == "tool_turn"


@pytest.mark.parametrize("role", ["tool", "function", "observation", "ipython", "tool_response"])
def test_results_of_tools(role: str) -> None:
    where = {"name": "add", "tool_call_id": "c1"}
    found = read([{"role": role, "content": "4", **where}], rules=KEEP)
    assert found == [Turn("tool", "4", origin=where)]
    for content, text in ((None, ""), ({"sum": 4}, '{"sum":4}'), ([1, 2], "[1,2]"), (4, "4")):
        assert read([{"role": role, "content": content}], rules=KEEP) == [Turn("tool", text)]


def test_the_one_call_that_messages_had_before() -> None:
    legacy = assistant(None, function_call={"name": "add", "arguments": "{}"})
    assert read([legacy], rules=KEEP) == [Turn("assistant", None, tool_calls=[READ_CALL])]
    assert reason({"messages": [user("2+2?"), legacy]}) == "tool_turn"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "function_call", "content": "add(2)"}, "bad_tool_call"),
        ({"role": "function_call", "content": '{"arguments": {}}'}, "bad_tool_call"),
        (assistant("y", tool_calls="add"), "bad_tool_call"),
        ({**user("x"), "tool_calls": [CALL]}, "tool_turn"),
    ],
)
def test_calls_that_are_none(message: dict[str, Any], expected: str) -> None:
    assert reason({"messages": [user("x"), message]}, KEEP) == expected

"""Calls of tools, their results, and which of their turns are asked."""

import json
from typing import Any

import pytest

from tests.made.conversations import (
    ALL,
    CALL,
    KEEP,
    READ_CALL,
    RULES,
    assistant,
    reason,
    rejected,
    user,
)
from workflow_scripts.config.audit import Rules
from workflow_scripts.input.conversation import Conversation, read_conversation
from workflow_scripts.input.turn import Turn

RESULT = {"role": "tool", "content": "dry", "tool_call_id": "c1"}
TOOLS = [{"type": "function", "function": {"name": "rain", "parameters": {}}}]


def read(messages: Any, rules: Rules = KEEP, **columns: Any) -> Conversation:
    return read_conversation({"messages": messages, **columns}, rules)


def calling(arguments: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "rain", "arguments": arguments}}
    return assistant(None, tool_calls=[call])


# ---- arguments ----


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"town":"Graz"}', {"town": "Graz"}),
        ({"town": "Graz"}, {"town": "Graz"}),
        ('{"z": 1, "a": null, "of": [null]}', {"z": 1, "a": None, "of": [None]}),
        ({"town": None, "of": [None]}, {"of": [None]}),
        ("", {}),
        (" ", {}),
        ("{}", {}),
        (None, {}),
    ],
)
def test_arguments_are_an_object(arguments: Any, expected: dict[str, Any]) -> None:
    read_as = {"id": "c1", "type": "function", "function": {"name": "rain", "arguments": expected}}
    chat = [user("Rain?"), calling(arguments), RESULT, assistant("No.")]
    (call,) = read(chat).turns[1].tool_calls or []
    assert call == read_as and json.dumps(call["function"]) == json.dumps(read_as["function"])
    legacy = assistant(None, function_call={"name": "rain", "arguments": arguments})
    turn = read([user("Rain?"), legacy, RESULT, assistant("No.")]).turns[1]
    assert turn.tool_calls == [{"type": "function", "function": read_as["function"]}]
    spelled = {"role": "function_call", "content": {"name": "rain", "arguments": arguments}}
    turn = read([user("Rain?"), spelled, RESULT, assistant("No.")]).turns[1]
    assert turn.tool_calls == [{"type": "function", "function": read_as["function"]}]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("town=Graz", "a text that is no JSON object"),
        ("[1]", "a text that is no JSON object"),
        ('{"a": NaN}', "a text that is no JSON object"),
        ([1], "a list"),
        (3, "a int"),
    ],
)
def test_arguments_that_are_no_object(arguments: Any, told: str) -> None:
    chat = [user("Rain?"), calling(arguments), RESULT, assistant("No.")]
    expected = ("bad_tool_call", f"messages[1], call 0: `arguments` is {told}")
    assert rejected({"messages": chat}, KEEP) == expected
    assert reason({"messages": chat}) == "tool_turn"


@pytest.mark.parametrize(
    "calls",
    [json.dumps([CALL]), [{"name": "add", "arguments": "{}"}], [None, CALL]],
    ids=["text", "flat", "padded"],
)
def test_other_spellings_of_a_list_of_calls(calls: Any) -> None:
    turn = read([user("hi"), assistant("", tool_calls=calls), RESULT, assistant("4")]).turns[1]
    assert turn.tool_calls == [READ_CALL]


def test_a_call_turn_keeps_its_id() -> None:
    content = {"id": "c1", "function": {"name": "rain", "arguments": {}}}
    turn = read([user("hi"), {"role": "tool_call", "content": content}, RESULT]).turns[1]
    assert turn.tool_calls == [{"type": "function", **content}]


# ---- calls in texts ----

HERMES = '<tool_call>\n{"name": "rain", "arguments": {"town": "Steyr"}}\n</tool_call>'
CALLS = [{"type": "function", "function": {"name": "rain", "arguments": {"town": "Steyr"}}}]


@pytest.mark.parametrize("rules", [KEEP, ALL])
@pytest.mark.parametrize(
    ("text", "content"),
    [
        (HERMES, None),
        (f"I look.\n{HERMES}", "I look."),
        ("[rain(town='Steyr')]", None),
        (json.dumps(CALLS[0]["function"]), None),
    ],
)
def test_calls_in_texts(text: str, content: str | None, rules: Rules) -> None:
    results = {"from": "tool", "value": "<tool_response>\ndry\n</tool_response>"}
    turns = [{"from": "human", "value": "Rain?"}, {"from": "gpt", "value": text}, results]
    record = {"conversations": [*turns, {"from": "gpt", "value": "No rain."}]}
    found = read_conversation(record, rules)
    assert found.turns == [
        Turn("user", "Rain?"),
        Turn("assistant", content, tool_calls=CALLS),
        Turn("tool", "dry"),
        Turn("assistant", "No rain."),
    ]
    assert set(found.used) == {"tool_turns", "calls_in_text", "tool_response_unwrapped"}
    assert reason(record) == "tool_turn"


def test_a_reasoning_before_a_call_stays_a_reasoning() -> None:
    text = f"<think>\nA <tool_call> is due.\n</think>\n\n{HERMES}"
    turn = read([user("Rain?"), assistant(text), RESULT]).turns[1]
    assert (turn.reasoning, turn.content, turn.tool_calls) == ("A <tool_call> is due.", "", CALLS)


def test_a_call_in_an_unknown_form_is_told() -> None:
    chat = [user("Rain?"), assistant("CALL rain WITH Graz"), RESULT, assistant("No.")]
    why, message = rejected({"messages": chat}, KEEP)
    assert why == "tool_order" and "in a form that is not known" in message


def test_a_text_that_no_result_follows_stays_text() -> None:
    for chat in (
        [user("Write JSON."), assistant(HERMES)],
        [user("a"), assistant(HERMES), user("b")],
    ):
        found = read(chat)
        assert found.turns[1].content == HERMES and not found.turns[1].tool_calls


def test_several_results_in_one_text() -> None:
    text = "<tool_response>\na\n</tool_response>\n<tool_response>\nb\n\nc</tool_response>"
    found = read([user("Rain?"), calling("{}"), {"role": "tool", "content": text, "name": "rain"}])
    name = {"name": "rain"}
    assert found.turns[2:4] == [Turn("tool", "a", origin=name), Turn("tool", "b\n\nc", origin=name)]
    for partly in ("dry <tool_response>x</tool_response>", f"{text * 40} dry"):
        turn = read([user("Rain?"), calling("{}"), {"role": "tool", "content": partly}]).turns[2]
        assert turn.content == partly


# ---- which turns are asked ----


def test_calls_are_asked_under_regenerate() -> None:
    chat = [user("Rain?"), calling("{}"), RESULT, assistant("No."), user("Snow?"), calling("{}")]
    kept, asked = read(chat), read(chat, ALL)
    assert not kept.asks_calls and asked.asks_calls
    assert [bool(turn.tool_calls) for turn in kept.responses()] == [False]
    assert [bool(turn.tool_calls) for turn in asked.responses()] == [True, False, True]
    assert "trailing_call_dropped" in kept.used and "trailing_call_dropped" not in asked.used


def test_a_conversation_of_calls_alone() -> None:
    chat = [user("Rain?"), calling("{}")]
    assert reason({"messages": chat}, KEEP) == "only_tool_calls"
    assert [turn.role for turn in read(chat, ALL).turns] == ["user", "assistant"]
    open_end = read([*chat, RESULT], ALL)
    assert [turn.role for turn in open_end.responses()] == ["assistant"] * 2
    assert open_end.turns[-1] == Turn("assistant", None)
    assert reason({"messages": [*chat, assistant("No.")]}, ALL) == "tool_order"


# ---- a response that is calls ----

FUNCTION = {"name": "rain", "arguments": {"town": "Linz"}}


@pytest.mark.parametrize(
    "answers", [json.dumps([FUNCTION]), [FUNCTION], FUNCTION, [{"function": FUNCTION}]]
)
def test_a_response_of_calls(answers: Any) -> None:
    for name in ("answers", "response", "output"):
        record = {"id": 1, "query": "Rain?", name: answers, "tools": json.dumps(TOOLS)}
        for rules in (RULES, KEEP):
            found = read_conversation(record, rules)
            assert found.turns == [Turn("user", "Rain?"), Turn("assistant", None)]
            assert found.used == ["call_response_left_out"]
            assert found.given.tools == TOOLS and found.taken == set(record)
        found = read_conversation(record, ALL)
        (call,) = found.responses()[0].tool_calls or []
        assert call["function"] == FUNCTION
        assert found.used == ["tool_turns"]


def test_json_without_tools_is_an_answer() -> None:
    text = json.dumps([FUNCTION])
    found = read_conversation({"prompt": "Write a call.", "response": text}, ALL)
    assert found.turns[1] == Turn("assistant", text) and found.used == []


def test_bad_calls_in_a_response() -> None:
    answers = [{"name": "rain", "arguments": "town"}]
    record = {"query": "Rain?", "answers": json.dumps(answers), "tools": TOOLS}
    assert reason(record, ALL) == "bad_tool_call"

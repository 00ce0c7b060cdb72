"""The forms that datasets come in: which columns hold the conversation, and which of them wins."""

from typing import Any

import pytest

from tests.made.conversations import HI, RULES, assistant, reason, rejected, user
from workflow_scripts.config.audit import Columns
from workflow_scripts.input.dialects import read_turns
from workflow_scripts.input.messages import MessageReader
from workflow_scripts.input.record import Record
from workflow_scripts.input.turn import Turn
from workflow_scripts.input.values import Told

Pairs = list[tuple[str, str | None]]
SHAREGPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
MESSAGES = [user("hi"), assistant("hello")]
TWICE = [*HI, ("user", "bye"), ("assistant", "ciao")]


def opened(values: dict[str, Any], **columns: Any) -> Record:
    told = Told()
    return Record(values, Columns(**columns), MessageReader(RULES, told), told)


def read(values: dict[str, Any], **columns: Any) -> Pairs:
    return [(turn.role, turn.content) for turn in read_turns(opened(values, **columns))]


def used(values: dict[str, Any]) -> list[str]:
    record = opened(values)
    read_turns(record)
    return record.told.used


# ---- each form ----

FORMS: dict[str, tuple[dict[str, Any], Pairs]] = {
    "ShareGPT": ({"conversations": SHAREGPT}, HI),
    "messages": ({"messages": MESSAGES}, HI),
    "messages with ShareGPT's keys": ({"messages": SHAREGPT}, HI),
    "conversations with the keys of messages": ({"conversations": MESSAGES}, HI),
    "conversation of messages": ({"conversation": MESSAGES}, HI),
    "conversation of pairs": ({"conversation": [["hi", "hello"], ["bye", "ciao"]]}, TWICE),
    "prompt and response": ({"prompt": "hi", "response": "hello"}, HI),
    "question and answer": ({"question": "hi", "answer": "hello"}, HI),
    "query and completion": ({"query": "hi", "completion": "hello"}, HI),
    "a prompt alone": ({"prompt": "hi"}, HI[:1]),
    "lists before and after": ({"prompt": [user("hi")], "completion": [assistant("hello")]}, HI),
    "a list before, a text after": (
        {"prompt": [*MESSAGES, user("bye")], "response": "ciao"},
        TWICE,
    ),
    "Alpaca": ({"instruction": "hi", "input": "", "output": "hello"}, HI),
    "Alpaca with an input": (
        {"instruction": "Add.", "input": "1 2", "output": "3"},
        [("user", "Add.\n\n1 2"), ("assistant", "3")],
    ),
    "Alpaca with a history": (
        {"instruction": "bye", "input": "", "output": "ciao", "history": [["hi", "hello"]]},
        TWICE,
    ),
    "Alpaca with an empty history": ({"instruction": "hi", "output": "hello", "history": []}, HI),
    "Self-Instruct": (
        {"instruction": "Add.", "instances": [{"input": "1 2", "output": "3"}]},
        [("user", "Add.\n\n1 2"), ("assistant", "3")],
    ),
    "Self-Instruct without an input": (
        {"instruction": "hi", "instances": [{"input": "", "output": "hello"}]},
        HI,
    ),
    "preferences, whole conversations": ({"chosen": MESSAGES, "rejected": [user("hi")]}, HI),
    "preferences of texts": ({"prompt": "hi", "chosen": "hello", "rejected": "what"}, HI),
    "preferences, the prompt apart": (
        {"prompt": [user("hi")], "chosen": [assistant("hello")], "rejected": [assistant("no")]},
        HI,
    ),
    "preferences that repeat the prompt": ({"prompt": "hi", "chosen": MESSAGES}, HI),
    "texts in turn": ({"data": ["hi", "hello", "bye", "ciao"], "id": "0"}, TWICE),
    "texts in turn, the last to be answered": ({"dialogue": ["hi", "hello", "bye"]}, TWICE[:3]),
    "pairs under a common name": ({"dialog": [["hi", "hello"], ["bye", "ciao"]]}, TWICE),
    "a pair whose answer is missing": ({"items": [["hi", None]]}, [HI[0], ("assistant", None)]),
    "messages under a common name": ({"items": SHAREGPT}, HI),
    "a null list beside a prompt": (
        {"messages": None, "prompt": "hi", "response": None, "answer": "hello"},
        HI,
    ),
    "a null prompt beside a list": ({"prompt": None, "messages": MESSAGES}, HI),
    "turns of messages": ({"turns": MESSAGES}, HI),
    "turns of a user's texts": (
        {"turns": ["hi", "bye"]},
        [HI[0], ("assistant", None), TWICE[2], ("assistant", None)],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form(name: str) -> None:
    record, expected = FORMS[name]
    assert read(record) == expected


def test_reasoning_beside_a_response() -> None:
    for name in ("reasoning_content", "reasoning", "thinking", "reasoning_text", "thought"):
        record = {"prompt": "hi", "response": "hello", name: "They greet."}
        answer = Turn("assistant", "hello", "They greet.")
        assert read_turns(opened(record))[1:] == [answer]
    del record["response"]
    assert read_turns(opened(record))[1:] == [Turn("assistant", None, "They greet.")]


def test_the_first_instance_of_an_instruction_counts() -> None:
    pairs = [{"input": "1 2", "output": "3"}, {"input": "2 2", "output": "4"}]
    record = {"instruction": "Add.", "instances": pairs}
    assert read(record) == [("user", "Add.\n\n1 2"), ("assistant", "3")]
    assert used(record) == ["first_instance_taken"]
    assert used({**record, "instances": pairs[:1]}) == []
    own = {**record, "output": "5"}  # an output of its own: the instances are something else
    assert read(own) == [("user", "Add."), ("assistant", "5")]


# ---- which wins ----

ORDER = ["messages", "conversations", "conversation", "instruction", "prompt", "question", "query"]
ORDER += ["chosen", "items", "dialogue", "dialog", "turns", "data"]


def test_the_first_form_that_is_not_null_wins() -> None:
    record: dict[str, Any] = {key: [user(key)] for key in ORDER}
    record |= {"instruction": "instruction", "response": "hello"}  # so that `chosen` is no response
    for key in ORDER:
        assert read(record)[0] == ("user", key)
        record[key] = None
    assert rejected(record) == ("null_conversation", "`messages` is null")


def test_the_first_response_that_is_not_null_wins() -> None:
    names = ["response", "completion", "answer", "output", "chosen"]
    record: dict[str, Any] = {"prompt": "hi", **{name: name for name in names}}
    for name in names:
        assert read(record) == [HI[0], ("assistant", name)]
        record[name] = None
    assert read(record) == HI[:1]


def test_a_response_belongs_to_a_prompt_only() -> None:
    assert read({"messages": [user("hi")], "response": "hello"}) == HI[:1]
    assert read({"messages": [user("hi")], "old": "hello"}, response="old") == HI


def test_a_system_prompt_beside_the_turns() -> None:
    system = ("system", "Be short.")
    record: dict[str, Any] = {"conversations": SHAREGPT, "system": "Be short."}
    assert read(record) == [system, *HI]
    assert read({"prompt": "hi", "response": "hello", "system_prompt": "Be short."})[0] == system
    assert read({**record, "system_prompt": "Be kind."})[0] == system
    assert read({**record, "system": None, "system_prompt": "Be short."})[0] == system
    assert read({**record, "system": ""}) == HI
    assert read({"prompt": "hi", "chosen": MESSAGES, "system": "Be short."}) == [system, *HI]
    assert reason({"messages": [user("hi")], "system": {"text": "x"}}) == "bad_content"


def test_a_system_turn_wins_over_the_column() -> None:
    turns = [{"from": "system", "value": "Be kind."}, *SHAREGPT]
    record = {"conversations": turns, "system": "Be short."}
    assert read(record) == [("system", "Be kind."), *HI]
    assert used(record) == ["system_column_ignored"]
    assert used({**record, "system": "Be kind."}) == []


# ---- columns that the configuration names ----


def test_forced_columns() -> None:
    record = {
        "messages": [user("x")],
        "meta": {"question": "hi", "old": {"answer": "hello", "why": "They greet."}},
        "rules": "Be short.",
        "chat": MESSAGES,
    }
    assert read(record, messages="chat") == HI
    assert read(record, messages="chat", prompt="rules") == HI
    names = {"prompt": "meta.question", "response": "meta.old.answer"}
    names |= {"system": "rules", "reasoning": "meta.old.why"}
    assert read_turns(opened(record, **names)) == [
        Turn("system", "Be short."),
        Turn("user", "hi"),
        Turn("assistant", "hello", "They greet."),
    ]
    assert read({"a.b": "hi", "a": {"b": "x"}}, prompt="a.b") == HI[:1]
    assert read({"prompt": "hi", "old": "hello"}, response="old") == HI


def test_a_named_column_is_the_only_one() -> None:
    record = {"prompt": "hi", "response": "x", "system": "x", "reasoning": "x", "old": "hello"}
    names = {"response": "old", "system": "none", "reasoning": "none"}
    assert read_turns(opened(record, **names))[1:] == [Turn("assistant", "hello")]
    assert read(record, **names) == HI
    assert read(record, response="none", system="none", reasoning="none") == HI[:1]


def test_a_named_column_that_is_missing() -> None:
    record = {"meta": {"question": "hi"}, "messages": MESSAGES, "prompt": None}
    for columns in (
        Columns(prompt="meta.answer"),
        Columns(prompt="prompt"),
        Columns(messages="conversations"),
    ):
        why, message = rejected(record, columns=columns)
        assert why == "missing_column" and message.endswith("columns: messages, meta, prompt")


# ---- none ----


@pytest.mark.parametrize(
    ("record", "expected", "told"),
    [
        ({"conversation": None, "id": 3}, "null_conversation", "`conversation` is null"),
        ({"query": None}, "bad_content", "`query` is a null, not text"),
        ({"prompt": ["hi"]}, "bad_content", "`prompt` is a list, not text"),
        ({"prompt": 3}, "bad_content", "`prompt` is a int, not text"),
        ({"instruction": "hi", "input": 3}, "bad_content", "`input` is a int, not text"),
        ({"prompt": "hi", "response": 3}, "bad_content", "response: content is a int, not text"),
        ({"instruction": None}, "no_conversation", "columns: instruction"),
        ({"chosen": ["hi", "hello"]}, "no_conversation", "columns: chosen"),
        ({"items": [1, 2], "data": {}, "turns": 3}, "no_conversation", "data, items, turns"),
        ({}, "no_conversation", "columns: none"),
        ({name: 1 for name in "jihgfedcba"}, "no_conversation", "columns: a, b, c, d, e, f, g, h"),
    ],
)
def test_no_conversation(record: dict[str, Any], expected: str, told: str) -> None:
    why, message = rejected(record)
    assert why == expected and message.endswith(told)

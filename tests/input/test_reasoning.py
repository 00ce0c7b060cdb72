"""What counts as an old response's reasoning, and what does not."""

from typing import Any

import pytest

from tests.made.conversations import RULES, assistant, rejected, user
from workflow_scripts.input.conversation import Conversation, read_conversation


def read(**message: Any) -> Conversation:
    return read_conversation({"messages": [user("2+2?"), assistant("4", **message)]}, RULES)


def trace(value: Any, key: str = "reasoning") -> str | None:
    return read(**{key: value}).turns[-1].reasoning


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Two and two.", "Two and two."),
        (["first", "then"], "first\n\nthen"),
        ([{"type": "text", "text": "first"}, {"text": "then"}], "first\n\nthen"),
        ({"content": "one and six"}, "one and six"),
        ({"text": "one and six", "effort": "high"}, "one and six"),
        ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}, "short"),
        ("High numbers are hard.", "High numbers are hard."),
    ],
)
def test_forms(value: Any, expected: str) -> None:
    assert trace(value) == expected
    record = {"prompt": "2+2?", "response": "4", "reasoning": value}
    found = read_conversation(record, RULES)
    assert found.turns[-1].reasoning == expected and found.taken == set(record)


def test_details() -> None:
    """As OpenRouter gives them."""
    details = [
        {"type": "reasoning.summary", "summary": "Added.", "format": "x"},
        {"type": "reasoning.text", "text": "Two and two.", "signature": "s"},
        {"type": "reasoning.encrypted", "data": "ff"},
    ]
    found = read(reasoning_details=details)
    assert found.turns[-1].reasoning == "Added.\n\nTwo and two."
    parts = "messages[].reasoning_details[]"
    assert found.ignored == {f"{parts}.{key}" for key in ("format", "signature", "data")}
    assert trace([details[-1]], "reasoning_details") is None
    assert read(reasoning_details=[details[-1]]).ignored >= {"messages[].reasoning_details"}


SWITCHES = ["on", "Off", "true", "no", "none", "auto", "low", "medium", "high", "minimal", "max"]
SWITCHES += ["xhigh", "enabled", "disabled", "no_think", " on ", "/think"]


@pytest.mark.parametrize(
    "value", [*SWITCHES, True, False, 3, 0.5, ["on"], {"effort": "high"}, {"enabled": True}]
)
def test_switches_are_no_trace(value: Any) -> None:
    for key in ("reasoning", "thinking", "reasoning_content"):
        found = read(**{key: value})
        assert found.turns[-1].reasoning is None
        assert found.used == ["reasoning_switch_ignored"]
    beside = read(reasoning=value, thought="Two and two.")
    assert beside.turns[-1].reasoning == "Two and two."


@pytest.mark.parametrize("value", ["", "  \n", [], {}, [""], None, {"content": ""}])
def test_what_is_empty_is_no_trace(value: Any) -> None:
    found = read(reasoning=value)
    assert found.turns[-1].reasoning is None and found.used == []


def test_what_is_neither() -> None:
    record = {"messages": [user("hi"), assistant("4", reasoning={"steps": "a b"})]}
    found = rejected(record)
    assert found == ("bad_reasoning", "messages[1].reasoning is no text: an object of steps")


def test_of_two_the_second_is_listed() -> None:
    found = read(reasoning_content="Two and two.", thought="Another.")
    assert found.turns[-1].reasoning == "Two and two."
    assert found.ignored == {"messages[].thought"}
    parts = [{"type": "thinking", "thinking": "Another."}, {"type": "text", "text": "4"}]
    message = assistant(parts, reasoning_content="Two and two.")
    found = read_conversation({"messages": [user("2+2?"), message]}, RULES)
    assert found.turns[-1].reasoning == "Two and two."
    assert found.ignored == {"messages[].content[].thinking"}


FAMILIES = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
]


@pytest.mark.parametrize(("opener", "closer"), FAMILIES)
def test_marks_of_families(opener: str, closer: str) -> None:
    def split(text: str) -> tuple[str | None, str | None]:
        turn = read_conversation({"messages": [user("2+2?"), assistant(text)]}, RULES).turns[-1]
        return turn.reasoning, turn.content

    assert split(f"{opener}\nTwo.\n{closer}\n\n4") == ("Two.", "4")
    assert split(f"  {opener}Two.{closer}4") == ("Two.", "4")
    assert split(f"{opener}\n\n{closer}\n\n4") == (None, "4")
    assert split(f"{opener}on{closer}4") == (None, "4")
    assert split(f"{opener}{closer}") == ("", "")  # the audit calls it `empty_think`
    for text in (f"So {opener}Two.{closer}4", f"{opener} is a mark."):
        assert split(text) == (None, text)

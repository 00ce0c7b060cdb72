"""The reasoning of an old response: beside it, in its parts, or in its text between marks."""

import re
from typing import Any

from workflow_scripts.input.reject import Reject
from workflow_scripts.input.turn import Turn
from workflow_scripts.input.values import Told, is_nothing

REASONING_KEYS = (
    "reasoning_content",
    "reasoning",
    "thinking",
    "reasoning_text",
    "thought",
    "reasoning_details",
)
INSIDE = ("text", "content", "thinking", "reasoning", "summary")  # where an object holds its text
# What switches a reasoning on or says how much of it is wanted.
SWITCHES = frozenset(
    {"on", "off", "true", "false", "yes", "no", "none", "null", "auto", "default", "adaptive"}
    | {"low", "medium", "high", "minimal", "max", "xhigh", "interleaved", "detailed", "concise"}
    | {"enabled", "disabled", "enable", "disable", "think", "thinking", "nothink"}
    | {"no_think", "/think", "/no_think"}
)
# How families of models open and close their reasoning.
MARKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
CLOSERS = dict(MARKS)
OPENED = re.compile(rf"\s*({'|'.join(re.escape(opener) for opener, _ in MARKS)})")


def reasoning_of(item: dict[str, Any], where: str, told: Told) -> tuple[str | None, set[str]]:
    """The reasoning of an object that holds an answer, and the keys that were read for it.

    Raises:
        Reject: it is neither text nor a switch.
    """
    read: set[str] = set()
    for key in (key for key in REASONING_KEYS if key in item):
        if is_nothing(value := item.get(key)):
            continue
        rules = len(told.used)
        text = trace(value, f"{where}.{key}" if where else key, told)
        if text or len(told.used) > rules:  # one that holds nothing is listed as ignored
            read.add(key)
        if text:
            return text, read
    return None, read


def trace(value: Any, where: str, told: Told) -> str | None:
    """A reasoning's text: of a text, of a list of texts or parts, or of an object that holds one.
    None where it is empty or a switch.

    Raises:
        Reject: it is none of these.
    """
    texts = [text for text in _texts(value, where, told) if text.strip()]
    words = [text for text in texts if not is_switch(text)]
    if texts and not words:
        told.used.append("reasoning_switch_ignored")
    return "\n\n".join(words) or None


def is_switch(text: str) -> bool:
    return text.strip().casefold() in SWITCHES


def _texts(value: Any, where: str, told: Told) -> list[str]:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Reject("invalid_encoding", f"{where}: a lone surrogate is no text") from None
        return [value]
    if isinstance(value, bool | int | float):
        return ["on"]
    if value is None:
        return []
    if isinstance(value, list):
        items = (_texts(item, f"{where}[{n}]", told) for n, item in enumerate(value))
        return [text for texts in items for text in texts]
    held = {k: v for k, v in value.items() if k != "type" and not is_nothing(v)}
    key = next((key for key in INSIDE if key in held), None)
    if key is not None:
        told.ignore(held, {key}, where)
        return _texts(held[key], f"{where}.{key}", told)
    if str(value.get("type")).endswith(".encrypted"):
        told.ignore(held, (), where)
        return []
    if all(
        isinstance(v, bool | int | float) or (isinstance(v, str) and is_switch(v))
        for v in held.values()
    ):
        return ["on"] if held else []
    keys = ", ".join(sorted(value))
    raise Reject("bad_reasoning", f"{where} is no text: an object of {keys}")


def split_marked(turn: Turn, told: Told) -> bool:
    """Take the reasoning between marks out of a response's text. Only at its start: marks inside an
    answer are the answer's text. Returns whether there was any."""
    text = turn.content or ""
    if not (opened := OPENED.match(text)):
        return False
    inside, closer, after = text[opened.end() :].partition(CLOSERS[opened[1]])
    if not closer:
        return False
    take(turn, inside, after, told)
    return True


def take(turn: Turn, inside: str, after: str, told: Told) -> None:
    """Make a text's two parts reasoning and answer. A blank reasoning is none, but of a response
    that holds nothing else it is all that there is."""
    turn.content = after.lstrip("\n")
    if is_switch(inside):
        told.used.append("reasoning_switch_ignored")
    elif inside.strip() or not after.strip():
        turn.reasoning = inside.strip("\n")

"""Calls of tools and their results, as messages spell them."""

import re
from typing import Any

import orjson

from workflow_scripts.input.calls_in_text import arguments_of, calls_in
from workflow_scripts.input.contents import is_media, text_of
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.turn import Turn
from workflow_scripts.input.values import Told, from_json, is_nothing, kind_of, without_nulls

CALL_KEYS = frozenset({"tool_calls", "function_call"})
RESPONSES = re.compile(r"\s*(?:<tool_response>(?>.*?</tool_response>)\s*)+\Z", re.DOTALL)
RESPONSE = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)


def calls_of(item: dict[str, Any]) -> Any:
    """The calls of a message, None where it has none: a list, its text in JSON, or the one call
    that messages had before `tool_calls`."""
    if CALL_KEYS.isdisjoint(item):
        return None
    calls = item.get("tool_calls")
    decoded = from_json(calls)
    if decoded is calls and isinstance(calls, list):
        decoded = without_nulls([call for call in calls if call is not None])
    if not is_nothing(decoded):
        return decoded
    call = item.get("function_call")
    decoded = from_json(call)
    if decoded is call:
        decoded = without_nulls(call)
    return None if is_nothing(decoded) else [decoded]


def checked_calls(calls: Any, where: str) -> list[Any]:
    """Calls as templates read them: each with a `function` that has a name, and its arguments as an
    object. What else they hold stays.

    Raises:
        Reject: one is none.
    """
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Reject("bad_tool_call", f"{where}: `tool_calls` is no list of objects")
    found = []
    for index, call in enumerate(calls):
        place = f"{where}, call {index}"
        if "function" not in call:
            beside = {key: call[key] for key in ("id", "type", "index") if key in call}
            inside = {key: value for key, value in call.items() if key not in beside}
            call = {"type": "function", **beside, "function": inside}
        function = call["function"]
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name.strip():
            raise Reject("bad_tool_call", f"{place} has no function with a name")
        arguments = arguments_of(function.get("arguments"))
        if arguments is None:
            kind = kind_of(function["arguments"])
            what = "a text that is no JSON object" if kind == "str" else f"a {kind}"
            raise Reject("bad_tool_call", f"{place}: `arguments` is {what}")
        found.append({**call, "function": {**function, "arguments": arguments}})
    _json(found, where)
    return found


def spelled_calls(content: Any, where: str) -> list[Any]:
    """The calls that a turn of their own holds, as JSON or in a form of `calls_in_text`."""
    decoded = from_json(content)
    if isinstance(decoded, str):
        told = calls_in(decoded)
        if told is None or told[0]:
            raise Reject("bad_tool_call", f"{where} is no call in JSON with a name")
        return told[1]
    calls = decoded if isinstance(decoded, list) else [decoded]
    if decoded is content:
        calls = without_nulls(calls)
    return [{"type": "function", **call} for call in checked_calls(calls, where)]


def told_calls(value: Any) -> bool:
    """Whether a response's value is a list of calls, or one: each with a name, and arguments or
    within `function`."""
    calls = value if isinstance(value, list) else [value]
    return bool(calls) and all(map(_is_call, calls))


def _is_call(value: Any) -> bool:
    if not isinstance(value, dict) or not ("arguments" in value or "function" in value):
        return False
    function = value.get("function", value)
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def unfolded(turns: list[Turn], told: Told) -> list[Turn]:
    """Turns with the calls that stand in texts as `tool_calls`, where results follow, and results
    without the wrapper that a template writes itself."""
    found: list[Turn] = []
    for turn in turns:
        if turn.role != "tool":
            found.append(turn)
            continue
        if found and found[-1].role == "assistant" and not found[-1].tool_calls:
            _take_calls(found[-1], told)
        if RESPONSES.match(turn.content or ""):
            told.used.append("tool_response_unwrapped")
            texts = (text.strip("\n") for text in RESPONSE.findall(turn.content or ""))
            found += [Turn("tool", text, origin=turn.origin) for text in texts]
        else:
            found.append(turn)
    return found


def _take_calls(turn: Turn, told: Told) -> None:
    thought, closer, text = (turn.content or "").rpartition("</think>")
    if calls := calls_in(text):
        told.used.append("calls_in_text")
        turn.content = thought + closer + calls[0] or None
        turn.tool_calls = calls[1]


def tool_text(content: Any, where: str, told: Told, parts: str) -> str:
    if content is None:
        return ""
    if isinstance(content, list):
        try:
            return text_of(content, where, told, parts=parts)
        except Reject:
            if any(isinstance(part, dict) and is_media(part) for part in content):
                raise
    return text_of(content, where) if isinstance(content, str) else _json(content, where)


def _json(value: Any, where: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise Reject("bad_content", f"{where}: {error}") from None

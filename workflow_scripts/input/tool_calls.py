"""Calls of tools and their results, as messages spell them."""

from typing import Any

import orjson

from workflow_scripts.input.contents import text_of
from workflow_scripts.input.reject import Reject


def without_nulls(value: Any) -> Any:
    """Without the nulls that a table puts where an object lacks a key that others have."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value if item is not None]
    return value


def legacy_call(item: dict[str, Any]) -> list[Any] | None:
    """The one call that messages had before `tool_calls`."""
    call = without_nulls(item.get("function_call"))
    return [{"type": "function", "function": call}] if call else None


def spelled_calls(content: Any, where: str) -> list[Any]:
    """The calls that a turn of their own holds as JSON."""
    try:
        found = orjson.loads(content) if isinstance(content, str) else content
    except orjson.JSONDecodeError:
        found = None
    calls = []
    for call in found if isinstance(found, list) else [found]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Reject("bad_tool_call", f"{where} is no call in JSON with a name")
        calls.append({"type": "function", "function": function})
    return checked_calls(calls, where)


def checked_calls(calls: Any, where: str) -> list[Any]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Reject("bad_tool_call", f"{where}: `tool_calls` is no list of objects")
    _json(calls, where)
    return calls


def tool_text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, list):
        try:
            return text_of(content, where)
        except Reject:
            return _json(content, where)
    return text_of(content, where) if isinstance(content, str) else _json(content, where)


def _json(value: Any, where: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise Reject("bad_content", f"{where}: {error}") from None

"""Readers of one call, of the kinds that forms are made of (`call_forms.py`).

A reader takes a text and an index and returns the call, or list of calls, that begins there and the
index after it; None where none begins. It raises Broken where one begins and cannot be read.
"""

import re
from collections.abc import Callable
from typing import Any

from workflow_scripts.model.call_values import (
    Broken,
    gemma_object,
    json_at,
    json_value,
    kinds,
    python_calls,
    schema_of,
    typed,
)

Call = dict[str, Any]
Tools = list[Any] | None
Reader = Callable[[str, int, Tools], tuple[list[Call], int] | None]


def _call(name: Any, arguments: Any, own_id: Any = None) -> Call:
    if isinstance(arguments, str):  # JSON in JSON
        arguments = json_value(arguments)
    if not isinstance(name, str) or not name:
        raise Broken("a call without a name")
    if not isinstance(arguments, dict):
        raise Broken("arguments that are no object")
    call: Call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": own_id, **call} if isinstance(own_id, str) and own_id else call


def call_of(value: Any) -> Call:
    """A call written as one JSON object."""
    if not isinstance(value, dict):
        raise Broken("a call that is no object")
    inner = value.get("function")
    function = inner if isinstance(inner, dict) else value
    arguments = next((function[k] for k in ("arguments", "parameters") if k in function), None)
    own_id = value.get("id", value.get("tool_call_id"))
    name = function.get("name", function.get("tool_name"))
    return _call(name, {} if arguments is None else arguments, own_id)


def keyed_call(value: Any) -> Call:
    """A call written as an object whose one key is the name."""
    if not isinstance(value, dict) or len(value) != 1:
        raise Broken("a call that is no object of one key")
    ((name, arguments),) = value.items()
    return _call(name, arguments)


def as_json(head: str, tail: str = "", call: Callable[[Any], Call] = call_of) -> Reader:
    """A call, or a list of calls, as JSON between marks."""
    begins, ends = re.compile(head + r"\s*(?=[\[{])"), re.compile(r"\s*" + tail)

    def read(text: str, at: int, _: Tools) -> tuple[list[Call], int] | None:
        if (found := begins.match(text, at)) is None:
            return None
        value, end = json_at(text, found.end())
        return list(map(call, value if isinstance(value, list) else [value])), _after(
            ends, text, end
        )

    return read


def named(head: str, tail: str = "") -> Reader:
    """A name in the head (group `name`, perhaps `id`), arguments as JSON behind it."""
    begins, ends = re.compile(head + r"\s*"), re.compile(r"\s*" + tail)

    def read(text: str, at: int, _: Tools) -> tuple[list[Call], int] | None:
        if (found := begins.match(text, at)) is None:
            return None
        arguments, end = json_at(text, found.end())
        call = _call(found["name"], arguments, found.groupdict().get("id"))
        return [call], _after(ends, text, end)

    return read


def tagged(head: str, opener: str, key: str, closer: str, tail: str, edge: str = "") -> Reader:
    """A name in the head, then for each argument `opener`, `key` (a pattern with groups `key` and
    perhaps `kind`, the value's type), the value between `edge`s, and `closer`."""
    begins, ends = re.compile(head), re.compile(r"\s*" + tail)
    argument = re.compile(
        rf"\s*{opener}{key}(?:<!\[CDATA\[(?P<cdata>.*?)\]\]>|{edge}(?P<value>.*?){edge}){closer}",
        re.DOTALL,
    )

    def read(text: str, at: int, tools: Tools) -> tuple[list[Call], int] | None:
        if (found := begins.match(text, at)) is None:
            return None
        name = found["name"].strip()
        schema, arguments, end = schema_of(tools, name), dict[str, Any](), found.end()
        while item := argument.match(text, end):
            # what was not closed would swallow the next argument
            if item["key"] in arguments or re.search(opener, item["value"] or ""):
                raise Broken(f"the argument {item['key']}")
            arguments[item["key"]] = _value(item, schema.get(item["key"]))
            end = item.end()
        return [_call(name, arguments)], _after(ends, text, end)

    return read


def _value(item: re.Match[str], schema: Any) -> Any:
    kind = item.groupdict().get("kind")
    if item["cdata"] is not None:
        return item["cdata"]
    if kind is None:
        return typed(item["value"], schema)
    return item["value"] if kind in ("true", "string") else json_value(item["value"])


def pythonic(head: str, tail: str) -> Reader:
    """A list of Python calls; with a tail it ends at the first one that leaves a whole list."""
    begins, ends = re.compile(head), re.compile(tail or r"\Z")

    def read(text: str, at: int, _: Tools) -> tuple[list[Call], int] | None:
        if (found := begins.match(text, at)) is None:
            return None
        why = Broken("no end of the calls")
        for end in ends.finditer(text, found.end()):
            try:
                calls = python_calls(text[found.end() : end.start()])
                return [_call(name, arguments) for name, arguments in calls], end.end()
            except Broken as error:
                why = error
        raise why

    return read


def gemma(text: str, at: int, _: Tools) -> tuple[list[Call], int] | None:
    found = re.compile(r"<\|tool_call>call:(?P<name>[^\s{]+)(?=\{)").match(text, at)
    if found is None:
        return None
    arguments, end = gemma_object(text, found.end())
    return [_call(found["name"], arguments)], _after(re.compile(r"<tool_call\|>"), text, end)


M3 = "]<]minimax[>["
M3_HEAD = re.compile(re.escape(M3) + r'<invoke name="(?P<name>[^"]+)">')
M3_OPEN = re.compile(rf"\s*{re.escape(M3)}<(?P<key>[^<>/]+)>")


def minimax_m3(text: str, at: int, tools: Tools) -> tuple[list[Call], int] | None:
    """MiniMax-M3's: lists and objects are marks within marks, like XML."""
    if (found := M3_HEAD.match(text, at)) is None:
        return None
    schema = {"type": "object", "properties": schema_of(tools, found["name"])}
    arguments, end = _nested(text, found.end(), schema, "invoke")
    return [_call(found["name"], arguments or {})], end


def _nested(text: str, at: int, schema: Any, name: str) -> tuple[Any, int]:
    """The value up to the mark that closes `name`, and the index after that."""
    closer, allowed = f"{M3}</{name}>", kinds(schema)
    of_schema = schema if isinstance(schema, dict) else {}
    items: list[tuple[str, Any]] = []
    end = at
    while item := M3_OPEN.match(text, end):
        key = item["key"]
        inner = of_schema.get("properties", {}).get(key)
        inner = of_schema.get("items") if "array" in allowed else inner
        value, end = _nested(text, item.end(), inner, key)
        items.append((key, value))
    if items:
        names = [key for key, _ in items]
        if "array" in allowed or ("object" not in allowed and set(names) == {"item"}):
            found: Any = [value for _, value in items]
        elif len(found := dict(items)) < len(items):
            raise Broken("a key twice")
        return found, _after(re.compile(r"\s*" + re.escape(closer)), text, end)
    stop = text.find(closer, at)
    raw = text[at:stop] if stop >= 0 else M3
    if M3 in raw or (not raw and "string" not in allowed and name != "invoke"):
        raise Broken(f"the value of {name}")  # without an end, or empty, which says too little
    return (None if name == "invoke" else typed(raw, schema)), stop + len(closer)


def first_of(*readers: Reader) -> Reader:
    def read(text: str, at: int, tools: Tools) -> tuple[list[Call], int] | None:
        return next((found for one in readers if (found := one(text, at, tools))), None)

    return read


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    if (found := pattern.match(text, at)) is None:
        raise Broken(f"not ended by {pattern.pattern}")
    return found.end()

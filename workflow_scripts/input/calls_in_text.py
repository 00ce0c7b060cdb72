"""Calls of tools that an old response spells in its text, as models write them.

Known forms, each with one call or several and nothing after the last:
Hermes `<tool_call>{json}</tool_call>`, `<functioncall> {json}`, Mistral `[TOOL_CALLS][{json}]` and
`[TOOL_CALLS]name[ARGS]{json}`, Llama `<|python_tag|>{json}`, a bare JSON object or list, and calls
as Python writes them, `[f(a=1, b="x")]`.
"""

import ast
import re
import warnings
from collections.abc import Callable
from typing import Any, cast

import orjson

Call = dict[str, Any]

HERMES = re.compile(r"\s*<tool_call>(.*?)(?:</tool_call>|\Z)\s*", re.DOTALL)
GLAIVE = re.compile(
    r"\s*<functioncall>(.*?)(?:</functioncall>|<\|endoftext\|>|(?=<functioncall>)|\Z)\s*", re.DOTALL
)
MISTRAL = re.compile(
    r"\s*\[TOOL_CALLS\]\s*([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\](.*?)(?=\[TOOL_CALLS\]|\Z)", re.DOTALL
)
NAME = re.compile(r"\s*([^\W\d][^()\[\]{}=,'\"]{0,200}?)\s*\(")
COMMA = re.compile(r"\s*(?:,\s*|\Z)")
TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[()\[\]{}]", re.DOTALL)
CONSTANTS = {"true": True, "false": False, "null": None}


def calls_in(text: str) -> tuple[str, list[Call]] | None:
    """The calls that a text ends with, arguments as objects, and the text before them; None where
    it ends with none in a known form."""
    for mark, read in FORMS:
        at = text.find(mark)
        if at >= 0 and (calls := read(text[at:])):
            return text[:at].rstrip(), calls
        if mark and at >= 0:
            return None
    return None


def call_of(value: Any) -> Call | None:
    """A call that an object tells, as {"name", "arguments"} or within `function`."""
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    arguments = arguments_of(function.get("arguments", function.get("parameters")))
    if not function["name"].strip() or arguments is None:
        return None
    named = {"id": value["id"]} if isinstance(value.get("id"), str) else {}
    told = {"name": function["name"], "arguments": arguments}
    return {**named, "type": "function", "function": told}


def arguments_of(value: Any) -> dict[str, Any] | None:
    """A call's arguments: an object, or the text of one, where an empty text is an empty object."""
    if isinstance(value, str) and value.strip():
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
    elif value is None or isinstance(value, str):
        return {}
    return value if isinstance(value, dict) else None


# ---- forms: each gets the text from its mark on -------------------------------------------------


def _between(marks: re.Pattern[str]) -> Callable[[str], list[Call] | None]:
    def read(text: str) -> list[Call] | None:
        calls: list[Call] = []
        at = 0
        while at < len(text):
            found = marks.match(text, at)
            inside = _calls(_literal(found[1])) if found else None
            if not found or not inside:
                return None
            calls += inside
            at = found.end()
        return calls

    return read


def _mistral(text: str) -> list[Call] | None:
    if not MISTRAL.match(text):
        return _calls(_literal(text.removeprefix("[TOOL_CALLS]")))
    calls: list[Call] = []
    at = 0
    while at < len(text):
        found = MISTRAL.match(text, at)
        call = call_of({"name": found[1], "arguments": found[2]}) if found else None
        if not found or not call:
            return None
        calls.append(call)
        at = found.end()
    return calls


def _python_tag(text: str) -> list[Call] | None:
    return _bare(text.removeprefix("<|python_tag|>").removesuffix("<|eom_id|>"))


def _bare(text: str) -> list[Call] | None:
    value = None
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return _pythonic(text.strip())
    items = value if isinstance(value, list) else [value]
    told = all(
        isinstance(i, dict) and {*i} & {"arguments", "parameters", "function"} for i in items
    )
    return _calls(items) if told else None


def _calls(value: Any) -> list[Call] | None:
    """The calls of an object or of a list of them; None where one is none."""
    calls = [call_of(item) for item in (value if isinstance(value, list) else [value])]
    found = [call for call in calls if call]
    return found if found and len(found) == len(calls) else None


def _literal(text: str) -> Any:
    """A value as JSON or as Python spells it, None where it is neither."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _python(text.strip())


def _python(text: str) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return _as_json(value)


def _as_json(value: Any) -> Any:
    """A Python value as JSON holds it, None where it cannot."""
    try:
        return orjson.loads(orjson.dumps(value))
    except (TypeError, orjson.JSONDecodeError):
        return None


def _pythonic(text: str) -> list[Call] | None:
    """`[f(a=1), g h(b="x")]`; a name can hold spaces."""
    if not text.startswith("[") or not text.endswith("]"):
        return None
    calls: list[Call] = []
    at, end = 1, len(text) - 1
    while at < end:
        named = NAME.match(text, at, end)
        stop = _closing(text, named.end(), end) if named else None
        arguments = _keywords(text[named.end() : stop]) if named and stop else None
        if not named or not stop or arguments is None:
            return None
        calls.append({"type": "function", "function": {"name": named[1], "arguments": arguments}})
        if not (comma := COMMA.match(text, stop + 1, end)):
            return None
        at = comma.end()
    return calls


def _closing(text: str, start: int, end: int) -> int | None:
    """Where the bracket that was opened before `start` is closed."""
    depth = 1
    for token in TOKEN.finditer(text, start, end):
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if not depth:
            return token.start()
    return None


def _keywords(text: str) -> dict[str, Any] | None:
    """The keyword arguments of a call; None where one has no name or is no literal."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(f"f({text})", mode="eval").body
            if not isinstance(tree, ast.Call) or tree.args:
                return None
            pairs = {word.arg: _constant(word.value) for word in tree.keywords}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    if None in pairs or len(pairs) < len(tree.keywords):
        return None
    return cast(dict[str, Any] | None, _as_json(pairs))


def _constant(node: ast.expr) -> Any:
    """A literal; JSON's true, false and null count as well."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.List | ast.Tuple):
            inner.elts = [_named(item) for item in inner.elts]
        elif isinstance(inner, ast.Dict):
            inner.values = [_named(item) for item in inner.values]
    return ast.literal_eval(_named(node))


def _named(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return ast.Constant(CONSTANTS[node.id])
    return node


# By their marks; an empty one stands before any text.
FORMS: tuple[tuple[str, Callable[[str], list[Call] | None]], ...] = (
    ("<tool_call>", _between(HERMES)),
    ("<functioncall>", _between(GLAIVE)),
    ("[TOOL_CALLS]", _mistral),
    ("<|python_tag|>", _python_tag),
    ("", _bare),
)

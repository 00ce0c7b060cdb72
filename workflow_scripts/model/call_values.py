"""Values as models write them in calls: JSON, text typed by a schema, Python, Gemma's own."""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

Schema = Mapping[str, Any]
# Types as schemas spell them, those of data sets included (xLAM: `str, optional`, `List[int]`).
KINDS = {
    "string": "string", "str": "string", "text": "string",
    "integer": "integer", "int": "integer",
    "number": "number", "float": "number", "double": "number",
    "boolean": "boolean", "bool": "boolean",
    "array": "array", "list": "array", "tuple": "array",
    "object": "object", "dict": "object", "map": "object",
    "null": "null", "none": "null",
}  # fmt: skip
OF_VALUE = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
OF_VALUE |= {dict: "object", type(None): "null"}
WORDS = {"True": True, "False": False, "None": None}  # Python's, which templates print
CONSTANTS = {"true": True, "false": False, "null": None}  # JSON's, inside of Python
GEMMA_QUOTE = '<|"|>'
GEMMA_KEY = re.compile(r'(?:<\|"\|>)?([^\s:{}\[\],<>"]+)(?:<\|"\|>)?:')
GEMMA_BARE = re.compile(r"true|false|null|None|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


class Broken(ValueError):
    """The text is no call."""


# ---- JSON ---------------------------------------------------------------------------------------


def _no_constant(name: str) -> NoReturn:
    raise Broken(f"{name} is no JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise Broken("a key twice")
    return found


_JSON = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_no_constant)


def json_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that stands at an index, and the index of what follows it.

    Raises:
        Broken: there is none.
    """
    try:
        value, end = _JSON.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise Broken(str(error)) from None
    return value, end


def json_value(text: str) -> Any:
    """The value of a text that is JSON as a whole.

    Raises:
        Broken: it is not.
    """
    text = text.strip()
    value, end = json_at(text, 0)
    if end < len(text):
        raise Broken("more than one value")
    return value


# ---- text, typed by the schema ------------------------------------------------------------------


def schema_of(tools: list[Any] | None, name: str) -> Schema:
    """The schemas of a tool's parameters by name; empty for a tool that is not offered."""
    for tool in tools or ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and function.get("name") == name:
            parameters = function.get("parameters")
            if not isinstance(parameters, dict):
                return {}
            named = parameters.get("properties", parameters)  # xLAM leaves the wrapper out
            return named if isinstance(named, dict) else {}
    return {}


def kinds(schema: Any) -> set[str]:
    """The JSON types that a parameter's schema allows; empty where it does not say."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type")
    found: set[str] = set()
    for name in named if isinstance(named, list) else [named]:
        word = re.match(r"[a-z]+", name.lower()) if isinstance(name, str) else None
        if word and word[0] in KINDS:
            found.add(KINDS[word[0]])
    for several in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(several) or ():
            found |= kinds(one)
    if not found:
        values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
        found = {OF_VALUE[type(value)] for value in values if type(value) in OF_VALUE}
    return found


def typed(raw: str, schema: Any) -> Any:
    """A value written as bare text, in the type that the schema says.

    Without a schema it is what it is as JSON, and text otherwise. So is a value that does not have
    the type it should.
    """
    allowed = kinds(schema)
    if allowed == {"string"}:
        return raw
    try:
        value = _read(raw, python="string" not in allowed and bool(allowed))
    except Broken:
        return raw
    kind = OF_VALUE[type(value)]
    if kind == "string":  # text is written without quotes, so these are its own
        return raw
    fits = kind in allowed or (kind == "integer" and "number" in allowed)
    return raw if "string" in allowed and not fits else value


def _read(raw: str, python: bool) -> Any:
    """A bare value: JSON, a word of Python's, or any literal of Python's."""
    if raw in WORDS:
        return WORDS[raw]
    try:
        return json_value(raw)
    except Broken:
        if not python:
            raise
    return python_value(_parsed(raw.strip()))


# ---- Python -------------------------------------------------------------------------------------


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Broken(str(error)) from None


def python_value(node: ast.expr) -> Any:
    """The JSON value that an expression writes.

    Raises:
        Broken: it is no literal, or one that JSON does not have.
    """
    match node:
        case ast.Constant(value=value) if type(value) in OF_VALUE:
            return value
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if type(value) in (
            int,
            float,
        ):
            return -value  # type: ignore[operator]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [python_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            pairs = []
            for key, item in zip(keys, values, strict=True):
                if key is None or not isinstance(named := python_value(key), str):
                    raise Broken("a key that is no text")
                pairs.append((named, python_value(item)))
            return _distinct(pairs)
    raise Broken(f"no value: {type(node).__name__}")


def python_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of a list of calls, all of them with named arguments.

    Raises:
        Broken: it is no such list.
    """
    tree = _parsed(text.strip())
    if not isinstance(tree, ast.List) or not tree.elts:
        raise Broken("no list of calls")
    found = []
    for call in tree.elts:
        if not isinstance(call, ast.Call) or call.args:
            raise Broken("no call with named arguments")
        if not isinstance(call.func, ast.Name | ast.Attribute):
            raise Broken("no name before the arguments")
        arguments = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                raise Broken("arguments without names")
            arguments[keyword.arg] = python_value(keyword.value)
        found.append((ast.unparse(call.func), arguments))
    return found


# ---- Gemma 4 ------------------------------------------------------------------------------------


def gemma_object(text: str, at: int) -> tuple[dict[str, Any], int]:
    """The object that begins at an index: bare keys, texts between Gemma's own quotes.

    Raises:
        Broken: there is none.
    """
    pairs: list[tuple[str, Any]] = []
    end = _expect(text, at, "{")
    while not text.startswith("}", end):
        if pairs:
            end = _expect(text, end, ",")
        key = GEMMA_KEY.match(text, end)
        if key is None:
            raise Broken("no key")
        value, end = _gemma(text, key.end())
        pairs.append((key[1], value))
    return _distinct(pairs), end + 1


def _gemma(text: str, at: int) -> tuple[Any, int]:
    if text.startswith(GEMMA_QUOTE, at):
        start = at + len(GEMMA_QUOTE)
        end = text.find(GEMMA_QUOTE, start)
        if end < 0:
            raise Broken("a text without an end")
        return text[start:end], end + len(GEMMA_QUOTE)
    if text.startswith("{", at):
        return gemma_object(text, at)
    if text.startswith("[", at):
        items: list[Any] = []
        end = at + 1
        while not text.startswith("]", end):
            if items:
                end = _expect(text, end, ",")
            value, end = _gemma(text, end)
            items.append(value)
        return items, end + 1
    bare = GEMMA_BARE.match(text, at)
    if bare is None:
        raise Broken("no value")
    return (None if bare[0] == "None" else json_value(bare[0])), bare.end()


def _expect(text: str, at: int, what: str) -> int:
    if not text.startswith(what, at):
        raise Broken(f"no {what!r}")
    return at + len(what)

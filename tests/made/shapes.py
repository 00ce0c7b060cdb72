"""Conversations of many shapes, as `Prompts` takes them."""

from typing import Any

from workflow_scripts.model.given import NOTHING, Given

Message = dict[str, Any]


def turn(role: str, content: str | None, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def call(name: str, arguments: Any, id: str = "abcdefgh1") -> Message:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Message, content: str | None = "", **more: Any) -> Message:
    return turn("assistant", content, tool_calls=list(calls), **more)


def result(content: str, name: str = "weather", id: str = "abcdefgh1") -> Message:
    return turn("tool", content, name=name, tool_call_id=id)


WEATHER: Message = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather at a place, Grüße & <b>'more'</b>.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "a town, e.g. 東京"},
                "days": {"type": "integer", "default": 3},
                "unit": {"type": "string", "enum": ["K", "°C"], "description": "of it"},
            },
            "required": ["place"],
        },
    },
}
NESTED: Message = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Books.",
        "parameters": {
            "type": "object",
            "$defs": {"a": {"type": "string"}},
            "properties": {
                "guests": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "ages": {"type": "array", "items": {"type": "integer"}},
                        },
                        "required": ["name"],
                    },
                },
                "tags": {"type": "array", "items": {"type": "string"}, "nullable": True},
                "when": {"type": ["string", "null"], "description": "a day"},
                "how": {
                    "oneOf": [
                        {"type": "string", "description": "a word"},
                        {"type": "object", "properties": {"by": {"type": "boolean"}}},
                    ]
                },
            },
            "required": ["guests"],
        },
    },
}
BARE: Message = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
TOOLS = Given(tools=[WEATHER, NESTED, BARE])
DOCUMENTS = Given(documents=[{"doc_id": 1, "title": "Ü", "text": "one\ntwo"}, {"text": "three"}])
ASK = turn("user", "What is the weather in Köln?")
TALK = [turn("user", "a"), turn("assistant", "b"), turn("user", "c")]
ONE = calling(call("weather", {"place": "Köln", "days": 2, "unit": "°C"}))
TWO = calling(
    call("weather", {"place": "Köln"}), call("weather", {"place": "Bonn"}, id="abcdefgh2")
)

SHAPES: dict[str, tuple[list[Message], Given]] = {
    "plain": ([turn("user", "Hi")], NOTHING),
    "white space": ([turn("user", " \n Hi \n\n")], NOTHING),
    "empty": ([turn("user", "")], NOTHING),
    "system": ([turn("system", "Be brief. "), turn("user", "Hi")], NOTHING),
    "two systems": ([turn("system", "x"), turn("system", "y"), turn("user", "Hi")], NOTHING),
    "system alone": ([turn("system", "x")], NOTHING),
    "developer": ([turn("developer", "x"), turn("user", "Hi")], NOTHING),
    "multi-turn": ([turn("system", "Be brief."), *TALK], NOTHING),
    "user twice": ([turn("user", "a"), turn("user", "b")], NOTHING),
    "assistant last": ([turn("user", "a"), turn("assistant", " b ")], NOTHING),
    "no string": ([turn("user", "a"), {"role": "assistant"}, turn("user", "b")], NOTHING),
    "null content": ([turn("user", "a"), turn("assistant", None), turn("user", "b")], NOTHING),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], NOTHING),
    "reasoning": (
        [turn("user", "a"), turn("assistant", "b", reasoning_content="\nr\n"), turn("user", "c")],
        NOTHING,
    ),
    "reasoning last": (
        [turn("user", "a"), turn("assistant", "b", reasoning_content="r")],
        NOTHING,
    ),
    "non-ascii": ([turn("user", "Grüß Gott, 你好 🙂 \u2028 é\u0301\x00")], NOTHING),
    "switch words": ([turn("system", "/no_think x"), turn("user", "a /think")], NOTHING),
    "markup": ([turn("user", "<table>\n\nx </table>\n\n")], NOTHING),
    "tools": ([ASK], TOOLS),
    "no tools": ([ASK], Given(tools=[])),
    "bare tool": ([ASK], Given(tools=[WEATHER["function"]])),
    "tools and system": ([turn("system", "Be brief."), ASK], TOOLS),
    "tools and talk": ([*TALK, ASK], TOOLS),
    "call": ([ASK, ONE, result("cold")], TOOLS),
    "call undeclared": ([ASK, ONE, result("cold")], NOTHING),
    "call, no content": ([ASK, {**ONE, "content": None}, result("cold")], TOOLS),
    "call and words": ([ASK, {**ONE, "content": "Let me see."}, result("cold")], TOOLS),
    "call and thought": ([ASK, {**ONE, "reasoning_content": "hm"}, result("cold")], TOOLS),
    "call, words and thought": (
        [ASK, {**ONE, "content": "See.", "reasoning_content": "hm"}, result("cold")],
        TOOLS,
    ),
    "two calls": ([ASK, TWO, result("cold"), result("warm", id="abcdefgh2")], TOOLS),
    "two calls in turn": (
        [ASK, ONE, result("cold"), calling(call("now", {})), result("noon", "now")],
        TOOLS,
    ),
    "call, answer": ([ASK, ONE, result("cold"), turn("assistant", "It is."), *TALK], TOOLS),
    "result in JSON": ([ASK, ONE, result('{"t": [1, "°"], "ü": null}')], TOOLS),
    "result alone": ([ASK, result("cold")], TOOLS),
    "result of parts": (
        [ASK, ONE, {**result(""), "content": [{"type": "text", "text": "cold"}]}],
        TOOLS,
    ),
    "no ids": (
        [ASK, calling({"function": ONE["tool_calls"][0]["function"]}), turn("tool", "cold")],
        TOOLS,
    ),
    "no arguments": ([ASK, calling(call("now", {})), result("9", "now")], TOOLS),
    "null among arguments": (
        [ASK, calling(call("weather", {"place": "x", "days": None, "u": True})), result("")],
        TOOLS,
    ),
    "nested arguments": (
        [
            ASK,
            calling(call("book", {"z": [{"name": "Ü", "ages": [1, 2.5]}, []], "a": {"b": {}}})),
            result("done", "book"),
        ],
        TOOLS,
    ),
    "arguments as text": ([ASK, calling(call("weather", '{"place": "K"}')), result("cold")], TOOLS),
    "documents": ([ASK], DOCUMENTS),
    "documents and tools": ([ASK], Given(TOOLS.tools, DOCUMENTS.documents)),
    "documents and system": ([turn("system", "x"), *TALK], DOCUMENTS),
}

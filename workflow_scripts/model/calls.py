"""Calls of tools in a model's own text: the form that its chat template writes, and whether two are
the same.

The form is never chosen by a model's name: a probe is rendered, and the form is the one that reads
exactly the probe's calls back.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from workflow_scripts.model.call_forms import FORMS, Calls, Form, Unparsed
from workflow_scripts.model.call_readers import Call
from workflow_scripts.model.call_values import Broken
from workflow_scripts.model.given import Given
from workflow_scripts.model.prompts import PromptError, Prompts

__all__ = ["Calls", "Form", "Unparsed", "form_of", "same_calls"]

QUESTION = "What is the weather?"


def _parameter(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": "d", **more}


PROBE_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {"type": "object", "properties": properties, "required": ["place"]},
        },
    }
    for name, properties in {
        "get_weather": {
            "place": _parameter("string"),
            "days": _parameter("integer"),
            "metric": _parameter("boolean"),
            "tags": _parameter("array", items={"type": "string"}),
            "near": _parameter("object", additionalProperties={"type": "number"}),
        },
        "find_place": {"place": _parameter("string")},
    }.items()
]


def _call(name: str, number: int, arguments: dict[str, Any]) -> Call:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call0000{number}", "type": "function", "function": function}


PLAIN: dict[str, Any] = {"place": "Ko\u0308ln (7)", "days": 3, "metric": True}
PLAIN |= {"tags": ["one", "two"], "near": {"lat": 50.5}}
ONE = [_call("get_weather", 1, PLAIN)]
TWO = [*ONE, _call("find_place", 2, {"place": "Bonn"})]
HARD = [_call("get_weather", 1, {**PLAIN, "place": 'the "old" town\nis <b> it\'s\n'})]


def form_of(prompts: Prompts) -> Form | None:
    """The form in which the chat template writes calls.

    It reads exactly the calls of a probe: text, number, boolean, list and object; two calls, where
    the template writes two; and of a text with quotes and line feeds, which not every template
    escapes, at least no other call. None where no form does.
    """
    for content in ("", None):  # some templates write an empty text as a turn of its own
        if (one := _Turn.of(prompts, ONE, content)) is None:
            continue
        two, hard = (_Turn.of(prompts, calls, content) for calls in (TWO, HARD))
        for form in FORMS:
            if (
                _reads(form, one, ONE)
                and (two is None or _reads(form, two, TWO) or two.lacks(TWO[1], form))
                and (hard is None or _reads(form, hard, HARD) or hard.read(form) is None)
            ):
                return form
    return None


class _Turn:
    """A probe's turn as the template writes it: `text` after the question, `own` after the prompt
    up to the first control token, which is where a bare call stands."""

    def __init__(self, text: str, own: str):
        self.text, self.own = text, own

    @classmethod
    def of(cls, prompts: Prompts, calls: list[Call], content: str | None) -> "_Turn | None":
        asked: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
        said = {"role": "assistant", "content": content, "tool_calls": calls}
        given = Given(tools=PROBE_TOOLS)
        try:
            prompt = prompts.render(asked, given=given)
            whole = prompts.render([*asked, said], answer_next=False, given=given)
        except PromptError:
            return None
        unmasked = prompts.spellings.unmasked
        own = whole[len(prompt) :] if whole.startswith(prompt) else ""
        text = whole[whole.rfind(QUESTION) + len(QUESTION) :]
        return cls(unmasked(text), unmasked(prompts.spellings.cut(own)[0]))

    def read(self, form: Form) -> list[Call] | None:
        """The calls in it, whatever the template writes around them; None where there are none."""
        for text in (self.text, self.own):
            start = form.start(text, PROBE_TOOLS)
            if start is not None:
                try:
                    return form.calls_at(text, start, PROBE_TOOLS)[0]
                except Broken:
                    return None
        return None

    def lacks(self, call: Call, form: Form) -> bool:
        """Whether the template left the second call out and wrote the first."""
        return call["function"]["name"] not in self.text and _reads(form, self, ONE)


def _reads(form: Form, turn: _Turn, calls: list[Call]) -> bool:
    found = turn.read(form)
    return found is not None and same_calls(found, calls)


# ---- the same calls -----------------------------------------------------------------------------


def same_calls(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Whether two lists hold the same calls in the same order: names and arguments.

    Arguments are compared as values: the order of keys, 1 or 1.0 and nulls make no difference.
    """
    return [*map(_compared, one)] == [*map(_compared, other)]


def _compared(call: Any) -> tuple[Any, Any]:
    inner = call.get("function") if isinstance(call, dict) else None
    function = inner if isinstance(inner, dict) else call
    if not isinstance(function, dict):
        return None, repr(call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return function.get("name"), arguments
    plain = {} if arguments is None else _plain(arguments)
    return function.get("name"), orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)


def _plain(value: Any) -> Any:
    """Without nulls, as the input's calls are, and whole numbers as integers."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_plain(inner) for inner in value if inner is not None]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value

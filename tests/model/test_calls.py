"""The form of a model's calls, found by what its template writes; and which calls are the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made.call_templates import WRITTEN, each, named, say, template
from tests.made.model import byte_tokenizer
from tests.made.prompts import tiny_prompts
from workflow_scripts.model.calls import form_of, same_calls
from workflow_scripts.model.prompts import Prompts


def form_name(calls: str) -> str | None:
    form = form_of(tiny_prompts(template=template(calls)))
    return form.name if form else None


@pytest.mark.parametrize("form", sorted(WRITTEN))
def test_the_form_is_found_by_what_the_template_writes(form: str) -> None:
    assert form_name(WRITTEN[form]) == form


QWEN = WRITTEN["qwen"]
LLAMA = WRITTEN["llama3"]
REFUSES_TWO = "{%- if calls | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}"


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("", None),  # writes no calls
        ("{{- calls | tojson }}", None),  # in words of its own
        (each(named("<<", "|", ">>")), None),
        (each(say("<tool_call>") + "{{- f.name }}" + say("</tool_call>")), None),  # no arguments
        # arguments that are cut, sorted into texts, or otherwise not the same
        (QWEN.replace("f.arguments", "{'place': f.arguments.place}"), None),
        (QWEN.replace("f.arguments", "{'place': f.arguments.place | upper}"), None),
        (REFUSES_TWO + QWEN, "qwen"),
        (QWEN.replace("in calls", "in calls[:1]"), "qwen"),
        (QWEN.replace("in calls", "in calls | reverse"), None),
        # written after a mark that is not the form's own
        (say("> ") + LLAMA, None),
        # texts whose quotes are not escaped are no calls, but the others are
        (
            WRITTEN["lfm2"].replace("v | tojson", "'\"' ~ v ~ '\"' if v is string else v | tojson"),
            "lfm2",
        ),
    ],
)  # fmt: skip
def test_a_template_whose_calls_do_not_come_back_has_no_form(
    calls: str, expected: str | None
) -> None:
    assert form_name(calls) == expected


def test_marks_that_are_control_tokens_are_found() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<|tool_call_start|>", "<|tool_call_end|>"])
    prompts = Prompts(tokenizer.to_str(), template(WRITTEN["lfm2"]), {}, False, [257])
    form = form_of(prompts)
    assert form is not None and form.name == "lfm2"


# ---- the same calls -----------------------------------------------------------------------------


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([call("f", {"a": 1, "b": "x"})], [call("f", {"b": "x", "a": 1.0}, id="7")], True),
        ([call("f", {"a": 1})], [call("f", '{"a": 1}')], True),  # JSON text
        ([call("f", {"a": 1})], [{"name": "f", "arguments": {"a": 1}}], True),
        ([call("f", {"a": None, "b": {"c": None}})], [call("f", {"b": {}})], True),
        ([call("f", {})], [call("f", None)], True),
        ([call("f", {"a": True})], [call("f", {"a": 1})], False),
        ([call("f", {"a": "1"})], [call("f", {"a": 1})], False),
        ([call("f", {"a": [1, 2]})], [call("f", {"a": [2, 1]})], False),
        ([call("f", {"a": 2**60})], [call("f", {"a": 2**60 + 1})], False),
        ([call("f", {"a": 1})], [call("g", {"a": 1})], False),
        ([call("f", {}), call("g", {})], [call("g", {}), call("f", {})], False),
        ([call("f", {})], [call("f", {}), call("f", {})], False),
        ([], [call("f", {})], False),
        ([call("f", {"a": 1})], [call("f", "no JSON")], False),
        ([call("f", {})], ["f"], False),
    ],
)
def test_same_calls(one: list[Any], other: list[Any], same: bool) -> None:
    assert same_calls(one, other) is same is same_calls(other, one)


VALUE = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8"))


@given(st.dictionaries(st.sampled_from("abcdef"), VALUE | st.lists(VALUE)))
def test_calls_are_the_same_whatever_the_order_of_their_keys(arguments: dict[str, Any]) -> None:
    turned = dict(reversed(arguments.items()))
    assert same_calls([call("f", arguments)], [call("f", json.dumps(turned))])

"""Calls in texts, in the forms of the data sets and models that write them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.input.calls_in_text import calls_in


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


RAIN = '{"name": "rain", "arguments": {"town": "Graz", "days": 2}}'
ONE = [call("rain", town="Graz", days=2)]
TWO = [*ONE, call("snow")]

KNOWN: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "Hermes": (f"<tool_call>\n{RAIN}\n</tool_call>", "", ONE),
    "Hermes, text before": (f"I look.\n<tool_call>\n{RAIN}\n</tool_call>\n", "I look.", ONE),
    "Hermes, two": (
        f'<tool_call>{RAIN}</tool_call>\n<tool_call>{{"name": "snow", "arguments": {{}}}}'
        "</tool_call>",
        "",
        TWO,
    ),
    "Hermes, as Python writes it": (
        "<tool_call>\n{'arguments': {'town': 'Graz', 'days': 2}, 'name': 'rain'}\n</tool_call>",
        "",
        ONE,
    ),
    "Hermes, arguments as text": (
        '<tool_call>{"name": "rain", "arguments": "{\\"town\\": \\"Graz\\", \\"days\\": 2}"}'
        "</tool_call>",
        "",
        ONE,
    ),
    "Hermes, never closed": (f"<tool_call>\n{RAIN}", "", ONE),
    "Glaive": (
        '<functioncall> {"name": "rain", "arguments": \'{"town": "Graz", "days": 2}\'} '
        "<|endoftext|>",
        "",
        ONE,
    ),
    "functioncall, two": (
        f'<functioncall>{RAIN}</functioncall><functioncall>{{"name": "snow"}}</functioncall>',
        "",
        TWO,
    ),
    "Mistral": (f"[TOOL_CALLS] [{RAIN}]", "", ONE),
    "Mistral, with an id": (
        '[TOOL_CALLS][{"name": "snow", "arguments": {}, "id": "abc123xyz"}]',
        "",
        [{"id": "abc123xyz", **call("snow")}],
    ),
    "Mistral, names apart": (
        'So.[TOOL_CALLS]rain[ARGS]{"town": "Graz", "days": 2}[TOOL_CALLS]snow[ARGS]{}',
        "So.",
        TWO,
    ),
    "Llama": (
        '<|python_tag|>{"name": "rain", "parameters": {"town": "Graz", "days": 2}}',
        "",
        ONE,
    ),
    "bare object": (RAIN, "", ONE),
    "bare list": (f' [{RAIN}, {{"name": "snow", "arguments": {{}}}}]\n', "", TWO),
    "OpenAI's own": (
        '[{"id": "c1", "type": "function", "function": {"name": "snow", "arguments": "{}"}}]',
        "",
        [{"id": "c1", **call("snow")}],
    ),
    "ToolACE": ('[rain(town="Graz", days=2)]', "", ONE),
    "ToolACE, two": ("[rain(town='Graz', days=2), snow()]", "", TWO),
    "ToolACE, a name of words": (
        '[Market Trends API(kind="A, (b)]", limits=[1, 2], open=true, at=None, of={"a": -1.5})]',
        "",
        [
            call(
                "Market Trends API",
                kind="A, (b)]",
                limits=[1, 2],
                open=True,
                at=None,
                of={"a": -1.5},
            )
        ],
    ),
    "a dotted name": (
        "[weather.rain(town='Graz', days=2)]",
        "",
        [call("weather.rain", **ONE[0]["function"]["arguments"])],
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_forms(name: str) -> None:
    text, before, calls = KNOWN[name]
    assert calls_in(text) == (before, calls)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No rain.",
        "rain(town='Graz')",
        "[rain('Graz')]",
        "[rain(town=other)]",
        "[rain(**{'town': 'Graz'})]",
        "[rain(town='Graz'), 3]",
        "[1, 2]",
        "[]",
        "{}",
        '{"name": "Graz"}',
        '[{"name": "rain", "arguments": {}}, 3]',
        '{"name": "rain", "arguments": [1]}',
        "[see](http://a.b/c)",
        "<tool_call>rain</tool_call>",
        '<tool_call>{"name": "rain", "arguments": "[1"}</tool_call>',
        f"<tool_call>{RAIN}</tool_call> and so on",
        "<tool_call></tool_call>",
        "<tool_call>",
        "[TOOL_CALLS]",
        "[TOOL_CALLS]rain[ARGS]{",
        "<tool_call>{'name': 'rain', 'arguments': {'a': {1, 2}}}</tool_call>",
        f"{RAIN} {RAIN}",
    ],
)
def test_what_is_no_call(text: str) -> None:
    assert calls_in(text) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "town", "b_2"]), VALUES)


@given(ARGUMENTS, ARGUMENTS)
def test_calls_read_back(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Written by Python's own repr and json."""
    calls = [call("f", **one), call("g h", **two)]
    functions = [c["function"] for c in calls]
    words = (", ".join(f"{key}={value!r}" for key, value in args.items()) for args in (one, two))
    first, second = words
    assert calls_in(f"[f({first}), g h({second})]") == ("", calls)
    assert calls_in(json.dumps(functions)) == ("", calls)
    if "tool_call>" not in str(functions):
        texts = "".join(f"<tool_call>{f!r}</tool_call>" for f in functions)
        assert calls_in(f"So. {texts}") == ("So.", calls)


@given(st.text(st.sampled_from("[]{}()<>/\"'=,:tool_call f1\\\n")) | st.text())
def test_any_text_is_read(text: str) -> None:
    found = calls_in(text)
    assert found is None or (found[1] and text.startswith(found[0]))

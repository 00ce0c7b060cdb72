"""Ids of whole prompts against transformers' own rendering, for the families of models that people
bring: system turns, tools, documents, switches, and what their templates refuse."""

from collections.abc import Iterable, Iterator
from datetime import datetime, tzinfo
from functools import cache, partial
from itertools import chain
from typing import Any, Self

import pytest
from hypothesis import assume, settings
from hypothesis import given as drawn
from hypothesis import strategies as st

from tests.made.shapes import SHAPES, WEATHER, Message, call, calling, result, turn
from tests.made.strategies import JSON
from tests.made.template_families import FAMILIES, TODAY, Family, prompts_of
from workflow_scripts.model.given import NOTHING, Given
from workflow_scripts.model.prompts import PromptError
from workflow_scripts.model.spellings import MASK

transformers = pytest.importorskip("transformers")
chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")

FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])


@pytest.fixture(autouse=True)
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers prints the date of the day."""

    class Today(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls(TODAY.year, TODAY.month, TODAY.day, tzinfo=tz)

    monkeypatch.setattr(chat_template_utils, "datetime", Today)


@cache
def theirs(family: Family) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=family.tokenizer,
        chat_template=family.template,
        chat_control_tokens=family.control,
        **family.names,
    )


def expected(
    family: Family,
    messages: list[Message],
    given: Given,
    thinking: bool,
    spelled: bool = False,
    as_text: bool = False,
) -> Any:
    """transformers' ids, or its text, or the message with which it refuses."""
    switch = {family.switch: thinking} if family.switch else {}
    try:
        found = theirs(family).apply_chat_template(
            messages,
            tools=given.tools,
            documents=given.documents,
            add_generation_prompt=True,
            tokenize=not as_text,
            sanitize_control_tokens=spelled,
            **family.variables,
            **switch,
        )
    except Exception as error:  # a template can raise anything its expressions can
        filled = [{**turn, "content": turn.get("content") or ""} for turn in messages]
        if filled != messages:  # what is refused for want of content gets an empty one
            return expected(family, filled, given, thinking, spelled, as_text)
        return str(error)
    return found if as_text else found["input_ids"]


def check(family: Family, messages: list[Message], given: Given, spelled: bool = False) -> None:
    for thinking in family.thinking:
        right = expected(family, messages, given, thinking, spelled)
        try:
            found: Any = prompts_of(family, thinking).prompt_ids(messages, given)
        except PromptError as error:
            assert isinstance(right, str), error
            assert str(error).endswith(right)
        else:
            assert found == right


@FAMILY
@pytest.mark.parametrize("shape", SHAPES)
def test_ids_as_transformers(family: Family, shape: str) -> None:
    check(family, *SHAPES[shape])


def exchange(
    user: Message, rounds: Iterable[tuple[Message, Message]], *answer: Message
) -> list[Message]:
    """A question, calls with their results, and the answer, if it is there."""
    return [user, *chain.from_iterable(rounds), *answer]


@st.composite
def conversations(draw: st.DrawFn, text: st.SearchStrategy[str]) -> list[Message]:
    """Any system turn, exchanges, and a question; each word of them drawn from `text`."""
    system = text.map(partial(turn, "system"))
    user = text.map(partial(turn, "user"))
    answer = st.one_of(
        text.map(partial(turn, "assistant")),
        st.builds(partial(turn, "assistant"), text, reasoning_content=text),
    )
    arguments = st.dictionaries(text, JSON | text, max_size=3)
    calls = st.builds(calling, st.builds(call, text, arguments), content=text | st.none())
    rounds = st.lists(st.tuples(calls, st.builds(result, text)), max_size=2)
    before = draw(st.lists(system, max_size=1))
    talk = draw(st.lists(st.builds(exchange, user, rounds, answer), max_size=2))
    return [*before, *chain.from_iterable(talk), *draw(st.builds(exchange, user, rounds))]


def schemas(text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """JSON schemas, objects and arrays of them included."""
    common = {"description": text, "default": JSON | text, "nullable": st.booleans()}
    plain = st.sampled_from(["string", "integer", "number", "boolean", "null"])
    types = plain | st.lists(plain, min_size=1, max_size=2)
    words = st.lists(text, min_size=1, max_size=2)
    leaves = st.fixed_dictionaries({"type": types}, optional={**common, "enum": words})

    def around(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        array = {"type": st.just("array"), "items": inner}
        properties = st.dictionaries(text, inner, max_size=2)
        object = {"type": st.just("object"), "properties": properties, "required": words}
        choice = {"oneOf": st.lists(inner, min_size=1, max_size=2)}
        kinds = (array, object, choice)
        return st.one_of(*(st.fixed_dictionaries(kind, optional=common) for kind in kinds))

    return st.recursive(leaves, around, max_leaves=5)


def tools(text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    parameters = {
        "type": st.just("object"),
        "properties": st.dictionaries(text, schemas(text), max_size=3),
        "required": st.lists(text, max_size=2),
    }
    function = {
        "name": text,
        "description": text,
        "parameters": st.fixed_dictionaries(parameters),
    }
    return st.fixed_dictionaries(
        {"type": st.just("function"), "function": st.fixed_dictionaries(function)}
    )


@FAMILY
@settings(max_examples=10)
@drawn(data=st.data())
def test_ids_as_transformers_whatever_the_words(family: Family, data: st.DataObject) -> None:
    """Words that spell a control token are left out: transformers takes them for the token."""

    def spells_none(text: str) -> bool:
        return not any(token in text for token in family.control)

    text = st.text(max_size=12).filter(spells_none)
    given = st.builds(
        Given,
        st.none() | st.lists(tools(text), max_size=2),
        st.none() | st.lists(st.dictionaries(text, text | JSON, max_size=2), max_size=2),
    )
    messages, offered = data.draw(conversations(text)), data.draw(given)
    # hypothesis draws what the project's own source spells, for values of JSON, too
    assume(all(map(spells_none, strings_of([messages, offered.tools, offered.documents]))))
    check(family, messages, offered)


def strings_of(value: Any) -> Iterator[str]:
    """All texts in a value of JSON, names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from chain.from_iterable(map(strings_of, [*value, *value.values()]))
    elif isinstance(value, list):
        yield from chain.from_iterable(map(strings_of, value))


@FAMILY
@settings(max_examples=10)
@drawn(data=st.data())
def test_spelled_control_tokens_as_transformers_sanitizes_them(
    family: Family, data: st.DataObject
) -> None:
    """Text that spells one stays text, also where the tokenizer's tokens take white space."""
    pieces = st.sampled_from([*family.special.split(), "a", " ", "\n", "\n\n", "<table>", "é"])
    texts = st.lists(pieces, max_size=5).map("".join)
    check(family, [turn("user", data.draw(texts))], NOTHING, spelled=True)


def spelling(word: str) -> tuple[list[Message], Given]:
    """A conversation in which a user, a call, its result and a tool say a word."""
    tool = {**WEATHER["function"], "description": word}
    called = calling(call("weather", {"place": word, "more": {"in": [word, {"it": word}]}}))
    messages = [turn("user", word), called, result(word), turn("user", f"a{word} b")]
    return messages, Given(tools=[{"type": "function", "function": tool}])


@FAMILY
def test_control_tokens_spelled_anywhere_stay_text(family: Family) -> None:
    """The text is transformers' own, and only the template's control tokens are any."""
    prompts = prompts_of(family, family.thinking[0])
    tokens = family.special.split()
    for word in [*tokens, *(f"{MASK}{MASK}{prompts.added[token]}" for token in tokens)]:
        messages, given = spelling(word)
        right = expected(family, messages, given, family.thinking[0], as_text=True)
        try:
            ids = prompts.prompt_ids(messages, given)
        except PromptError as error:
            assert str(error).endswith(right)
            continue
        harmless = prompts.prompt_ids(*spelling("x"))
        assert [i for i in ids if i > 255] == [i for i in harmless if i > 255]
        assert prompts.decode([ids])[0] == right

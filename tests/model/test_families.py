"""Ids of whole prompts against transformers' own rendering, for the families of models that people
bring: system turns, tools, documents, switches, and what their templates refuse."""

from collections.abc import Iterable
from functools import cache, partial
from itertools import chain
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from tests.made.families import FAMILIES, Family
from tests.made.shapes import SHAPES, TOOLS, Message, call, calling, result, turn
from tests.made.strategies import JSON
from workflow_scripts.model.given import NOTHING, Given
from workflow_scripts.model.prompts import PromptError, Prompts

transformers = pytest.importorskip("transformers")

FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))


@cache
def ours(name: str, thinking: bool) -> Prompts:
    family = FAMILIES[name]
    return Prompts(
        family.tokenizer.to_str(),
        family.template,
        dict(family.names),
        thinking,
        [family.tokenizer.token_to_id(family.end)],
    )


@cache
def theirs(name: str) -> Any:
    family = FAMILIES[name]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=family.tokenizer,
        chat_template=family.template,
        chat_control_tokens=list(family.control),
        **family.names,
    )


def expected(
    family: Family, messages: list[Message], given: Given, thinking: bool, spelled: bool = False
) -> Any:
    """transformers' ids, or the message with which it refuses."""
    switch = {family.switch: thinking} if family.switch else {}
    try:
        return theirs(family.name).apply_chat_template(
            messages,
            tools=given.tools,
            documents=given.documents,
            add_generation_prompt=True,
            sanitize_control_tokens=spelled,
            **family.variables,
            **switch,
        )["input_ids"]
    except Exception as error:  # a template can raise anything its expressions can
        return str(error)


def check(family: Family, messages: list[Message], given: Given, spelled: bool = False) -> None:
    for thinking in family.thinking:
        right = expected(family, messages, given, thinking, spelled)
        try:
            found: Any = ours(family.name, thinking).prompt_ids(messages, given)
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


@FAMILY
@settings(max_examples=25)
@drawn(data=st.data())
def test_ids_as_transformers_whatever_the_words(family: Family, data: st.DataObject) -> None:
    """Words that spell a control token are left out: transformers takes them for the token."""

    def spells_none(text: str) -> bool:
        return not any(token in text for token in family.control)

    text = st.text(max_size=12).filter(spells_none)
    given = data.draw(st.sampled_from([NOTHING, TOOLS]))
    check(family, data.draw(conversations(text)), given)


@FAMILY
@settings(max_examples=25)
@drawn(data=st.data())
def test_spelled_control_tokens_as_transformers_sanitizes_them(
    family: Family, data: st.DataObject
) -> None:
    """Text that spells one stays text, also where the tokenizer's tokens take white space."""
    pieces = st.sampled_from([*family.special, "a", " ", "\n", "\n\n", "<table>", "é"])
    texts = st.lists(pieces, max_size=5).map("".join)
    check(family, [turn("user", data.draw(texts))], NOTHING, spelled=True)

"""What the families' models write, taken apart: reasoning and answer, and calls in their form."""

from os.path import commonprefix

import pytest

from tests.made.shapes import ONE, TOOLS, TWO, Message, turn
from tests.made.template_families import FAMILIES, Family, prompts_of
from workflow_scripts.model.answers import split, texts
from workflow_scripts.model.call_forms import Calls
from workflow_scripts.model.calls import form_of, same_calls
from workflow_scripts.model.prompts import PromptError

FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
REASONING, ANSWER = "Hm, 2 + 2.\nSo:\n\nfour.", "It is **4**.\n\nGrüße 你好"
ASK = [turn("user", "2 + 2?")]


def completion(family: Family, thinking: bool, answer: str, end: str | None) -> list[int]:
    """What a model generates: with its reasoning where it thinks, and what ends it."""
    writes = family.writes if thinking and family.writes else "{answer}"
    text = writes.format(reasoning=REASONING, answer=answer) + (end or "")
    return family.tokenizer.encode(text, add_special_tokens=False).ids


@FAMILY
@pytest.mark.parametrize("ended", [True, False])
def test_reasoning_and_answer_come_back(family: Family, ended: bool) -> None:
    end = family.ends.split()[0] if ended else None
    for thinking in family.thinking:
        prompts = prompts_of(family, thinking)
        prompt = prompts.prompt_ids(ASK)
        written = completion(family, thinking, ANSWER, end)
        parts = split(prompts, prompt, written)
        reasoning = family.tokenizer.decode(written[parts.reasoning_start : parts.reasoning_end])
        answer = family.tokenizer.decode(written[parts.answer_start : parts.answer_end])
        assert reasoning.strip("\n") == (REASONING if thinking else "")
        assert answer.lstrip("\n") == ANSWER
        assert parts.closed and parts.reasons == thinking
        right = (REASONING if thinking else None, ANSWER)
        assert texts(prompts, [(prompt, written)]) == [right]


@FAMILY
def test_a_reasoning_that_does_not_end(family: Family) -> None:
    if family.writes is None:
        return
    prompts = prompts_of(family, True)
    prompt = prompts.prompt_ids(ASK)
    text = family.writes.partition("{reasoning}")[0] + REASONING
    written = family.tokenizer.encode(text, add_special_tokens=False).ids
    assert not split(prompts, prompt, written).closed
    assert texts(prompts, [(prompt, written)]) == [(REASONING, "")]


@FAMILY
@pytest.mark.parametrize("calling", [ONE, TWO], ids=["one", "two"])
def test_calls_that_the_template_writes_are_read_back(family: Family, calling: Message) -> None:
    asked = [turn("user", "What is the weather in Köln and Bonn?")]
    for thinking in family.thinking:
        prompts = prompts_of(family, thinking)
        form = form_of(prompts)
        assert (form.name if form else None) == family.form
        if form is None:
            continue
        prompt = prompts.prompt_ids(asked, TOOLS)
        try:
            rendered = prompts.render([*asked, calling], answer_next=False, given=TOOLS)
        except PromptError as error:
            assert "One call at a time" in str(error)
            continue
        whole = prompts.encode([rendered])[0]
        shared = len(commonprefix([prompt, whole]))  # noqa: RUF071
        written = whole[shared:]
        while written[-1] in prompts.end_ids or written[-1:] == [10]:
            written.pop()
        if shared < len(prompt):  # a thinking model calls after its reasoning
            call = family.tokenizer.decode(written, skip_special_tokens=False)
            written = completion(family, thinking, call, None)
        _, answer = texts(prompts, [(prompt, written)])[0]
        found = form.read(answer, TOOLS.tools)
        assert isinstance(found, Calls), found
        calls = calling["tool_calls"][: len(found.calls)]
        assert same_calls(found.calls, calls)
        assert len(calls) == (1 if family.name == "gpt_oss" else len(calling["tool_calls"]))

"""Tokenized rows back to conversations: ids worked by hand, the demo's, and any text."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.made.families import FAMILIES
from tests.made.model import END_OF_TEXT, IM_END, IM_START, TEMPLATE, THINK, THINK_CLOSE
from tests.made.strategies import TEXT
from tests.made.tokenized_rows import (
    ANY,
    ASKED,
    EMPTY,
    OFF,
    OPEN,
    TINY,
    USER,
    answer,
    detokenizer_with,
    masked,
    read,
)
from workflow_scripts.config.audit import Columns
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.tokenized import Detokenizer, Tokenized, is_tokenized
from workflow_scripts.model.prompts import Message, Prompts


def test_reasoning_and_answer() -> None:
    output = [*b"hm\n", THINK_CLOSE, *b"\n\nyes", IM_END, 10]
    found = read(masked((OPEN, 0), (output, 1)))
    assert found == Tokenized([USER, answer("yes", "hm")], output, 1, True)
    # the same where the thinking's opening is supervised as well
    found = read(masked((ASKED, 0), ([THINK, 10, *output], 1)))
    assert found == Tokenized([USER, answer("yes", "hm")], [THINK, 10, *output], 1, True)


def test_thinking_off() -> None:
    output = [*b"yes", IM_END, 10]
    closed = [*ASKED, *EMPTY[:6]]
    assert read(masked((closed, 0), (output, 1)), OFF) == Tokenized(
        [USER, answer("yes")], output, 1, True
    )
    assert read(masked((closed, 0), (EMPTY[6:], 1)), OFF).messages[-1] == answer("")


@pytest.mark.parametrize("by", [TINY, OFF])
def test_an_empty_answer_with_its_think_block(by: Detokenizer) -> None:
    found = read(masked((ASKED, 0), (EMPTY, 1)), by)
    assert found == Tokenized([USER, answer("", "")], EMPTY, 1, True)


def test_named_columns_are_the_only_ones() -> None:
    row = masked((ASKED, 0), ([*b"ok"], 1), at=len(ASKED) + 1)
    row["ids"] = row.pop("input_ids")
    columns = Columns(input_ids="ids", response_start="at")
    assert read(row, columns=columns).response_ids == [*b"k"]
    with pytest.raises(Reject, match="no column labels_2") as caught:
        read(row, columns=Columns(input_ids="ids", labels="labels_2"))
    assert caught.value.reason == "no_mask"


def test_several_turns() -> None:
    first, second = [*b"one", IM_END, 10], [*b"two", IM_END, 10]
    messages = [{"role": "system", "content": "S"}, USER, answer("one"), USER, answer("two")]
    system = [IM_START, *b"system\nS", IM_END, 10]
    for mask, spans in ((1, 2), (0, 1)):
        row = masked((system + ASKED, 0), (first, mask), (ASKED, 0), (second, 1))
        assert read(row) == Tokenized(messages, second, spans, True)
    # what comes after the last supervised turn is no part of it
    row = masked((system + ASKED, 0), (first, 1), (ASKED, 0), (second, 0))
    assert read(row) == Tokenized(messages[:3], first, 1, True)
    row = masked((ASKED, 0), (first, 1), ([IM_START, *b"us"], 0))
    assert read(row) == Tokenized([USER, answer("one")], first, 1, True)


def test_earlier_reasoning_comes_from_the_ids() -> None:
    earlier = [THINK, *b"\nhm\n", THINK_CLOSE, *b"\n\none", IM_END, 10]
    found = read(masked((ASKED + earlier + ASKED, 0), ([*b"two", IM_END], 1)))
    assert found.messages == [USER, answer("one", "hm"), USER, answer("two")]
    assert not found.same_prompt  # the template leaves earlier reasoning out


def test_everything_supervised() -> None:
    ids = [*ASKED, *b"one", IM_END, 10, *ASKED, *b"two", IM_END, 10]
    found = read({"input_ids": ids, "labels": ids})
    assert found.messages == [USER, answer("one"), USER, answer("two")]
    assert (found.response_ids, found.spans) == ([*b"two", IM_END, 10], 1)


def test_a_cut_answer() -> None:
    assert read(masked((ASKED, 0), ([*b"hal"], 1))).messages[-1] == answer("hal")
    assert read(masked((OPEN, 0), ([*b"hm"], 1))).messages[-1] == answer("hm")
    found = read(masked((ASKED, 0), ([THINK, *b"\nhm"], 1)))
    assert found.messages[-1] == answer("<think>\nhm")
    assert found.response_ids == [THINK, *b"\nhm"]


@pytest.mark.parametrize("asked", [ASKED, OPEN, [*ASKED, *EMPTY[:6]]])
def test_a_prompt_has_no_response(asked: list[int]) -> None:
    for row in (masked((asked, 0)), {"input_ids": asked, "prompt_length": len(asked)}):
        found = read(row)
        assert found == Tokenized([USER, answer(None)], [], 0, True)


def test_padding() -> None:
    output = [*b"ok", IM_END, 10]
    expected = Tokenized([USER, answer("ok")], output, 1, True)
    for pad in (0, IM_END, END_OF_TEXT):
        pads = [pad] * 5
        assert read(masked((ASKED, 0), (output, 1), (pads, 0))) == expected
        real = [1] * len(ASKED + output) + [0] * 5
        row: dict[str, Any] = {"input_ids": ASKED + output + pads, "attention_mask": real}
        assert read({**row, "prompt_length": len(ASKED)}) == expected
        row = {"input_ids": pads + ASKED + output, "attention_mask": real[::-1]}
        assert read({**row, "prompt_length": len(ASKED) + 5}) == expected
        asked = masked((ASKED, 0), (pads, 0), attention_mask=[1] * len(ASKED) + [0] * 5)
        assert read(asked).messages[-1] == answer(None)
    row = {"input_ids": ASKED + output + [END_OF_TEXT] * 5, "prompt_length": len(ASKED)}
    assert read(row) == expected


def test_a_pad_token_that_the_template_never_writes() -> None:
    by = detokenizer_with(("<|im_start|>", "<|im_end|>", "<pad>"), "<|im_end|>", TEMPLATE)
    ids = [256, *b"user\nHi", 257, 10, 256, *b"assistant\n", *b"ok"]
    row = {"input_ids": [*ids, 258, 258], "prompt_length": len(ids) - 2}
    assert read(row, by).messages == [USER, answer("ok")]
    assert read(row, by).response_ids == [*b"ok"]


@pytest.mark.parametrize(
    ("reason", "told", "row"),
    [
        ("bad_ids", "holds None", {"input_ids": [1, None], "loss_mask": [0, 1]}),
        ("bad_ids", "holds 1.0", {"input_ids": [1, 1.0], "loss_mask": [0, 1]}),
        ("bad_ids", "holds True", {"input_ids": [1, True], "loss_mask": [0, 1]}),
        ("bad_ids", "holds -1", {"input_ids": [-1], "loss_mask": [0]}),
        ("bad_ids", "no id of 261", {"input_ids": [261], "loss_mask": [0]}),
        ("bad_ids", "empty", {"input_ids": [], "loss_mask": []}),
        ("mask_length", "attention", masked((ASKED, 1), attention_mask=[1])),
        ("no_response_ids", "supervised", masked((ASKED[:-3], 0))),
        ("no_response_ids", "supervised", masked(([*ASKED, *b"ok", IM_END], 0))),
        ("no_response_ids", "supervised", masked(([*b"plain text"], 0))),
        ("not_this_template", "do not begin", masked(([*b"plain "], 0), ([*b"text"], 1))),
        ("not_this_template", "outside", masked((ASKED[:8], 1), (ASKED[8:], 0))),
        # a control token's id in a user's text
        (
            "not_this_template",
            "after the user's turn the template never writes '<|im_end|>b",
            masked(([IM_START, *b"user\na", IM_END, *b"b", *ASKED], 0), ([*b"ok"], 1)),
        ),
        (
            "not_this_template",
            "several conversations",
            masked(
                ([*ASKED, *b"a", IM_END, 10, IM_START, *b"system\nS", IM_END, 10, *ASKED], 0),
                ([*b"b"], 1),
            ),
        ),
        (
            "not_this_template",
            "never writes '<|endoftext|>b<|im_end",
            masked((ASKED, 0), ([*b"a", END_OF_TEXT, *b"b", IM_END], 1)),
        ),
    ],
)
def test_rejects(reason: str, told: str, row: dict[str, Any]) -> None:
    with pytest.raises(Reject) as caught:
        read(row)
    assert (caught.value.reason, told in caught.value.message) == (reason, True)


def test_is_tokenized() -> None:
    row = masked((ASKED, 0))
    named = Columns(input_ids="ids")
    assert is_tokenized(row, ANY)
    assert is_tokenized({**row, "messages": None}, ANY)
    assert not is_tokenized({**row, "messages": [USER]}, ANY)
    assert not is_tokenized({**row, "prompt": "Hi"}, ANY)
    assert not is_tokenized({"prompt": "Hi"}, ANY)
    assert not is_tokenized({"input_ids": ["Hi"]}, ANY)
    assert not is_tokenized(row, named)
    assert is_tokenized({"ids": ASKED, "messages": [USER]}, named)
    both = Columns(input_ids="ids", messages="messages")
    assert not is_tokenized({"ids": ASKED, "messages": [USER]}, both)


def test_the_demo_data() -> None:
    folder = Path("models/smollm2-135m-instruct")
    if not folder.is_dir():
        pytest.skip("no demo model; run `make setup`")
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    text = (folder / "tokenizer.json").read_text()
    by = Detokenizer(Prompts(text, template, {}, False, [2]))
    checked = 0
    for path in sorted(Path("data/demo").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            messages = json.loads(line).get("messages") or [{"role": "user"}]
            if messages[-1]["role"] == "assistant" and messages[-1]["content"]:
                asked = by.prompts.render(messages[:-1])
                whole = by.prompts.render(messages, answer_next=False)
                before, after = by.prompts.encode([asked, whole.removeprefix(asked)])
                found = read(masked((before, 0), (after, 1)), by)
                assert found == Tokenized(messages, after, 1, True)
                checked += 1
    assert checked > 20
    # an answer whose first line feed is one token with the header's
    odd = [USER, answer("\nan <|im_end|>\n"), USER, answer("\n\n ok")]
    [ids] = by.prompts.encode([by.prompts.render(odd, answer_next=False)])
    assert read({"input_ids": ids, "labels": ids}, by).messages == odd


# ---- any text ----

TURNS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3)


@given(st.none() | TEXT, TURNS, st.none() | TEXT, st.booleans())
@example("<|im_end|>", [("<think>", "</think>\n"), ("\n", "\n")], "<think></think>", True)
def test_any_conversation_comes_back(
    system: str | None, turns: list[tuple[str, str]], reasoning: str | None, every: bool
) -> None:
    messages: list[Message] = [{"role": "system", "content": system}] if system is not None else []
    for question, text in turns:
        messages += [{"role": "user", "content": question}, answer(text)]
    plain = TINY.prompts.encode_text
    ids: list[int] = []
    mask: list[int] = []
    for message in messages:
        run = [IM_START, *message["role"].encode(), 10]
        said = [*plain(message["content"]), IM_END, 10]
        if message is messages[-1] and reasoning is not None:
            run += [THINK, 10]
            said = [*plain(reasoning), 10, THINK_CLOSE, 10, 10, *said]
        taught = message["role"] == "assistant" and (every or message is messages[-1])
        ids += run + said
        mask += [0] * len(run) + [int(taught)] * len(said)
    if reasoning is not None:
        messages[-1] = answer(turns[-1][1].lstrip("\n"), reasoning.strip("\n"))
    found = read({"input_ids": ids, "loss_mask": mask})
    assert found == Tokenized(messages, said, len(turns) if every else 1, True)


PIECES = st.lists(
    st.sampled_from([*b"user\n", IM_START, IM_END, END_OF_TEXT, THINK, THINK_CLOSE, 255])
    | st.sampled_from([ASKED, OPEN, EMPTY, [IM_START, *b"system\n"]])
    | st.integers(0, 262),
    max_size=12,
).map(lambda some: [i for piece in some for i in (piece if isinstance(piece, list) else [piece])])
VALUES = st.sampled_from([0, 0, 1, 1, -100, None, True, 1.5, "1", float("nan")])


@given(PIECES, st.booleans(), st.sampled_from([TINY, OFF]), st.data())
def test_any_row_is_read_or_rejected(
    ids: list[int], clean: bool, by: Detokenizer, data: st.DataObject
) -> None:
    ids = [*ASKED, *ids] if clean else ids
    bits = st.sampled_from([0, 1]) if clean else VALUES
    size = len(ids) if clean else data.draw(st.sampled_from([len(ids), len(ids) + 1]))
    of_size = st.lists(bits, min_size=size, max_size=size)
    labels = st.lists(st.sampled_from([-100, 7, None]), min_size=size, max_size=size)
    kinds = {"loss_mask": of_size, "labels": labels, "response_start": st.integers(-1, 99) | VALUES}
    name = data.draw(st.sampled_from(["loss_mask"] if clean else [*kinds]))
    row: dict[str, Any] = {"input_ids": ids, name: data.draw(kinds[name])}
    if data.draw(st.booleans()):
        row["attention_mask"] = data.draw(of_size)
    try:
        found = by.conversation(row, ANY)
    except Reject as reject:
        assert reject.reason and reject.message
        return
    assert found.messages[-1]["role"] == "assistant"
    assert (found.messages[-1]["content"] is None) == (found.response_ids == [])
    text = "".join(m["content"] or "" for m in found.messages)
    assert text.encode()  # no surrogate is left
    given_ids, run = row["input_ids"], found.response_ids
    at = range(len(given_ids) - len(run) + 1)
    assert any(given_ids[n : n + len(run)] == run for n in at)


@pytest.mark.parametrize("name", ["gpt_oss", "cohere", "seed", "nemotron"])
def test_marks_of_other_families(name: str) -> None:
    """As the template writes an answer with a reasoning and one without; with gpt-oss the marks
    hold tokens that stand between turns as well."""
    family = FAMILIES[name]
    by = Detokenizer(family.prompts())
    for said in (answer("hi", "hm"), answer("hi")):
        whole = by.prompts.render([USER, said], answer_next=False)
        asked = by.prompts.render([USER])
        if not whole.startswith(asked):
            asked = by.prompts.render([USER], answer_next=False)
        before, after = by.prompts.encode([asked, whole[len(asked) :]])
        assert read(masked((before, 0), (after, 1)), by).messages == [USER, said]


def test_several_messages_of_reasoning() -> None:
    family = FAMILIES["gpt_oss"]
    by = Detokenizer(family.prompts())
    thought = "<|start|>assistant<|channel|>analysis<|message|>{}<|end|>"
    text = thought.format("a") + thought.format("b")
    text += "<|start|>assistant<|channel|>final<|message|>hi<|return|>"
    asked = by.prompts.render([USER], answer_next=False)
    before, after = by.prompts.encode(
        [asked + "<|start|>assistant", text[len("<|start|>assistant") :]]
    )
    found = read(masked((before, 0), (after, 1)), by)
    assert found.messages == [USER, answer("hi", "a\nb")]

"""Prompts against transformers' own rendering, against ids worked by hand, and on any text."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.made.model import (
    IM_END,
    IM_START,
    TEMPLATE,
    THINK,
    THINK_CLOSE,
    byte_tokenizer,
    make_model,
)
from tests.made.prompts import tiny_prompts
from tests.made.strategies import TEXT
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.model.codec import PIECE
from workflow_scripts.model.prompts import PromptError, Prompts
from workflow_scripts.model.spellings import MASK

USER = [{"role": "user", "content": "Hi"}]
TINY = tiny_prompts()


def test_ids_by_hand() -> None:
    expected = [IM_START, *b"user\nHi", IM_END, 10, IM_START, *b"assistant\n", THINK, 10]
    assert TINY.prompt_ids(USER) == expected
    closed = [*expected[:-1], 10, 10, THINK_CLOSE, 10, 10]
    assert tiny_prompts(thinking=False).prompt_ids(USER) == closed


def test_control_tokens_in_user_text_stay_text() -> None:
    text = "a<|im_end|>\n<think>b"
    ids = TINY.prompt_ids([{"role": "user", "content": text}])
    assert ids[:6] == [IM_START, *b"user\n"]
    assert ids[6 : 6 + len(text)] == list(text.encode())
    assert ids[6 + len(text)] == IM_END


@given(TEXT, TEXT)
@example(MASK, f"{MASK}3{MASK}")
def test_any_text_comes_back_and_opens_nothing(system: str, text: str) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    ids = TINY.prompt_ids(messages)
    head = [IM_START, *b"system\n", *system.encode(), IM_END, 10]
    body = [IM_START, *b"user\n", *text.encode(), IM_END, 10]
    assert ids == [*head, *body, IM_START, *b"assistant\n", THINK, 10]


KEEPING = TEMPLATE.replace("loop.last and", "(loop.last or preserve_thinking) and")
TALK = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b", "reasoning_content": "r"},
    {"role": "user", "content": "c"},
]


def test_reasoning_in_the_history() -> None:
    """As the template does it, which leaves it out; or kept, with the switch of Qwen3.6."""
    kept = tiny_prompts(template=KEEPING, keep_reasoning=True)
    turn = [IM_START, *b"user\na", IM_END, 10, IM_START, *b"assistant\n"]
    assert kept.prompt_ids(TALK)[: len(turn) + 4] == [*turn, THINK, 10, ord("r"), 10]
    assert TINY.prompt_ids(TALK)[: len(turn) + 2] == [*turn, ord("b"), IM_END]
    with pytest.raises(ConfigError, match="leaves earlier reasoning out even with preserve_thinki"):
        tiny_prompts(keep_reasoning=True)


@pytest.mark.parametrize("thinking", [True, False])
def test_same_as_transformers(tmp_path: Path, thinking: bool) -> None:
    transformers = pytest.importorskip("transformers")
    folder = make_model(tmp_path / "m")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=TEMPLATE
    )
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüß Gott, 你好 🙂"},
        {"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."},
        {"role": "user", "content": "and now?"},
    ]
    expected = theirs.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, enable_thinking=thinking
    )
    assert tiny_prompts(thinking).prompt_ids(messages) == expected["input_ids"]


def test_the_demo_model_as_transformers_renders_it() -> None:
    folder = Path("models/smollm2-135m-instruct")
    if not folder.is_dir():
        pytest.skip("no demo model; run `make setup`")
    transformers = pytest.importorskip("transformers")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=config["chat_template"]
    )
    ours = Prompts((folder / "tokenizer.json").read_text(), config["chat_template"], {}, False, [2])
    lines = [p.read_text().splitlines() for p in sorted(Path("data/demo").glob("*.jsonl"))]
    records = [json.loads(line) for part in lines for line in part]
    checked = 0
    for record in records:
        messages = record.get("messages")
        if messages and messages[-1]["role"] == "assistant":
            expected = theirs.apply_chat_template(messages[:-1], add_generation_prompt=True)
            assert ours.prompt_ids(messages[:-1]) == expected["input_ids"]
            checked += 1
    assert checked > 30


def test_a_template_that_refuses() -> None:
    refusing = tiny_prompts(template="{{ raise_exception('no system turn, please') }}")
    with pytest.raises(PromptError, match="no system turn, please"):
        refusing.prompt_ids(USER)


def test_a_template_that_prints_the_date_is_an_error() -> None:
    with pytest.raises(ConfigError, match="model.chat_template: .* set model.date to a fixed date"):
        tiny_prompts(template="{{ strftime_now('%Y') }}")


def test_a_template_with_a_mistake() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        tiny_prompts(template="a\n{% if %}")


def test_a_text_is_measured_no_further_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, cut before white space: as many ids as in one go, give or take a few."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.train_from_iterator(
        [Path(__file__).read_text()], trainers.BpeTrainer(vocab_size=600, show_progress=False)
    )
    prompts = Prompts(model.to_str(), "{{ messages[0].content }}", {}, False, [])
    text = Path(__file__).read_text() * 40
    assert len(text) > 4 * PIECE
    whole = len(prompts.encode([text])[0])
    assert abs(prompts.measured(text, 10 * whole) - whole) <= 5
    assert prompts.measured("", 0) == 0
    assert prompts.measured("x" * 3 * PIECE, 10) > 10  # no white space to cut at

    encoded: list[int] = []
    encode = prompts.encode

    def counting(rendered: Sequence[str]) -> list[list[int]]:
        encoded.append(sum(map(len, rendered)))
        return encode(rendered)

    monkeypatch.setattr(prompts, "encode", counting)
    # the rest is as long as its characters say: this text is the same all over
    assert prompts.measured(text * 100, 1000) == pytest.approx(100 * whole, rel=0.02)
    assert sum(encoded) <= 2 * PIECE


def test_a_text_token_of_the_vocabulary_stays_what_it_is() -> None:
    """Gemma's tokenizer has tokens for white space and HTML, which users write: as transformers
    encodes them, also beside a control token that a user spells."""
    raw = json.loads(byte_tokenizer(["<|im_start|>", "<|im_end|>"]).to_str())
    raw["model"]["vocab"] |= {"<b>": 256, "ĊĊ": 257}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    raw["added_tokens"] = [
        {"id": 256, "content": "<b>", **flags},
        {"id": 257, "content": "\n\n", **flags},
        {"id": 258, "content": "    ", **flags},  # outside the vocabulary
        {"id": 259, "content": "<|im_start|>", **flags, "special": True},
        {"id": 260, "content": "<|im_end|>", **flags, "special": True},
        {"id": 261, "content": "<|tool|>", **flags},
        {"id": 262, "content": "\t\t", **flags},
    ]
    raw["model"]["vocab"]["\n\n"] = raw["model"]["vocab"].pop("ĊĊ")
    prompts = Prompts(json.dumps(raw), "{{ messages[0].content }}<|im_end|>", {}, False, [260])
    theirs = Tokenizer.from_str(json.dumps(raw))
    text = "a<b>\n\n    \t\tx"
    expected = theirs.encode(text, add_special_tokens=False).ids
    assert expected == [97, 256, 257, 258, 262, 120]
    assert prompts.prompt_ids([{"role": "user", "content": text}]) == [*expected, 260]
    spelled = prompts.prompt_ids([{"role": "user", "content": f"<|im_end|>{text}<|tool|>"}])
    assert spelled == [*b"<|im_end|>", *expected, *b"<|tool|>", 260]
    assert not prompts.hasten()


@pytest.mark.parametrize("name", ["a<|im_end|>", "<think>"])
def test_a_key_that_spells_a_control_token_stays_text(name: str) -> None:
    template = "{% for k in messages[0].tool_calls[0].function.arguments %}{{ k }}{% endfor %}"
    call = {"function": {"name": "f", "arguments": {name: 1}}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    assert tiny_prompts(template=template).prompt_ids(messages) == [*name.encode()]

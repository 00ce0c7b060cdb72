"""The fast encoder gives the `tokenizers` library's own ids, or steps aside."""

import json
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from tests.made.model import TEMPLATE
from workflow_scripts.model.fast_bpe import SAMPLE, byte_letters, fast_bpe
from workflow_scripts.model.prompts import Prompts

# How Qwen3.6's tokenizer.json cuts text into words.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def trained() -> Tokenizer:
    """A tokenizer of Qwen's kind, its merges learned from this file and the sample."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=900, initial_alphabet=sorted(byte_letters()), show_progress=False
    )
    with open(__file__, encoding="utf-8") as f:
        tokenizer.train_from_iterator([f.read(), *SAMPLE * 3], trainer)
    for text in ("<|im_start|>", "<|im_end|>", "<think>", "</think>"):
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])
    return tokenizer


SLOW = trained()
FAST = fast_bpe(SLOW.to_str(), SLOW)
TEXT = st.text() | st.lists(
    st.sampled_from([*"aeinrst'SsDd \n\r\t0129.,é", "e\u0301", "\u0301", "ſ", "the", "  ", "東"])
).map("".join)


def test_byte_letters_are_gpt2s() -> None:
    assert sorted(byte_letters()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    encoded = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for byte in range(128):
        ((letter, _),) = encoded.pre_tokenize_str(chr(byte))
        assert byte_letters()[letter] == byte


@given(TEXT)
@example("a\u0323\u0307 \u1e0b\u0323")  # not normalized
def test_ids_are_the_librarys_own(text: str) -> None:
    assert FAST is not None
    prompts = Prompts(SLOW.to_str(), TEMPLATE, {}, True, [])
    prompts._fast = FAST
    rendered = prompts.render([{"role": "user", "content": text}])
    (found,) = prompts.encode([rendered])
    prompts._fast = None
    assert [found] == prompts.encode([rendered])


@pytest.mark.slow
def test_every_character() -> None:
    """Each code point beside a letter, a blank, an apostrophe, a digit and a line end."""
    assert FAST is not None
    points = (c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000)
    texts = [f"a{c}b {c}'{c}s 1{c}{c}\n{c} x" for c in map(chr, points)]
    prompts = Prompts(SLOW.to_str(), TEMPLATE, {}, True, [])
    for start in range(0, len(texts), 50_000):
        part = texts[start : start + 50_000]
        prompts._fast = FAST
        found = prompts.encode(part)
        prompts._fast = None
        assert found == prompts.encode(part)


def changed(**changes: Any) -> str:
    return json.dumps(json.loads(SLOW.to_str()) | changes)


def model(**changes: Any) -> dict[str, Any]:
    return {**json.loads(SLOW.to_str())["model"], **changes}


@pytest.mark.parametrize(
    "other",
    [
        changed(normalizer={"type": "NFKC"}),
        changed(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}),
        changed(model=model(byte_fallback=True)),
        changed(model=model(merges=model()["merges"][::-1])),
        changed(added_tokens=[{"id": 1, "content": "<x>", "lstrip": True}]),
        changed(model={"type": "WordLevel", "vocab": {}, "unk_token": "x"}),
    ],
    ids=["normalizer", "words", "byte_fallback", "order", "lstrip", "word_level"],
)
def test_other_kinds_are_left_to_the_library(other: str) -> None:
    assert fast_bpe(other, SLOW) is None

"""Byte-level BPE as fast as it can be had: the tokenizer's own vocabulary run by tiktoken.

The `tokenizers` library merges the pair whose merge was learned first; tiktoken merges the pair
whose result has the lowest rank. The two agree where merges are listed in the order of their
results and no two make the same token, since a merge was learned from text in which its two halves
stood. Tokens that no merge makes are left out. Whatever tokenizer is not of this kind gets None,
and so does one that answers a sample otherwise.

Normalization (NFC) is left to the slow path: a text that is not normalized is not for this one.
"""

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import tiktoken
from tokenizers import Tokenizer

Encode = Callable[[str], list[int]]

# Ascii, contractions, digits, white space, scripts with and without spaces, marks, emoji, controls.
SAMPLE = (
    "The train leaves at 7:45, doesn't it?  It's 3,141.59 euros.\r\n\r\n\tdef f(x):\n    return x ",
    "naïve façade Ærøskøbing Ωμέγα Привет мир 東京タワー 한국어 ไทย العربية हिन्दी",
    "a\u0301 \u2028 \u0085 \u00a0\u3000x\u200b\ufeff 👩🏽\u200d🚀 ½ ¼ ² ⅷ \x00\x07 'S 'LL 'ſ ",
)


def byte_letters() -> dict[str, int]:
    """The printable letters that byte-level BPE writes for the 256 bytes (GPT-2's table)."""
    found, spare = {}, 256
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
        found[chr(byte if printable else spare)] = byte
        spare += not printable
    return found


def fast_bpe(tokenizer_json: str, slow: Tokenizer) -> Encode | None:
    """An encoder of normalized text without control tokens: exactly the tokenizer's ids, or None
    where the tokenizer is of another kind.

    Args:
        tokenizer_json: the text of tokenizer.json.
        slow: the tokenizer made from it.
    """
    spec = json.loads(tokenizer_json)
    odd = ("lstrip", "rstrip", "single_word")
    if any(token.get(flag) for token in spec.get("added_tokens", []) for flag in odd):
        return None  # a control token takes in the spaces around it
    pattern = _pattern(spec)
    ranks = _ranks(spec["model"]) if pattern else None
    if pattern is None or ranks is None:
        return None
    try:
        encode = tiktoken.Encoding(
            "fast", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        )
    except ValueError:  # a pattern that its regular expressions do not know
        return None
    for text in SAMPLE:
        text = unicodedata.normalize("NFC", text)
        if encode.encode_ordinary(text) != slow.encode(text, add_special_tokens=False).ids:
            return None
    return encode.encode_ordinary


def _pattern(spec: dict[str, Any]) -> str | None:
    """The regular expression that cuts text into words; None where more than that happens."""
    normalizer = spec.get("normalizer")
    if normalizer and normalizer.get("type") != "NFC":
        return None
    outer = spec.get("pre_tokenizer") or {}
    match outer.get("pretokenizers"):
        case [{"type": "Split", "behavior": "Isolated", "invert": False} as cut, then]:
            plain = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
            pattern = cut["pattern"].get("Regex")
            return pattern if plain.items() <= then.items() else None
    return None


def _ranks(model: dict[str, Any]) -> dict[bytes, int] | None:
    """Bytes of each token that is a byte or made by a merge -> its id."""
    plain = {"type": "BPE", "dropout": None, "byte_fallback": False, "ignore_merges": False}
    if any(model.get(key, default) not in (default, None) for key, default in plain.items()):
        return None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    vocab, letters = model["vocab"], byte_letters()
    if any(letter not in vocab for letter in letters):
        return None
    ranks = {bytes([byte]): vocab[letter] for letter, byte in letters.items()}
    last = max(ranks.values())
    for merge in model["merges"]:
        word = "".join(merge) if isinstance(merge, list) else merge.replace(" ", "", 1)
        token = vocab.get(word)
        if token is None or token <= last:
            return None
        last = token
        try:
            ranks[bytes(letters[letter] for letter in word)] = token
        except KeyError:
            return None
    return ranks

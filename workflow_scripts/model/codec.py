"""Texts to token ids and back.

Text that merely spells a control token never becomes one. A template is rendered with such
spellings masked, the result is cut at the control tokens that the template itself wrote, and each
piece is encoded by a copy of the tokenizer that knows no control tokens. Without such spellings,
which is nearly always, the whole text is encoded at once; both ways give the same ids.
"""

import json
import re
import secrets
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from workflow_scripts.model.fast_bpe import Encode, fast_bpe
from workflow_scripts.model.reasoning import OF_REASONING
from workflow_scripts.model.spellings import MASK, Spellings

UNHEARD = secrets.token_hex(16)  # part of a spelling that nobody can write into a text
HUGE = 1_000_000  # characters of a text from which on it is measured, not encoded as a whole
PIECE = 1 << 16  # characters encoded at once where a text is measured
BLANK = re.compile(r"\S(?=\s)")


class Codec:
    """A model's tokenizer.

    Args:
        tokenizer_json: the text of tokenizer.json.
        written: what chat templates write: tokens that stand in it are control tokens.

    Attributes:
        added: ids of the tokens beside the vocabulary by their spelling.
        control: those of them that are no ordinary text.
        special_ids: ids of tokens that the tokenizer calls special.
        size: ids below it can be decoded; a model's own vocabulary is often padded beyond.
    """

    def __init__(self, tokenizer_json: str, written: str):
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self._json = tokenizer_json
        self._fast: Encode | None = None
        raw = json.loads(tokenizer_json)
        tokens = raw.get("added_tokens", [])
        self.added: dict[str, int] = {t["content"]: t["id"] for t in tokens}
        self._takes = {
            side: {t["content"] for t in tokens if t.get(side)} for side in ("lstrip", "rstrip")
        }
        self._text_tokens = {t["content"] for t in tokens if _is_text(t, raw["model"], written)}
        self.control = {text: i for text, i in self.added.items() if text not in self._text_tokens}
        self.special_ids: set[int] = {t["id"] for t in tokens if t.get("special")}
        self.spellings = Spellings(self.control)
        self.vocab_size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        self.size = max([self.vocab_size, *(i + 1 for i in self.added.values())])

    @cached_property
    def _plain(self) -> Tokenizer:
        """The tokenizer without control tokens: made when a text spells one."""
        raw = json.loads(self._json)
        # Ids go on where the last one ended, so a token outside the vocabulary keeps its place.
        raw["added_tokens"] = [
            token
            if token["content"] in self._text_tokens
            else {**token, "content": _unheard(token)}
            for token in raw.get("added_tokens", [])
            if self._text_tokens
            and (token["content"] in self._text_tokens or not _in_vocabulary(token, raw["model"]))
        ]
        return Tokenizer.from_str(json.dumps(raw))

    def hasten(self) -> bool:
        """Encode four times as fast from now on, where the tokenizer allows it; costs seconds and
        memory to prepare, so it pays for many texts. Returns whether it does."""
        self._fast = None if self._text_tokens else fast_bpe(self._json, self.tokenizer)
        return self._fast is not None

    def encode(self, rendered: Sequence[str]) -> list[list[int]]:
        """Ids of rendered texts."""
        found: list[list[int]] = [[] for _ in rendered]
        plain = []
        for i, text in enumerate(rendered):
            if MASK in text:
                continue
            if self._fast and (text.isascii() or unicodedata.is_normalized("NFC", text)):
                found[i] = self._encode_pieces(text, self._fast)
            else:
                plain.append(i)
        batch = self.tokenizer.encode_batch_fast(
            [rendered[i] for i in plain], add_special_tokens=False
        )
        for i, encoding in zip(plain, batch, strict=True):
            found[i] = encoding.ids
        for i, text in enumerate(rendered):
            if MASK in text:
                found[i] = self._encode_pieces(text, self._encode_unmasked)
        return found

    def _encode_pieces(self, text: str, encode: Encode) -> list[int]:
        """Ids of the control tokens that the template wrote, and of what stands between them."""
        ids: list[int] = []
        pieces = self.spellings.cut(text)
        for before, piece, after in zip(["", *pieces], pieces, [*pieces[1:], ""], strict=False):
            if piece in self.added:
                ids.append(self.added[piece])
                continue
            # some tokens take the white space beside them
            piece = piece.lstrip() if before in self._takes["rstrip"] else piece
            piece = piece.rstrip() if after in self._takes["lstrip"] else piece
            ids += encode(piece) if piece else []
        return ids

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text; spelled control tokens stay text."""
        return self._plain.encode(text, add_special_tokens=False).ids

    def encode_all(self, text: str) -> list[int]:
        """Ids of a text, control tokens included."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _encode_unmasked(self, text: str) -> list[int]:
        return self.encode_text(self.spellings.unmasked(text))

    def measured(self, rendered: str, limit: int) -> int:
        """How many ids a long rendered text has, without holding them: it is encoded in pieces,
        each of which can cost an id or two more or less. Beyond `limit` ids the rest is estimated
        by its characters; the count is above `limit` then."""
        count = at = 0
        for piece in _pieces(rendered):
            count += len(self.encode([piece])[0])
            at += len(piece)
            if count > limit:
                return count * len(rendered) // at
        return count

    def decode(self, ids: Sequence[list[int]]) -> list[str]:
        """Texts of id sequences, control tokens spelled out."""
        return self.tokenizer.decode_batch(ids, skip_special_tokens=False)


def _is_text(token: dict[str, Any], model: dict[str, Any], written: str) -> bool:
    """Whether an added token is ordinary text that anybody may write: white space, or a piece of
    the model's own vocabulary (Gemma has <b> and <table>) that no template writes."""
    text = token["content"]
    if token.get("special"):
        return False
    if not text.strip():
        return True
    return _in_vocabulary(token, model) and text not in written and not OF_REASONING.search(text)


def _in_vocabulary(token: dict[str, Any], model: dict[str, Any]) -> bool:
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, dict):
        return token["content"] in vocabulary
    return 0 <= token["id"] < len(vocabulary)  # Unigram's list


def _unheard(token: dict[str, Any]) -> str:
    """A spelling that no text has, of an id that must not be given to another token."""
    return f"{MASK}{UNHEARD}{token['id']}"


def _pieces(text: str) -> Iterator[str]:
    """A text cut before white space, about every PIECE characters."""
    start = 0
    while start < len(text):
        end = start + PIECE
        if end < len(text):
            cut = BLANK.search(text, end, end + PIECE)
            end = cut.start() + 1 if cut else end + PIECE
        yield text[start:end]
        start = end

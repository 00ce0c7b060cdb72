"""Spellings of control tokens in anybody's text, masked so that they stay text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "\u2bff"  # rare, and printable, so that `repr` leaves it; masked in user text as well
MASKED = re.compile(f"{MASK}(\\d+){MASK}")


class Spellings:
    """How a tokenizer's control tokens are spelled.

    Args:
        tokens: their texts.
    """

    def __init__(self, tokens: Iterable[str]):
        spelled = sorted(tokens, key=len, reverse=True)
        self._spelled = [*spelled, MASK]
        self._starts = {text[:2] for text in self._spelled}
        alternatives = "|".join(map(re.escape, spelled))
        self._find = re.compile(f"{alternatives}|{MASK}" if alternatives else MASK)
        self._cut = re.compile(f"({alternatives})") if alternatives else None

    def masked(self, value: Any) -> Any:
        """A text, or all texts in a value, keys included, with the control tokens that they spell
        masked."""
        if isinstance(value, str):
            if not any(start in value for start in self._starts):
                return value
            return self._find.sub(self._mask, value)
        if isinstance(value, dict):
            return {self.masked(key): self.masked(inner) for key, inner in value.items()}
        return [self.masked(inner) for inner in value] if isinstance(value, list) else value

    def restored(self, value: Any) -> Any:
        """A value, of texts and what else JSON has, as it was before `masked`."""
        if isinstance(value, str):
            return self.unmasked(value)
        if isinstance(value, Mapping):
            return {self.restored(key): self.restored(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.restored(inner) for inner in value]
        return value

    def unmasked(self, text: str) -> str:
        """The text as it was before `masked`."""
        return MASKED.sub(self._unmask, text)

    def found(self, texts: Sequence[str]) -> set[str]:
        """The control tokens that texts spell."""
        return {hit[0] for text in texts for hit in self._find.finditer(text)} - {MASK}

    def cut(self, text: str) -> list[str]:
        """A text without masks, cut into control tokens and what stands between them."""
        return self._cut.split(text) if self._cut else [text]

    def _mask(self, match: re.Match[str]) -> str:
        return f"{MASK}{self._spelled.index(match[0])}{MASK}"

    def _unmask(self, match: re.Match[str]) -> str:
        return self._spelled[int(match[1])]

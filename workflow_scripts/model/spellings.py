"""Spellings of control tokens in anybody's text, masked so that they stay text."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

MASK = "\u2bff"  # rare, and printable, so that `repr` leaves it; masked in user text as well
MASKED = re.compile(f"{MASK}(\\d+){MASK}")

BEGINNING = 8  # characters by which a place is told to be worth a look
NOTHING = "(?!)"  # the pattern that matches nothing


class Spellings:
    """How a tokenizer's control tokens are spelled.

    Some tokenizers have a million. They are looked up by their first character and their length:
    as one pattern they take minutes to compile, and each place is compared with all of them.

    Args:
        tokens: their texts.
    """

    def __init__(self, tokens: Iterable[str]):
        self._spelled = [*filter(None, tokens), MASK]
        self._numbers = {text: number for number, text in enumerate(self._spelled)}
        self._starts = {text[:2] for text in self._spelled}
        control = self._spelled[:-1]
        self._begin = _beginning(control)
        self._begin_or_mask = re.compile(f"{self._begin.pattern}|{MASK}")
        lengths = {(text[0], len(text)) for text in control}
        self._lengths: dict[str, list[int]] = {}  # by first character, longest first
        for first, length in sorted(lengths, reverse=True):
            self._lengths.setdefault(first, []).append(length)

    def masked(self, value: Any) -> Any:
        """A text, or all texts in a value, keys included, with the control tokens that they spell
        masked."""
        if isinstance(value, str):
            if not any(start in value for start in self._starts):
                return value
            pieces = self._cut(value, self._spells(value, self._begin_or_mask))
            pieces[1::2] = [f"{MASK}{self._numbers[spelled]}{MASK}" for spelled in pieces[1::2]]
            return "".join(pieces)
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
        return {spelled for text in texts for _, spelled in self._spells(text, self._begin)}

    def cut(self, text: str) -> list[str]:
        """A text, its masks apart, cut into control tokens and what stands between them."""
        return self._cut(text, self._spells(text, self._begin))

    @staticmethod
    def _cut(text: str, hits: Iterable[tuple[int, str]]) -> list[str]:
        pieces, end = [], 0
        for start, spelled in hits:
            pieces += [text[end:start], spelled]
            end = start + len(spelled)
        return [*pieces, text[end:]]

    def _spells(self, text: str, begin: re.Pattern[str]) -> Iterator[tuple[int, str]]:
        """Where a text spells control tokens and which: from left to right, the longest at a place,
        as the tokenizer finds them."""
        at = 0
        while hit := begin.search(text, at):
            at = hit.start()
            if spelled := MASK if text[at] == MASK else self.at(text, at):
                yield at, spelled
            at += len(spelled) or 1

    def at(self, text: str, place: int) -> str:
        """The longest control token that a text spells at a place, else nothing."""
        for length in self._lengths.get(text[place : place + 1], ()):
            if (spelled := text[place : place + length]) in self._numbers:
                return spelled
        return ""

    def _unmask(self, match: re.Match[str]) -> str:
        return self._spelled[int(match[1])]


def _beginning(spelled: Collection[str]) -> re.Pattern[str]:
    """A pattern for the first characters of all these texts, and of few others: the characters that
    stand first, second and so on. It compiles and matches as fast for many texts as for few."""
    size = min(map(len, spelled), default=0)
    places = zip(*(text[: min(size, BEGINNING)] for text in spelled), strict=True)
    sets = ["".join(map(re.escape, sorted({*place}))) for place in places]
    return re.compile("".join(f"[{some}]" for some in sets) or NOTHING)

"""Where a completion's reasoning ends and its answer begins, by the ids of the reasoning's marks.

Marks that hold a control token are found as ids. Some models write theirs in plain text, whose ids
depend on what stands beside them (`</think>` and the line ends after it may share a token); those
are looked for in the decoded text, and the place is led back to the ids.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workflow_scripts.model.reasoning import Reasoning

Ids = Sequence[int] | np.ndarray[Any, np.dtype[np.int32]]
Array = np.ndarray[Any, np.dtype[np.int32]]
BLANK_IDS = 8  # ids of white space that a model may write before it opens a reasoning


@dataclass(frozen=True, slots=True)
class Parts:
    """Id ranges of a completion: reasoning [reasoning_start, reasoning_end), answer [answer_start,
    answer_end). Marks stand before, between and after.

    `closed` is False while the reasoning, if there is one, has not ended; `reasons` says whether
    there is one.
    """

    reasoning_start: int
    reasoning_end: int
    answer_start: int
    answer_end: int
    closed: bool
    reasons: bool


@dataclass(frozen=True, slots=True)
class _Text:
    """A completion's text and the same ranges in it."""

    text: str
    parts: Parts


class Marks:
    """The marks of a model's reasoning, as ids or as text.

    Args:
        reasoning: their texts.
        encode: ids of a text, control tokens included.
        decode: texts of id sequences.
        control: ids of the control tokens.
    """

    def __init__(
        self,
        reasoning: Reasoning,
        encode: Callable[[str], list[int]],
        decode: Callable[[Sequence[list[int]]], list[str]],
        control: Collection[int],
    ):
        self.reasoning = reasoning
        self._decode = decode
        texts = (reasoning.open, reasoning.close, reasoning.final, reasoning.tail)
        ids = [np.array(encode(text) if text else [], dtype=np.int32) for text in texts]
        self.open, self.close, self.final, self.tail = ids
        self.plain = not all({*part.tolist()} & {*control} for part in ids[:2])
        # control tokens among the marks
        self.control_ids = {token for part in ids for token in part.tolist() if token in control}
        # a reasoning that goes on in a message of its own, as gpt-oss writes them
        self._line_end = encode("\n")
        self._seam = np.concatenate([self.close, self.open]) if len(self.close) > 1 else None

    # ---- prompts ----

    def opened_by(self, prompt_ids: Ids) -> bool:
        """Whether a prompt ends inside an open reasoning. Marks in plain text only count at the
        very end, since anybody's text can spell them."""
        if self.plain:
            end = [*map(int, prompt_ids[-len(self.open) - BLANK_IDS :])]
            return self._decode([end])[0].rstrip().endswith(self.reasoning.open)
        ids = np.asarray(prompt_ids, dtype=np.int32)
        opens = places(ids, self.open)
        if not len(opens):
            return False
        closes = places(ids, self.close)
        return not len(closes) or bool(opens[-1] > closes[-1])

    # ---- completions ----

    def parts(self, prompt_ids: Ids, output_ids: Ids) -> Parts:
        """Find reasoning and answer in a completion without its end token."""
        opened = self.opened_by(prompt_ids)
        if self.plain:
            return self._as_ids(self._in_text(opened, output_ids), output_ids)
        ids = np.asarray(output_ids, dtype=np.int32)
        start = self._own_start(ids)
        if start is None and opened:
            start = 0
        end = len(ids)
        answer_end = end - len(self.tail) if self._at(ids, end - len(self.tail), self.tail) else end
        if start is None:
            return Parts(0, 0, self._after_final(ids, 0), answer_end, True, False)
        closes = places(ids, self.close)
        if self._seam is not None:
            closes = np.setdiff1d(closes, places(ids, self._seam))
        closes = closes[closes >= start]
        if not len(closes):
            return Parts(start, end, end, end, False, True)
        close = int(closes[0])
        after = self._after_final(ids, close + len(self.close))
        return Parts(start, close, after, max(after, answer_end), True, True)

    def written(self, parts: Parts, output_ids: Ids) -> set[int]:
        """Where the marks that belong to a completion stand in its ids."""
        found = {*range(max(0, parts.reasoning_start - len(self.open)), parts.reasoning_start)}
        found |= {*range(parts.reasoning_end, parts.answer_start)}
        found |= {*range(parts.answer_end, parts.answer_end + len(self.tail))}
        if self._seam is not None:
            reasoning = np.asarray(output_ids[: parts.reasoning_end], dtype=np.int32)
            for at in places(reasoning, self._seam).tolist():
                found |= {*range(at, at + len(self._seam))}
        return found

    def texts(self, prompt_ids: Ids, output_ids: Ids) -> tuple[str, str]:
        """Reasoning and answer of a completion that has both in plain text: exactly between the
        marks, also where a token holds a mark's end and more."""
        found = self._in_text(self.opened_by(prompt_ids), output_ids)
        text, at = found.text, found.parts
        return text[at.reasoning_start : at.reasoning_end], text[at.answer_start :]

    def seamless(self, reasoning: list[int]) -> list[int]:
        """A reasoning's ids with a line end for what stands between its messages."""
        if self._seam is None:
            return reasoning
        found: list[int] = []
        start = 0
        for at in places(np.asarray(reasoning, dtype=np.int32), self._seam).tolist():
            found += [*reasoning[start:at], *self._line_end]
            start = at + len(self._seam)
        return found + reasoning[start:]

    def _own_start(self, ids: Array) -> int | None:
        """Where the reasoning begins that a model opens by itself, first of all. Some do so even
        where the prompt has opened it."""
        found = places(ids[: BLANK_IDS + len(self.open)], self.open)
        if not len(found):
            return None
        first = int(found[0])
        if first and self._decode([ids[:first].tolist()])[0].strip():
            return None
        return first + len(self.open)

    def _after_final(self, ids: Array, at: int) -> int:
        return at + len(self.final) if self._at(ids, at, self.final) else at

    @staticmethod
    def _at(ids: Array, at: int, sought: Array) -> bool:
        return at >= 0 and np.array_equal(ids[at : at + len(sought)], sought)

    def _in_text(self, opened: bool, output_ids: Ids) -> _Text:
        text = self._decode([[*map(int, output_ids)]])[0]
        opens, closes, end = self.reasoning.open, self.reasoning.close, len(text)
        start, blank = 0, end - len(text.lstrip())
        if text.startswith(opens, blank):
            start = blank + len(opens)
        elif not opened:
            return _Text(text, Parts(0, 0, 0, end, True, False))
        close = text.find(closes, start)
        if close < 0:
            return _Text(text, Parts(start, end, end, end, False, True))
        return _Text(text, Parts(start, close, close + len(closes), end, True, True))

    def _as_ids(self, found: _Text, output_ids: Ids) -> Parts:
        """A token that holds the end of a mark and what follows it goes with the mark."""
        ids, at = [*map(int, output_ids)], found.parts

        def written(count: int) -> int:
            return len(self._decode([ids[:count]])[0])

        counts = range(len(ids) + 1)
        begins, ends = bisect_left, bisect_right
        return Parts(
            begins(counts, at.reasoning_start, key=written),
            ends(counts, at.reasoning_end, key=written) - 1,
            begins(counts, at.answer_start, key=written),
            len(ids),
            at.closed,
            at.reasons,
        )


def places(ids: Array, sought: Array) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Where a sequence of ids stands in another."""
    at = np.flatnonzero(ids == sought[0])
    if len(sought) > 1:
        at = at[at <= len(ids) - len(sought)]
        for n in range(1, len(sought)):
            at = at[ids[at + n] == sought[n]]
    return at

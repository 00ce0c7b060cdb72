"""Texts that share words with a held-out set, so that training on them would spoil the evaluation.

The rule is that of GPT-3 (Brown et al. 2020, Language Models are Few-Shot Learners, arXiv
2005.14165, appendix C): a text is contaminated if it has n words in a row, 13 by default, in common
with a held-out text. A word is lower-cased, NFKC-normalised, and has only its letters, marks and
digits; words stand between white space, but each character of a script written without spaces is
one (see near_duplicates). A held-out text of fewer than n words counts where the whole text equals
it, if it has at least four; a shorter one never does.

n words in a row that stand in more than 10 rows of a set are boilerplate, such as the instructions
of its template, and are no hit in that set. (The paper ignored those in more than 10 training
documents, for the same reason.)

Words are numbered, and n-grams looked up by 64-bit hashes of their numbers; a candidate counts only
if the numbers are equal, so there is no false hit. The index takes about 40 bytes a held-out word.
"""

import unicodedata
from array import array
from collections import Counter

import numpy as np

from workflow_scripts.texts.near_duplicates import Numbers, mix, span_hashes, spread, words

LEAST = 4
BOILERPLATE = 10


class Letters(dict[int, int | None]):
    """What str.translate needs to keep letters, marks, digits and spaces."""

    def __missing__(self, code: int) -> int | None:
        kept = code == ord(" ") or unicodedata.category(chr(code))[0] in "LMN"
        self[code] = code if kept else None
        return self[code]


LETTERS = Letters()


def plain_words(text: str) -> list[str]:
    """The words of a text, without punctuation and symbols."""
    return " ".join(words(text)).translate(LETTERS).split()


class HeldOut:
    """Held-out texts to check others against: add all of them, then ask for hits."""

    def __init__(self, n: int = 13):
        self.n = n
        self._span = np.arange(n)
        self._numbers: dict[str, int] = {}  # of the held-out words, from 1; 0 is any other word
        self._ids = array("I")  # the words of all rows
        self._lengths = array("q")
        self._sets: dict[str, int] = {}
        self._set_of = array("q")
        self._short: dict[str, list[int]] = {}
        self._hit: set[int] = set()
        self._stale = True

    def add(self, name: str, text: str) -> None:
        """Add a row of the held-out set of that name."""
        found = plain_words(text)
        row = len(self._lengths)
        self._set_of.append(self._sets.setdefault(name, len(self._sets)))
        if len(found) < self.n:
            if len(found) >= LEAST:
                self._short.setdefault(" ".join(found), []).append(row)
            found = []
        self._ids.extend([self._numbers.setdefault(w, len(self._numbers) + 1) for w in found])
        self._lengths.append(len(found))
        self._stale = True

    def hits(self, text: str) -> list[tuple[str, str]]:
        """The held-out sets that share words with a text, each with the first words shared."""
        if self._stale:
            self._build()
        found = plain_words(text)
        hits: dict[int, str] = {}
        if len(found) < self.n:
            whole = " ".join(found)
            for row in self._short.get(whole, ()):
                hits.setdefault(self._set_of[row], whole)
                self._hit.add(row)
        else:
            for row, at in self._shared(found):
                kind = self._set_of[row]
                if kind not in hits:
                    hits[kind] = " ".join(found[at : at + self.n])
                self._hit.add(row)
        return [(self._names[kind], shared) for kind, shared in hits.items()]

    def counts(self) -> dict[str, dict[str, int]]:
        """For each set its rows, and how many of them were hit so far."""
        rows, hit = Counter(self._set_of), Counter(self._set_of[row] for row in self._hit)
        return {name: {"rows": rows[k], "hit": hit[k]} for name, k in self._sets.items()}

    def _shared(self, found: list[str]) -> list[tuple[int, int]]:
        """(held-out row, place in the text) of the n-grams of a text that a row has too."""
        if not len(self._hashes):
            return []
        number = self._numbers.get
        ids = np.array([number(word, 0) for word in found], dtype=np.int64)
        hashes = self._ngrams(ids)
        first = self._hashes.searchsorted(hashes)
        known = (self._hashes.take(first, mode="clip") == hashes).nonzero()[0]
        if not len(known):
            return []
        count = self._hashes.searchsorted(hashes[known], side="right") - first[known]
        entry, at = spread(first[known], count), np.repeat(known, count)
        ours = ids[at[:, None] + self._span]
        equal = (self._words[self._starts[entry][:, None] + self._span] == ours).all(axis=1)
        return list(zip(self._rows[entry[equal]].tolist(), at[equal].tolist(), strict=True))

    def _ngrams(self, ids: Numbers) -> Numbers:
        count = max(len(ids) - self.n + 1, 0)
        return span_hashes(self._mixed[ids], slice(count), slice(self.n, self.n + count))

    def _build(self) -> None:
        """The index: each n-gram once a row, by hash and then set; none that is boilerplate."""
        self._names = list(self._sets)
        self._mixed = mix(np.arange(1, len(self._numbers) + 2, dtype=np.uint64))
        self._words = np.array(self._ids, dtype=np.uint32)
        lengths = np.array(self._lengths, dtype=np.int64)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        hashes = self._ngrams(self._words)
        starts = np.flatnonzero(rows[: len(hashes)] == rows[len(rows) - len(hashes) :])
        hashes, rows = hashes[starts], rows[starts]
        sets = np.array(self._set_of, dtype=np.int64)[rows]
        order = np.lexsort((rows, sets, hashes))
        hashes, sets, rows, starts = hashes[order], sets[order], rows[order], starts[order]
        once = np.append(True, changes(hashes, sets, rows))[: len(rows)]
        hashes, sets, rows, starts = hashes[once], sets[once], rows[once], starts[once]
        group = np.cumsum(np.append(0, changes(hashes, sets)))[: len(rows)]
        kept = np.bincount(group)[group] <= BOILERPLATE if len(rows) else once
        self._hashes, self._rows, self._starts = hashes[kept], rows[kept], starts[kept]
        self._stale = False


def changes(*columns: Numbers) -> Numbers:
    """Where rows of sorted columns differ from those before them."""
    return np.logical_or.reduce([column[1:] != column[:-1] for column in columns])

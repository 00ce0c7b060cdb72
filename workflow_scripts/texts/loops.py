"""Repetition loops in completions: find them on token ids, and say how bad they are.

A loop is a stretch in which the same unit comes again and again, word for word or with one change a
round (a counter, one other word). The method is that of Tandem Repeats Finder (Benson, Nucleic
Acids Research 27(2), 1999), which looks for the same thing in DNA: the distances at which short
words occur again name the candidate periods; then each candidate is compared with the ids one
period earlier, and the stretch with the greatest balance of equal ids over changes is taken.
docs/filters.md says how the limits below were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Ids in a row that must be equal to count as copied. Runs shorter than that are what lists, tables,
# number sequences and code have in common from row to row.
RUN = 8
# What a change costs, in ids: half a period, so that a round with one change counts for half, and
# one with two or more for nothing, since what differs in several places has content; for long units
# no more than 40, since a page with three words changed is still the same page.
CHANGE = 0.5
CHANGE_MOST = 40
# The loop with a score of 1 has copied so many ids and so many rounds more than the first.
LENGTH = 150
ROUNDS = 3
# Dots, digits, zeros, the squares of a board: a unit of fewer than 4 different ids, or of fewer
# than 8 that is more than twice as long, needs more.
PLAIN = 4
PLAIN_LONG = 8
PLAIN_LENGTH = 400

THRESHOLD = 1.0
FLOOR = 0.25

# Periods that are tried, and distances that are taken for the same period, which differ where a
# counter gets one more digit or a changed word has more ids.
CANDIDATES = 4
DISTANCES = 8
# The balance of a stretch is at most this many times the number of repeated words in it: the worst
# case is a unit of RUN equal ids and one other, with 1 word for a balance of 2.5.
BALANCE_PER_WORD = 2.5


@dataclass(frozen=True)
class Loop:
    """A repeated stretch of a completion.

    ``start``: index of its first id. ``period``: length of the repeated unit, in ids (where rounds
    differ in length, the most frequent one). ``repeats``: length of the stretch in periods, the
    first round included. ``share``: part of the completion's ids that lie in the stretch, 0 to 1.

    ``score``: (copied - changed - cost * changes) / (length + ROUNDS * period), where ``copied``
    ids are equal to those one period earlier, ``changed`` ones are not, ``changes`` counts the
    places of these, ``cost`` is CHANGE * period and at most CHANGE_MOST, and ``length`` is LENGTH,
    or PLAIN_LENGTH where the unit hardly has different ids. It grows with every round and has no
    upper bound. A score of 1 takes 19 exact rounds of 10 ids, 6 of 100 or 5 of 1,000.
    """

    start: int
    period: int
    repeats: float
    share: float
    score: float


def is_loop(loop: Loop | None, threshold: float = THRESHOLD) -> bool:
    """Whether what ``find`` returned counts as a loop; ``threshold`` is a score, at least FLOOR."""
    return loop is not None and loop.score >= threshold


def find(ids: Sequence[int] | NDArray[np.integer]) -> Loop | None:
    """The worst repeated stretch of a completion, or None if none has a score of FLOOR or more.

    ``ids``: one-dimensional, any length, each within 64 bits. Takes time n log n; most completions
    are cleared by one sort.
    """
    array = np.asarray(ids)
    places, distances = _repeated_words(array)
    if len(places) * BALANCE_PER_WORD < FLOOR * LENGTH:
        return None
    untried = np.bincount(distances)
    worst: Loop | None = None
    for _ in range(CANDIDATES):
        period = int(untried.argmax())
        slack = max(1, period // 8)
        low, high = max(1, period - slack), period + slack + 1
        least = FLOOR * (LENGTH + ROUNDS * period) / BALANCE_PER_WORD
        if untried[low:high].sum() >= least:
            chosen = (low <= distances) & (distances < high)
            cluster = _largest_cluster(places[chosen], RUN + 2 * period)
            if len(cluster) >= least:
                # Two periods more on either side, for copies whose word also stands nearer by.
                begin = max(0, int(cluster[0]) - high - 2 * period)
                end = int(cluster[-1]) + RUN + 2 * period
                near = _most_frequent(distances[chosen])
                loop = _loop(array, begin, end, period, near)
                if loop.score >= FLOOR and (worst is None or loop.score > worst.score):
                    worst = loop
        untried[low:high] = 0
    return worst


def _repeated_words(ids: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where words of RUN ids begin that occurred before, and how many ids before; in no order.

    Words are compared by hash. Two different ones taken for the same do no harm: what ``find``
    returns was compared id by id.
    """
    if len(ids) <= RUN:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    words = ids.astype(np.uint64)
    width = 1
    while width < RUN:  # a word of 8 is two of 4, and so on
        words = words[:-width] * np.uint64(0x9E3779B97F4A7C15) + words[width:]
        words ^= words >> np.uint64(29)
        width *= 2
    # Hash and place in one number: one sort of plain numbers instead of a slower argsort.
    bits = np.uint64(len(words).bit_length())
    keys = np.sort((words << bits) | np.arange(len(words), dtype=np.uint64))
    places = (keys & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
    keys >>= bits
    again = np.flatnonzero(keys[1:] == keys[:-1])
    return places[again + 1], places[again + 1] - places[again]


def _largest_cluster(places: NDArray[np.int64], gap: int) -> NDArray[np.int64]:
    """The most places that follow one another within ``gap`` ids, in order."""
    ordered = np.sort(places)
    cuts = np.concatenate(([0], np.flatnonzero(np.diff(ordered) > gap) + 1, [len(ordered)]))
    at = int(np.diff(cuts).argmax())
    return ordered[cuts[at] : cuts[at + 1]]


def _most_frequent(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """At most DISTANCES different ones, the most frequent first."""
    values, counts = np.unique(distances, return_counts=True)
    frequent: NDArray[np.int64] = values[np.argsort(-counts, kind="stable")[:DISTANCES]]
    return frequent


def _copied(ids: NDArray[np.integer], distance: int) -> NDArray[np.bool_]:
    """Which ids belong to a run of RUN or more that are equal to those ``distance`` earlier."""
    equal = np.zeros(len(ids) + 2, np.int8)
    equal[distance + 1 : -1] = ids[distance:] == ids[:-distance]
    edges = np.flatnonzero(equal[1:] != equal[:-1])
    first, end = edges[::2], edges[1::2]
    long = end - first >= RUN
    steps = np.zeros(len(ids) + 1, np.int8)
    steps[first[long]] = 1
    steps[end[long]] = -1
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)


def _loop(
    ids: NDArray[np.integer],
    begin: int,
    end: int,
    period: int,
    distances: NDArray[np.int64],
) -> Loop:
    """The stretch with the greatest balance for one period, within ids[begin:end]."""
    window = ids[begin:end]
    copied = np.zeros(len(window), bool)
    for distance in distances[distances < len(window)]:
        copied |= _copied(window, int(distance))
    gain = np.where(copied, 1.0, -1.0)
    gain[1:][copied[:-1] & ~copied[1:]] -= min(CHANGE * period, CHANGE_MOST)
    # Kadane's algorithm: the balance of a stretch is the sum at its end less that before it.
    total = np.concatenate(([0.0], np.cumsum(gain)))
    balance = total - np.minimum.accumulate(total)
    last = int(balance.argmax())
    first = last - int(total[last::-1].argmin())
    start = max(0, first - period)
    different = len(np.unique(window[start : start + period]))
    plain = different < PLAIN or different < min(PLAIN_LONG, period / 2)
    scale = (PLAIN_LENGTH if plain else LENGTH) + ROUNDS * period
    return Loop(
        start=begin + start,
        period=period,
        repeats=(last - start) / period,
        share=(last - start) / len(ids),
        score=float(balance[last]) / scale,
    )

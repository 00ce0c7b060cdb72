"""Near-duplicate texts: candidates by MinHash and LSH (rensa), confirmed by exact Jaccard.

A text is lower-cased and NFKC-normalised; a word is what stands between white space, except that
each character of a script written without spaces (Han, Kana, Thai, Lao, Khmer, Myanmar, Tibetan) is
a word of its own. So word 5-grams are character 5-grams there, and a mixed text needs no decision.
The shingles of a text are its word 5-grams; a text of fewer than five words has one, itself.

Texts that are equal once normalised collapse before anything is compared. Two others are
near-duplicates if the Jaccard similarity of their shingle sets, held as 48-bit hashes, reaches the
threshold. LSH proposes at least 99 % of such pairs, and a cluster is what they connect.

In each band a text is compared with the 16 texts of its bucket before it (ordered by the next band,
so that the likeliest are neighbours), and not if they are in one cluster already. A text that 64
comparisons found unlike is compared no more. So a bucket never costs the square of its size; in one
of more than 17 texts, or of many that are nearly alike enough (one long template), a pair may be
missed that no other band and no common neighbour connects.

Texts are read once and not held. A million different texts of 200 characters take about 0.7 GB:
250 bytes of shingles, 84 of band keys (512 at the lowest thresholds) and 150 of digests each.
"""

import functools
import re
import unicodedata
from array import array
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
from rensa import RMinHash

Numbers = np.ndarray[Any, Any]

SPACELESS = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaa7f"
    "\u2e80-\u2fdf\u3005-\u3007\u3041-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
SHINGLE = 5
PERMUTATIONS = 128
RECALL = 0.99
NEIGHBOURS = 16
PATIENCE = 64
SEED = 42
BATCH_BYTES = 1 << 20
BATCH_TEXTS = 1 << 16  # the number of a text in its batch takes 16 bits beside a 48-bit hash
CHUNK = 1 << 20  # shingles compared at once
LOW48 = np.uint64((1 << 48) - 1)
BASE = 0x9E3779B97F4A7C15
CACHED_BITS = 21


def words(text: str) -> list[str]:
    """The words of a text, as both checks understand them."""
    if text.isascii():
        return text.lower().split()
    return SPACELESS.sub(r" \g<0> ", unicodedata.normalize("NFKC", text).lower()).split()


def mix(values: Numbers) -> Numbers:
    """Spread 64-bit values over all their bits (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.cache
def _powers(bits: int) -> tuple[Numbers, Numbers]:
    tables = []
    for base in (BASE, pow(BASE, -1, 1 << 64)):
        table = np.full(1 << bits, base, dtype=np.uint64)
        table[0] = 1
        tables.append(np.cumprod(table))
    return tables[0], tables[1]


def span_hashes(values: Numbers, starts: Numbers | slice, ends: Numbers | slice) -> Numbers:
    """64-bit polynomial hashes of values[start:end], for values that are spread over 64 bits.

    Starts and ends are arrays, or slices of the places between values.
    """
    bits = max(6, len(values).bit_length())
    powers, inverses = (_powers if bits <= CACHED_BITS else _powers.__wrapped__)(bits)
    prefix = np.zeros(len(values) + 1, dtype=np.uint64)
    np.add.accumulate(values * powers[: len(values)], out=prefix[1:])
    return (prefix[ends] - prefix[starts]) * inverses[starts]


BYTES = mix(np.arange(1, 257, dtype=np.uint64))


def shingles(texts: list[bytes]) -> tuple[Numbers, Numbers]:
    """The shingle hashes of normalised texts, sorted in each text, and how many each has."""
    buffer = np.frombuffer(b"\n".join(texts), dtype=np.uint8)
    breaks = np.flatnonzero((buffer == ord(" ")) | (buffer == ord("\n")))
    starts, ends = np.append(0, breaks + 1), np.append(breaks, len(buffer))
    last = np.append(np.flatnonzero(buffer[breaks] == ord("\n")), len(breaks))
    first = np.append(0, last[:-1] + 1)
    length = last - first + 1
    counts = np.maximum(length - SHINGLE + 1, 1)
    text = np.repeat(np.arange(len(texts)), counts)
    opening = spread(first, counts)
    closing = opening + np.minimum(length, SHINGLE)[text] - 1
    hashes = mix(span_hashes(BYTES[buffer], starts[opening], ends[closing])) & LOW48
    keys = np.unique(text.astype(np.uint64) << np.uint64(48) | hashes)
    return keys & LOW48, np.bincount((keys >> np.uint64(48)).astype(np.int64))


def spread(starts: Numbers, counts: Numbers) -> Numbers:
    """start, start + 1, ... of each start, as many as its count says."""
    return np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


def banding(threshold: float) -> tuple[int, int]:
    """Bands and rows a band: the most rows that still find a pair at the threshold."""
    for rows in range(PERMUTATIONS, 1, -1):
        bands = PERMUTATIONS // rows
        if 1 - (1 - threshold**rows) ** bands >= RECALL:
            return bands, rows
    return PERMUTATIONS, 1


def band_keys(hashes: Numbers, counts: Numbers, bands: int, rows: int) -> Numbers:
    """The LSH keys of texts, one row a band."""
    offsets = np.append(0, np.cumsum(counts)).astype(np.uint64)
    digests = RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, PERMUTATIONS, SEED)
    slots = np.array(digests.to_rows(), dtype=np.uint64)[:, : bands * rows]
    slots = slots.reshape(len(counts), bands, rows)
    keys = np.zeros((len(counts), bands), dtype=np.uint64)
    for row in range(rows):
        keys = mix(keys + slots[:, :, row] + np.uint64(1))
    return (keys >> np.uint64(32)).astype(np.uint32).T


class Sketches:
    """Shingle sets and band keys of the different texts."""

    def __init__(self, threshold: float):
        self.threshold = threshold
        self.bands, self.rows = banding(threshold)
        self._hashes = array("Q")
        self._counts: list[Numbers] = []
        self._keys: list[Numbers] = []

    def add(self, texts: list[bytes]) -> None:
        hashes, counts = shingles(texts)
        self._hashes.frombytes(hashes.tobytes())
        self._counts.append(counts)
        self._keys.append(band_keys(hashes, counts, self.bands, self.rows))

    def connected(self) -> Numbers:
        """For each text the first one of its cluster."""
        self.hashes = np.frombuffer(self._hashes, dtype=np.uint64)
        self.counts = np.concatenate(self._counts)
        self.starts = np.cumsum(self.counts) - self.counts
        keys = np.concatenate(self._keys, axis=1)
        self._keys.clear()
        parent = np.arange(len(self.counts))
        unlike = np.zeros(len(parent), dtype=np.int32)
        for band in range(self.bands):
            following = keys[(band + 1) % self.bands]
            order = np.argsort(
                keys[band].astype(np.uint64) << np.uint64(32) | following, kind="stable"
            )
            bucket = keys[band][order]
            for step in range(1, NEIGHBOURS + 1):
                at = np.flatnonzero(bucket[step:] == bucket[:-step])
                if not len(at):
                    break
                left, right = order[at], order[at + step]
                still = (parent[left] != parent[right]) & (
                    np.maximum(unlike[left], unlike[right]) < PATIENCE
                )
                left, right = left[still], right[still]
                alike = self._alike(left, right)
                for which in (left, right):  # a text is at most once in each
                    unlike[which[~alike]] += 1
                for a, b in zip(left[alike].tolist(), right[alike].tolist(), strict=True):
                    unite(parent, a, b)
                flatten(parent)
        return parent

    def _alike(self, left: Numbers, right: Numbers) -> Numbers:
        """Which pairs reach the threshold."""
        sizes = np.sort([self.counts[left], self.counts[right]], axis=0)
        alike = sizes[0] / sizes[1] >= self.threshold
        possible = np.flatnonzero(alike)
        ends = np.cumsum(sizes.sum(axis=0)[possible])
        begin = 0
        while begin < len(possible):
            done = ends[begin - 1] if begin else 0
            end = int(np.searchsorted(ends, done + CHUNK, side="right"))
            end = max(begin + 1, min(end, begin + BATCH_TEXTS))
            chunk = possible[begin:end]
            alike[chunk] = self._jaccard(left[chunk], right[chunk]) >= self.threshold
            begin = end
        return alike

    def _jaccard(self, left: Numbers, right: Numbers) -> Numbers:
        both = np.concatenate([left, right])
        counts = self.counts[both]
        pair = np.repeat(np.tile(np.arange(len(left), dtype=np.uint64), 2), counts)
        shingle = self.hashes[spread(self.starts[both], counts)]
        keys = np.sort(pair << np.uint64(48) | shingle, kind="stable")  # merges two sorted halves
        common = keys[1:][keys[1:] == keys[:-1]] >> np.uint64(48)
        shared = np.bincount(common.astype(np.int64), minlength=len(left))
        return shared / (self.counts[left] + self.counts[right] - shared)


def unite(parent: Numbers, a: int, b: int) -> None:
    while parent[a] != a:
        a = parent[a]
    while parent[b] != b:
        b = parent[b]
    parent[max(a, b)] = min(a, b)


def flatten(parent: Numbers) -> None:
    """Let each text point at the first of its cluster."""
    while True:
        above = parent[parent]
        if np.array_equal(above, parent):
            return
        parent[:] = above


def clusters(texts: Iterable[str], threshold: float) -> list[int]:
    """For each text, in order, the index of the first text of its cluster: its own if alone."""
    seen: dict[bytes, int] = {}
    kinds, firsts = array("q"), array("q")
    sketches = Sketches(threshold)
    batch: list[bytes] = []
    size = 0
    for index, text in enumerate(texts):
        normal = " ".join(words(text)).encode("utf-8", "surrogatepass")
        kind = seen.setdefault(blake2b(normal, digest_size=16).digest(), len(firsts))
        kinds.append(kind)
        if kind < len(firsts):
            continue
        firsts.append(index)
        batch.append(normal)
        size += len(normal)
        if size >= BATCH_BYTES or len(batch) == BATCH_TEXTS:
            sketches.add(batch)
            batch, size = [], 0
    seen.clear()
    if batch:
        sketches.add(batch)
    if not kinds:
        return []
    return np.array(firsts)[sketches.connected()[np.array(kinds)]].tolist()

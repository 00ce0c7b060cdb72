"""Near-duplicates: never a pair that is none, hardly one missed, whatever the texts hold.

The reference compares every pair of texts by Python sets of words.
"""

import random
import unicodedata
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_scripts.texts import near_duplicates
from workflow_scripts.texts.near_duplicates import NEIGHBOURS, Sketches, banding, clusters, words

Shingles = set[tuple[str, ...]]
FEW_WORDS = st.lists(st.sampled_from(["a", "B", "ﬁ", "é", "中", "ก"]), max_size=12).map(" ".join)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)


def reference_shingles(text: str) -> Shingles:
    found = words(text)
    return {tuple(found[i : i + 5]) for i in range(max(len(found) - 4, 1))}


def jaccard(a: Shingles, b: Shingles) -> float:
    return len(a & b) / len(a | b)


def similar_pairs(texts: list[str], threshold: float) -> dict[tuple[int, int], float]:
    sets = [reference_shingles(text) for text in texts]
    found = {}
    for i, j in combinations(range(len(texts)), 2):
        if (similarity := jaccard(sets[i], sets[j])) >= threshold:
            found[i, j] = similarity
    return found


def reference_clusters(texts: list[str], threshold: float) -> list[int]:
    first = list(range(len(texts)))
    for i, j in similar_pairs(texts, threshold):
        a, b = first[i], first[j]
        first = [min(a, b) if f in (a, b) else f for f in first]
    return first


def edited(rng: random.Random, text: str, edits: int) -> str:
    found = text.split()
    for _ in range(edits):
        found[rng.randrange(len(found))] = f"edit{rng.randrange(10**9)}"
    return " ".join(found)


def planted(seed: int, originals: int, length: int) -> list[str]:
    rng = random.Random(seed)
    texts = []
    for _ in range(originals):
        text = " ".join(f"w{rng.randrange(5000)}" for _ in range(length))
        texts += [text, edited(rng, text, rng.randint(1, 3))]
    rng.shuffle(texts)
    return texts


def sketched(texts: list[str], threshold: float = 0.8) -> Sketches:
    sketches = Sketches(threshold)
    sketches.add([" ".join(words(t)).encode("utf-8", "surrogatepass") for t in texts])
    sketches.connected()
    return sketches


@pytest.mark.parametrize(
    "texts, expected",
    [
        ([], []),
        (["", " \n", "\u3000"], [0, 0, 0]),
        (["one", "ONE ", "two", "o n e"], [0, 0, 2, 3]),
        (["Straße ﬁn", "straße fin"], [0, 0]),
        # nine shingles of ten are shared: 9 / 11
        ([" ".join("abcdefghijklmn"), "x y", " ".join("abcdefghijklmz")], [0, 1, 0]),
        # of fewer than five words only equal ones are alike
        (["a b c d", "a b c e", "A  b c d"], [0, 1, 0]),
    ],
)
def test_hand_worked(texts: list[str], expected: list[int]) -> None:
    assert clusters(texts, 0.8) == expected


def test_scripts_without_spaces_count_characters() -> None:
    assert words("GPT是什么?") == ["gpt", "是", "什", "么", "?"]
    assert words("カナ ภาษา 한국어") == [*"カナ", *"ภาษา", "한국어"]
    assert words("ｶﾞ") == ["ガ"]
    text = "请用简单的语言解释什么是机器学习以及它是如何工作的"
    assert clusters([text, text + "呢", "你好"], 0.8) == [0, 0, 2]


def test_a_cluster_is_what_pairs_connect() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    chain = [" ".join(letters[i : i + 20]) for i in range(0, 6, 2)]  # 14 / 18 shared by neighbours
    assert len(similar_pairs(chain, 0.77)) == 2
    assert clusters(chain, 0.77) == [0, 0, 0]
    assert clusters(chain[::2], 0.77) == [0, 1]


@pytest.mark.parametrize("threshold", [0.8, 0.9])
@pytest.mark.parametrize("length", [120, 200])
def test_recall_of_planted_pairs(threshold: float, length: int) -> None:
    texts = planted(length, 150, length)
    pairs = similar_pairs(texts, threshold)
    found = clusters(texts, threshold)
    missed = [similarity for (i, j), similarity in pairs.items() if found[i] != found[j]]
    assert len(pairs) >= 40 and len(missed) <= 0.03 * len(pairs), missed
    expected = reference_clusters(texts, threshold)
    assert all(expected[first] == expected[i] for i, first in enumerate(found))


@pytest.mark.parametrize("threshold", np.arange(0.05, 1, 0.05).tolist())
def test_bands_find_pairs_at_the_threshold(threshold: float) -> None:
    bands, rows = banding(threshold)
    assert bands * rows <= 128 and 1 - (1 - threshold**rows) ** bands >= 0.99


@given(st.lists(FEW_WORDS, max_size=12), st.sampled_from([0.1, 0.5, 0.8, 0.99]))
def test_no_cluster_that_the_reference_does_not_have(texts: list[str], threshold: float) -> None:
    expected = reference_clusters(texts, threshold)
    found = clusters(texts, threshold)
    for index, first in enumerate(found):
        assert first <= index and found[first] == first
        assert expected[first] == expected[index]
    for i, j in similar_pairs(texts, 1):
        assert found[i] == found[j]


@given(FEW_WORDS, FEW_WORDS)
def test_similarity_is_that_of_the_sets(a: str, b: str) -> None:
    found = sketched([a, b])._jaccard(np.array([0]), np.array([1]))
    assert found.tolist() == [jaccard(reference_shingles(a), reference_shingles(b))]


@settings(deadline=None)
@given(st.lists(ANY_TEXT, max_size=5))
def test_any_text(texts: list[str]) -> None:
    found = clusters([*texts, *texts], 0.8)
    assert found[: len(texts)] == found[len(texts) :]
    for text in texts:
        assert not any(c.isspace() for word in words(text) for c in word)


def test_hostile_unicode() -> None:
    texts = ["\ud800", "\x00", "\u200b", "e\u0301", "é", "\ufdfa", "a" * 100_000, "İ", "\U0010ffff"]
    assert clusters(texts, 0.8) == [0, 1, 2, 3, 3, 5, 6, 7, 8]
    assert unicodedata.normalize("NFKC", "\ufdfa").split() == words("\ufdfa")


def test_texts_are_read_once_and_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = planted(1, 50, 40)
    expected = clusters(texts, 0.8)
    monkeypatch.setattr(near_duplicates, "BATCH_BYTES", 1000)
    monkeypatch.setattr(near_duplicates, "CHUNK", 100)

    def once() -> Iterator[str]:
        yield from texts

    assert clusters(once(), 0.8) == expected


def test_equal_texts_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    added = []
    add = Sketches.add

    def counting(self: Sketches, texts: list[bytes]) -> None:
        added.extend(texts)
        add(self, texts)

    monkeypatch.setattr(Sketches, "add", counting)
    texts = ["Tell me a joke about cats, please!"] * 5000 + ["Tell me another one."] * 10
    assert clusters(texts, 0.8) == [0] * 5000 + [5000] * 10
    assert len(added) == 2


def test_a_large_bucket_is_not_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    similar = Sketches._jaccard

    def counting(self: Sketches, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        compared.append(len(left))
        return similar(self, left, right)

    monkeypatch.setattr(Sketches, "_jaccard", counting)
    template = " ".join(f"t{i}" for i in range(40))
    texts = [f"{template} " + " ".join(f"q{i}x{j}" for j in range(6)) for i in range(3000)]
    assert 0.7 < next(iter(similar_pairs(texts[:2], 0.1).values())) < 0.8
    assert clusters(texts, 0.8) == list(range(3000))  # alike, none alike enough
    assert sum(compared) <= NEIGHBOURS * banding(0.8)[0] * len(texts)
    compared.clear()
    assert clusters(texts, 0.7) == [0] * 3000
    assert sum(compared) < 3 * len(texts)

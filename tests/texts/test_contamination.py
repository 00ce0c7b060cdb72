"""Contamination: every row that shares n words is found, and nothing else is.

The reference compares tuples of words.
"""

import random
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.texts import contamination
from workflow_scripts.texts.contamination import HeldOut, plain_words

QUESTION = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
)
FEW_WORDS = st.lists(st.sampled_from(["a", "B", "c!", "ﬁ", "中", "-"]), max_size=9).map(" ".join)
ROWS = st.lists(st.tuples(st.sampled_from(["x", "y"]), FEW_WORDS), max_size=30)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)


def held_out(n: int, *rows: tuple[str, str]) -> HeldOut:
    found = HeldOut(n)
    for name, text in rows:
        found.add(name, text)
    return found


def ngrams(found: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(found[i : i + n]) for i in range(len(found) - n + 1)]


def reference(n: int, rows: list[tuple[str, str]], text: str) -> tuple[dict[str, str], set[int]]:
    """The first shared words by set, and the rows that share some."""
    where: dict[tuple[str, tuple[str, ...]], set[int]] = defaultdict(set)
    for row, (name, other) in enumerate(rows):
        for gram in ngrams(plain_words(other), n):
            where[name, gram].add(row)
    hits: dict[str, str] = {}
    hit: set[int] = set()
    found = plain_words(text)
    for gram in ngrams(found, n):
        for name in ("x", "y"):
            if 0 < len(where[name, gram]) <= 10:
                hits.setdefault(name, " ".join(gram))
                hit |= where[name, gram]
    for row, (name, other) in enumerate(rows):
        if 4 <= len(plain_words(other)) < n and plain_words(other) == found:
            hits[name] = " ".join(found)
            hit.add(row)
    return hits, hit


@pytest.mark.parametrize(
    "text, shared",
    [
        (QUESTION, "natalia sold clips to 48 of her friends in april and then she"),
        # case, punctuation and white space do not matter
        (
            "So: *she SOLD half — as many\nclips in May* natalia sold “clips” to 48 "
            "of her FRIENDS in April; and then, she ran",
            "natalia sold clips to 48 of her friends in april and then she",
        ),
        ("x of her friends in april and then she sold half as many clips y", None),
        # twelve words only
        ("y of her friends in april and then she sold half as many x", None),
        ("clips to 48 of her friends in April and when she sold half as many clips in May", None),
        ("", None),
    ],
)
def test_hand_worked(text: str, shared: str | None) -> None:
    found = held_out(13, ("gsm8k", QUESTION), ("other", "nothing of that kind is here"))
    if text.startswith("x of"):
        shared = "of her friends in april and then she sold half as many clips"
    expected = [] if shared is None else [("gsm8k", shared)]
    assert found.hits(text) == expected
    assert found.counts() == {
        "gsm8k": {"rows": 1, "hit": len(expected)},
        "other": {"rows": 1, "hit": 0},
    }


def test_a_short_row_counts_by_equality() -> None:
    found = held_out(13, ("trivia", "What is the capital of France?"), ("trivia", "Who are you?"))
    assert found.hits("what IS the capital of France") == [
        ("trivia", "what is the capital of france")
    ]
    assert found.hits("Tell me: what is the capital of France?") == []
    assert found.hits("Who are you?") == []  # three words
    assert found.counts() == {"trivia": {"rows": 2, "hit": 1}}


def test_scripts_without_spaces_count_characters() -> None:
    found = held_out(13, ("cmmlu", "下列关于中华人民共和国宪法的说法,正确的是哪一项?"))
    assert found.hits("请问:关于中华人民共和国宪法的说法!") == [
        ("cmmlu", " ".join("关于中华人民共和国宪法的"[:13] + "说"))
    ]
    assert found.hits("中华人民共和国宪法") == []


def test_marks_belong_to_words() -> None:
    assert plain_words("किताब, की! कि") == ["किताब", "की", "कि"]
    assert plain_words("don't re-use ２+2=４ 😀 a\u200bb") == ["dont", "reuse", "224", "ab"]


def test_each_set_once_and_each_row_counted_once() -> None:
    found = held_out(3, ("x", "a b c d e"), ("y", "b c d"), ("x", "a b c"), ("y", "c d e f"))
    assert found.hits("A b c d e f") == [("x", "a b c"), ("y", "b c d")]
    assert found.hits("a b c") == [("x", "a b c")]
    assert found.counts() == {"x": {"rows": 2, "hit": 2}, "y": {"rows": 2, "hit": 2}}


def test_ngrams_do_not_cross_rows() -> None:
    found = held_out(3, ("x", "a b c"), ("x", "d e f"))
    assert found.hits("b c d e") == []


@pytest.mark.parametrize("rows, hits", [(10, 1), (11, 0)])
def test_boilerplate_is_ignored(rows: int, hits: int) -> None:
    template = "choose the right answer"
    found = held_out(4, *(("x", f"{template} q{i}") for i in range(rows)), ("y", template))
    assert found.hits(template) == [("x", template)] * hits + [("y", template)]
    assert found.hits("the right answer q3") == [("x", "the right answer q3")]


def test_rows_can_be_added_later() -> None:
    found = held_out(3, ("x", "a b c"))
    assert found.hits("d e f") == []
    found.add("y", "d e f")
    assert found.hits("d e f") == [("y", "d e f")]
    assert held_out(13).hits("a") == [] and held_out(13).counts() == {}


@given(st.sampled_from([2, 3, 5]), ROWS, st.lists(FEW_WORDS, max_size=4))
def test_as_the_reference(n: int, rows: list[tuple[str, str]], texts: list[str]) -> None:
    found = held_out(n, *rows)
    hit: set[int] = set()
    for text in [*texts, *(row[1] for row in rows[:3])]:
        expected, more = reference(n, rows, text)
        assert dict(found.hits(text)) == expected
        hit |= more
    assert found._hit == hit


def worst(values: np.ndarray, starts: slice, ends: slice) -> np.ndarray:
    return np.full(len(values[starts]), 7, dtype=np.uint64)


@pytest.mark.parametrize("colliding", [False, True])
def test_planted_words(monkeypatch: pytest.MonkeyPatch, colliding: bool) -> None:
    """With hashes that all collide, nothing is found that is not there."""
    if colliding:
        monkeypatch.setattr(contamination, "span_hashes", worst)
    rng = random.Random(3)
    rows = [
        ("xy"[i % 2], " ".join(f"w{rng.randrange(200)}" for _ in range(rng.randint(0, 30))))
        for i in range(8 if colliding else 300)
    ]
    found = held_out(6, *rows)
    planted = 0
    for _ in range(150):
        text = " ".join(f"w{rng.randrange(200)}" for _ in range(20))
        if rng.random() < 0.5:
            text += " " + rng.choice(rows)[1]
        hits, expected = dict(found.hits(text)), reference(6, rows, text)[0]
        planted += bool(expected)
        if colliding:
            assert hits.keys() <= expected.keys()
        else:
            assert hits == expected
    assert planted > 30


@given(st.lists(ANY_TEXT, min_size=1, max_size=4), st.sampled_from([3, 13]))
def test_any_text(texts: list[str], n: int) -> None:
    found = held_out(n, *(("x", text) for text in texts[1:]))
    for text in texts:
        expected = reference(n, [("x", other) for other in texts[1:]], text)[0]
        assert dict(found.hits(text)) == expected

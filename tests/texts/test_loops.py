"""Repetition loops: what counts as one, where it is, and what never counts.

Texts are cut into ids like the vocabularies in use do it: a word with its space, one digit (Qwen,
SmolLM2) or up to three (Llama 3), one sign. Expected numbers are worked out by hand.
"""

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.made.paths import DATA
from workflow_scripts.texts.loops import FLOOR, LENGTH, PLAIN_LENGTH, THRESHOLD, Loop, find, is_loop

ANSWERS = DATA / "texts/loops/smollm2.jsonl"
WORDS = (
    "alpha bravo carrot delta engine forest garden hammer island jungle kettle lemon mango needle "
    "orange pepper quartz rabbit saddle tunnel umbrella violin window xylophone yogurt zebra"
)
NAMES = WORDS.split() + [a + b for a in WORDS.split() for b in WORDS.split()]
# 115 words and signs, as a model writes it that has lost its way.
PARAGRAPH = (
    "Wait, I should double check this. The problem says that the train leaves the station at "
    "{} and travels at a constant speed, so the distance it covers is the speed times the time. "
    "If the speed is sixty miles per hour and the time is two hours, the distance is one hundred "
    "and twenty miles. That {} with the answer I found before, but let me make sure that I did not "
    "misread the question. The question asks for the total distance, including the way back, so I "
    "have to {} it by two.\n\n"
)
THINKING = "<think>\nThe divisors of 1001 are 7, 11 and 13, since 7 times 11 is 77 and 77 times 13 "


def cut(text: str, digits: int = 1) -> list[int]:
    """Ids of a text, in the order in which its pieces first appear."""
    known: dict[str, int] = {}
    pieces = re.findall(rf" ?[^\W\d_]+|\d{{1,{digits}}}|\s| ?[^\w\s]|_", text)
    assert "".join(pieces) == text
    return [known.setdefault(piece, len(known)) for piece in pieces]


def numbered(line: str, rounds: int) -> str:
    """The lines with their number, from 1, in place of {n}, and a name in place of {name}."""
    return "".join(line.format(n=n, m=7 * n, name=NAMES[n]) for n in range(1, rounds + 1))


LOOPS = {
    "sentence": "Wait, let me check again. " * 40,
    "word": "I said" + " wait" * 500,
    "recurring decimal": "4 / 12 = 0." + "3" * 1400,
    "decimal of two digits": "3 / 440 = 0.006" + "81" * 700,
    "sentence in the reasoning, then an answer": THINKING
    + "is 1001. Let me verify this once more. " * 30
    + "I am sure now.\n</think>\n\n"
    + numbered("The {name} has a price that depends on the {n} others.\n", 20),
    "two sentences in turn": "Is it seven? No, it is eight. But is it eight? No, it is seven. "
    * 20,
    "paragraph": PARAGRAPH * 7,
    "paragraph with one word changed": "".join(
        PARAGRAPH.format("noon", NAMES[n], "multiply") for n in range(20)
    ),
    "list that repeats its last item": "- The Wire\n- The Crown\n" + "- Rick and Morty\n" * 60,
    "counter in a sentence": numbered("Attempt {n}: let me check the sum again.\n", 200),
    "counter in a longer sentence": numbered(
        "{n}. Click on the Add File button again to upload the database of your project.\n", 60
    ),
    "one word changed": numbered(
        "Let me think about the {name} again and verify every step.\n", 80
    ),
    # Nobody can tell these from the counters above without the prompt.
    "rows that differ in one number": numbered("INSERT INTO users (id) VALUES ({n});\n", 60),
    "broken off and taken up again": "Wait, let me check again. " * 20
    + "So the sum is nine. "
    + "Wait, let me check again. " * 20,
}
FINE = {
    "nothing": "",
    "numbered list": numbered("{n}. item number {n} is called {name}{m}\n", 200),
    "list with a template": numbered("- {name}: the word {name} has a meaning of its own\n", 200),
    "markdown table": "| number | name | price |\n|---|---|---|\n"
    + numbered("| {n} | {name} | {m}.50 |\n", 100),
    "number sequence": ", ".join(map(str, range(1000))),
    "number sequence by lines": "\n".join(map(str, range(1000))),
    "multiplication table": numbered("7 x {n} = {m}\n", 200),
    "JSON array": "["
    + numbered('{{"id": {n}, "name": "User {n}", "email": "user{n}@example.com"}},\n', 200),
    # 33 objects of one shape set off a peer's guard: can1357/oh-my-pi issue 11129.
    "JSON array of a peer's false alarm": '{"cases":['
    + numbered(
        '{{"case_id":{n},"case_name":"case {n}","case_url":"https://example.com/#/case/{n}"}},', 33
    ),
    "SQL": numbered("INSERT INTO users (id, name) VALUES ({n}, 'User{n}');\n", 200),
    "C header": numbered("#define GPIO_PIN_{n} (1 << {n})\n", 100),
    "unit tests": numbered(
        "    def test_{name}_is_found(self) -> None:\n"
        "        result = self.client.get('/api/items/{name}')\n"
        "        self.assertEqual(result.status_code, 200)\n"
        "        self.assertEqual(result.json()['name'], '{name}')\n\n",
        26,
    ),
    "HTML cards": numbered(
        '<div class="col">\n  <div class="card">\n    <img src="/images/{name}.png">\n'
        '    <h5 class="title">The {name}</h5>\n    <p>Learn more about the {name} here.</p>\n'
        '    <a href="/items/{name}" class="btn">Read more</a>\n  </div>\n</div>\n',
        40,
    ),
    "song": "".join(
        f"{n} bottles of beer on the wall, {n} bottles of beer. "
        f"Take one down and pass it around, {n - 1} bottles of beer on the wall.\n\n"
        for n in range(99, 0, -1)
    ),
    "poem with a refrain": "".join(
        f"The {NAMES[n]} sang beneath the {NAMES[n + 1]},\nand no {NAMES[n + 2]} ever came,\n"
        "but row, my love, row on, row on,\nthe river has no name.\n\n"
        for n in range(20)
    ),
    "trial division": numbered("{m} divided by {n} leaves the rest {n}, so {n} is none.\n", 60),
    "product of twos": "After 4 hours there are 1" + "*2" * 12 + " = 4096 cells.",
    "rules of a table": ("-" * 40 + "\n| a | b |\n") * 3,
    "laughter": "ha " * 60,
}
BORDERLINE = {
    "proof restated": PARAGRAPH * 4,
    "chessboard": ("#." * 10 + "\n" + ".#" * 10 + "\n") * 10,
    "matrix of zeros": ("[" + ", ".join("0" * 10) + "],\n") * 10,
    "cards without content": '<div class="card"><p>Some text.</p><a href="#">More</a></div>\n' * 8,
    "counter in a sentence": numbered("Attempt {n}: let me check the sum again.\n", 30),
    "sentence": "Wait, let me check again. " * 15,
}


@pytest.mark.parametrize("digits", [1, 3])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_found(name: str, digits: int) -> None:
    assert is_loop(find(cut(LOOPS[name], digits)))


@pytest.mark.parametrize("digits", [1, 3])
@pytest.mark.parametrize("name", FINE)
def test_what_only_resembles_a_loop_is_not_even_reported(name: str, digits: int) -> None:
    assert find(cut(FINE[name], digits)) is None


@pytest.mark.parametrize("name", BORDERLINE)
def test_borderline_stretches_are_reported_and_are_no_loops(name: str) -> None:
    loop = find(cut(BORDERLINE[name]))
    assert loop is not None
    assert FLOOR <= loop.score < THRESHOLD
    assert not is_loop(loop)
    assert is_loop(loop, FLOOR)


def test_no_stretch_is_no_loop() -> None:
    assert not is_loop(None)
    assert not is_loop(None, 0.0)


def test_thinking_that_checks_a_sum_four_hundred_times() -> None:
    text = "<think>\nI will check the sum again. " + "Wait, let me check the sum again. " * 400
    ids = cut(text + "\n</think>\n\n4")
    loop = find(ids)
    # < think > newline I will, then 5 that the first round ends with too (check the sum again .),
    # 400 rounds of 9, and space newline < / think > newline newline 4.
    assert len(ids) == 6 + 5 + 400 * 9 + 9
    assert loop is not None
    assert (loop.start, loop.period) == (6, 9)
    assert loop.repeats == pytest.approx(400 + 5 / 9)
    assert loop.share == pytest.approx(3605 / 3620)


def test_a_list_with_three_counters_is_no_loop() -> None:
    lines = [f"{n}. item number {n} is called {chr(97 + n % 26)}{37 * n}" for n in range(1, 200)]
    assert lines[0].endswith("b37") and lines[-1] == "199. item number 199 is called r7363"
    assert find(cut("\n".join(lines))) is None


def test_score_of_exact_rounds_worked_out_by_hand() -> None:
    ids = list(range(100, 110)) + list(range(10)) * 31 + list(range(200, 280))
    # 30 rounds of 10 are copied: 300 / (150 + 3 * 10).
    assert find(ids) == Loop(start=10, period=10, repeats=31, share=310 / 400, score=300 / 180)


def test_score_with_one_change_a_round_worked_out_by_hand() -> None:
    ids = [i for n in range(51) for i in (1000 + n, *range(19))]
    # 50 runs of 19 copied ids, and between them 49 changes of one id, each of which costs half a
    # period more: 950 - 49 * (1 + 10), over 150 + 3 * 20.
    assert find(ids) == Loop(
        start=1, period=20, repeats=1019 / 20, share=1019 / 1020, score=411 / 210
    )


def test_score_with_changes_in_a_long_unit_worked_out_by_hand() -> None:
    ids = [i for n in range(11) for i in (5000 + n, *range(399))]
    # A change costs 40 at most: 10 * 399 - 9 * (1 + 40), over 150 + 3 * 400.
    loop = find(ids)
    assert loop is not None and loop.score == pytest.approx((3990 - 369) / 1350)


def test_runs_below_eight_do_not_count() -> None:
    assert find([i for n in range(500) for i in (1000 + n, *range(7))]) is None
    assert is_loop(find([i for n in range(500) for i in (1000 + n, *range(8))]))


def test_boards_and_single_signs_need_more() -> None:
    unit = [1, 2, 1, 2, 1, 2, 1, 3]
    loop = find(unit * 61)
    # 3 different ids: 60 * 8 / (400 + 3 * 8).
    assert loop is not None and loop.score == pytest.approx(480 / 424)


def test_counter_that_gets_more_digits_is_one_loop() -> None:
    ids = cut(numbered("Attempt {n}: let me check the sum again.\n", 150))
    loop = find(ids)
    assert loop is not None
    assert loop.share > 0.95
    assert loop.period in (13, 14)


def test_the_worse_of_two_loops_is_returned() -> None:
    ids = list(range(20)) * 15 + list(range(1000, 1300)) + list(range(50, 70)) * 25
    loop = find(ids)
    assert loop is not None
    assert (loop.start, loop.period) == (600, 20)


def test_two_copies_of_a_long_text_are_no_loop() -> None:
    draft = list(range(3000))
    assert find(draft + draft) is None or not is_loop(find(draft + draft))


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint16, np.uint32])
def test_arrays_and_lists_give_the_same(kind: Any) -> None:
    ids = cut(LOOPS["sentence"])
    assert find(np.array(ids, kind)) == find(ids)


# Property tests


@st.composite
def planted(draw: st.DrawFn) -> tuple[list[int], int, int, int]:
    """Random ids, a unit of 1 to 200 different ids again and again, random ids; where and what."""
    period = draw(st.integers(1, 200))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    unit = rng.choice(50_000, period, replace=False)
    # Rounds beyond the first and those that the score divides by.
    rounds = 4 + -(-(PLAIN_LENGTH if period < 4 else LENGTH) // period) + draw(st.integers(0, 20))
    before, after = (rng.integers(0, 50_000, draw(st.integers(0, 1500))) for _ in range(2))
    ids = np.concatenate([before, np.tile(unit, rounds), after]).tolist()
    return ids, len(before), period, rounds


@settings(max_examples=150, deadline=None)
@given(planted())
def test_planted_loop_is_found_where_it_is(case: tuple[list[int], int, int, int]) -> None:
    ids, start, period, rounds = case
    loop = find(ids)
    assert loop is not None and is_loop(loop)
    assert loop.period == period
    assert abs(loop.start - start) <= period
    assert abs(loop.repeats - rounds) <= 1
    assert loop.share == pytest.approx(loop.repeats * period / len(ids))


@settings(max_examples=100, deadline=None)
@given(planted())
def test_score_grows_with_every_round(case: tuple[list[int], int, int, int]) -> None:
    ids, start, period, _ = case
    more = ids[: start + period] + ids[start:]
    loop, longer = find(ids), find(more)
    assert loop is not None and longer is not None
    assert longer.score > loop.score


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 100_000), st.integers(0, 4000))
def test_random_ids_are_never_a_loop(seed: int, vocabulary: int, length: int) -> None:
    assert not is_loop(find(np.random.default_rng(seed).integers(0, vocabulary, length)))


ANY_IDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=100)
FEW_IDS = st.lists(st.integers(0, 2), max_size=600)
BLOCKS = st.lists(
    st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 60)), max_size=6
).map(lambda blocks: [i for unit, times in blocks for i in unit * times])


@settings(max_examples=300, deadline=None)
@given(st.one_of(ANY_IDS, FEW_IDS, BLOCKS))
def test_any_ids_give_none_or_a_stretch_that_repeats(ids: list[int]) -> None:
    loop = find(ids)
    if loop is None:
        return
    end = loop.start + round(loop.repeats * loop.period)
    assert loop.score >= FLOOR
    assert 0 <= loop.start < end <= len(ids)
    assert loop.share == pytest.approx((end - loop.start) / len(ids))
    slack = max(1, loop.period // 8)
    lags = range(max(1, loop.period - slack), loop.period + slack + 1)
    second = range(loop.start + loop.period, end)
    copied = sum(any(i >= lag and ids[i] == ids[i - lag] for lag in lags) for i in second)
    assert copied > len(second) / 2


@settings(max_examples=50, deadline=None)
@given(planted(), st.integers(1, 10**6))
def test_only_equality_of_ids_matters(case: tuple[list[int], int, int, int], factor: int) -> None:
    ids = case[0]
    assert find([factor * i + 17 for i in ids]) == find(ids)


# Completions of a real model


# Read as loops and short of the default threshold: four to ten rounds when they were cut off, two
# of them with changes all over, and sixty short ones with a counter.
MISSED = {"juice paragraph", "helper functions", "varied sentences", "sixty animals"}


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ANSWERS.read_text(encoding="utf-8").splitlines()]


def test_completions_of_a_small_model_are_judged_as_a_reader_did() -> None:
    read = {row["name"]: row["loop"] and row["name"] not in MISSED for row in rows()}
    found = {row["name"]: is_loop(find(row["ids"])) for row in rows()}
    assert sorted(read.values()).count(True) == 6 and len(read) == 17
    assert found == read


@pytest.mark.parametrize("name", sorted(MISSED))
def test_missed_loops_are_reported_as_borderline(name: str) -> None:
    [ids] = [row["ids"] for row in rows() if row["name"] == name]
    loop = find(ids)
    assert loop is not None and not is_loop(loop)

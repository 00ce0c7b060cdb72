"""How benchmarks/trainers.py names differences, on rows worked out by hand (one token a byte)."""

import pytest

from benchmarks.trainer_masks import SAME, Row, difference
from tests.made.model import IM_END, IM_START, THINK, THINK_CLOSE
from tests.made.prompts import tiny_prompts

# a question that spells an end token; then a reasoning and an answer
IDS = [IM_START, *b"q<|im_end|>", THINK, *b"\na", THINK_CLOSE, *b"b", IM_END]
START = IDS.index(THINK) + 2
MASK = [0] * START + [1] * (len(IDS) - START)
PARSED = [IM_START, *b"q", IM_END, *IDS[IDS.index(THINK) :]]  # the spelled token taken for one
SHORT = [0] * (START - 9) + [1] * (len(IDS) - START)
OTHER = [*IDS[:-2], *b"c", IM_END]
LINE_END = "line end after the end token supervised"


@pytest.mark.parametrize(
    ("ids", "mask", "expected"),
    [
        (IDS, MASK, SAME),
        ([*IDS, 10], [*MASK, 0], SAME),
        ([*IDS, 10], [*MASK, 1], LINE_END),
        (IDS, [*MASK[:START], 0, *MASK[START + 1 :]], "the answer's start is not supervised"),
        (IDS, [*MASK[: START - 1], 1, *MASK[START:]], "text before the answer supervised"),
        (IDS, [0] * len(IDS), "nothing supervised"),
        (OTHER, MASK, "other text, from the answer on; other text supervised"),
        (PARSED, SHORT, "same text in other tokens, from the prompt on"),
        ([*PARSED, 10], [*SHORT, 1], f"{LINE_END}; same text in other tokens, from the prompt on"),
    ],
)
def test_differences_have_names(ids: list[int], mask: list[int], expected: str) -> None:
    prompts = tiny_prompts()
    row = Row("a-0", "plain", 0, IDS, MASK)
    assert difference(row, ids, mask, prompts) == expected

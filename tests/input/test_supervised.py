"""Which ids of a row are a response's, by each column that can say so."""

from typing import Any

import pytest

from workflow_scripts.config.audit import Columns
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.supervised import supervised

IDS = [7, 8, 9]
LAST_TWO = [False, True, True]


def found(row: dict[str, Any], **named: str) -> list[bool]:
    return supervised(row, Columns(**named), IDS)


@pytest.mark.parametrize(
    "name", ["loss_mask", "assistant_masks", "assistant_mask", "completion_mask"]
)
@pytest.mark.parametrize("one", [1, True, 1.0, 0.5])
def test_masks(name: str, one: Any) -> None:
    assert found({name: [0, one, one]}) == LAST_TWO


@pytest.mark.parametrize(
    "row",
    [
        {"labels": [-100, 8, 9]},
        {"response_start": 1},
        {"prompt_length": 1},
        {"loss_mask": None, "prompt_length": 1},
        {"loss_mask": [0, 1, 1], "labels": [7, 8, 9], "prompt_length": 0},  # a mask first
        {"labels": [-100, 8, 9], "prompt_length": 3},
    ],
)
def test_labels_and_starts(row: dict[str, Any]) -> None:
    assert found(row) == LAST_TWO


def test_the_ends_of_a_start() -> None:
    assert found({"response_start": 0}) == [True] * 3
    assert found({"response_start": 3}) == [False] * 3


def test_named_columns_are_the_only_ones() -> None:
    row = {"loss_mask": [1, 1, 1], "mine": [0, 1, 1], "ids_2": [-100, 8, 9], "at": 1}
    for named in ({"loss_mask": "mine"}, {"labels": "ids_2"}, {"response_start": "at"}):
        assert found(row, **named) == LAST_TWO
    with pytest.raises(Reject, match=r"no column labels_2$") as caught:
        found(row, labels="labels_2")
    assert caught.value.reason == "no_mask"


@pytest.mark.parametrize(
    ("reason", "told", "row"),
    [
        ("no_mask", "no column loss_mask, assistant_masks, ", {}),
        ("mask_length", "`loss_mask` has 1 values; there are 3 ids", {"loss_mask": [1]}),
        ("mask_length", "`labels` has 1 values; there are 3 ids", {"labels": [-100]}),
        ("mask_length", "has no list", {"loss_mask": 1}),
        ("mask_length", "is -1;", {"response_start": -1}),
        ("mask_length", "is 4;", {"response_start": 4}),
        ("mask_length", "is True;", {"prompt_length": True}),
        ("bad_mask", "neither 0 nor 1", {"loss_mask": [0, 0, "1"]}),
        ("bad_mask", "neither 0 nor 1", {"loss_mask": [0, 0, -100]}),
        ("labels_differ", "`labels[1]` is 5, the id there is 8", {"labels": [-100, 5, 9]}),
        ("labels_differ", "before its id", {"labels": [-100, 9, -100]}),
        ("labels_differ", "after its id", {"labels": [-100, -100, 8]}),
    ],
)
def test_columns_that_do_not_fit(reason: str, told: str, row: dict[str, Any]) -> None:
    with pytest.raises(Reject) as caught:
        found(row)
    assert (caught.value.reason, told in caught.value.message) == (reason, True)

"""What a reduced vocabulary is made of, against speculators' own count and sums by hand."""

import pickle
import pickletools
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made.merged_rows import Built, reply, row
from tests.made.paths import ROOT
from tests.made.training_rows import row as trained
from tests.made.training_rows import write
from workflow_scripts.dataset import frequencies
from workflow_scripts.dataset.exports import write_exports
from workflow_scripts.dataset.frequencies import coverage, write_frequencies

RECORDED = ROOT / "tests/data/dataset/speculators-0.9.0/token_freq.pt"  # README.md there
# Ids of one to four bytes, a count that needs two, a row without any, and ids held out.
TRAIN = [trained("a", [5, 6, 7, 300, 151_645], 2, []), trained("b", [7] * 400, 1, [])]
MORE = [trained("c", [1, 2], 2, []), trained("d", [70_000, 300, 300, 2**31 - 1], 1, [])]
DRAFTER = [trained("e", [9, 9, 9], 1, [])]
HELD_OUT = [trained("f", [4, 7, 8], 1, [])]


def made(folder: Path) -> Path:
    """The dataset that speculators counted for the recording."""
    sides = {"train_00000": TRAIN, "train_00001": MORE, "drafter_00000": DRAFTER}
    return write(folder, **sides, validation_00000=HELD_OUT)


def archive(path: Path) -> dict[str, bytes]:
    """The entries of what torch.save wrote, without the folder that is named after the file."""
    with zipfile.ZipFile(path) as f:
        assert {info.compress_type for info in f.infolist()} == {zipfile.ZIP_STORED}
        return {name.removeprefix(f"{path.stem}/"): f.read(name) for name in f.namelist()}


def operations(pickled: bytes) -> set[str]:
    return {operation.name for operation, _, _ in pickletools.genops(pickled)}


def test_the_count_is_speculators_own(tmp_path: Path) -> None:
    dataset = made(tmp_path / "dataset")
    write_exports(dataset, ["specforge", "speculators"])
    theirs = archive(RECORDED)
    for form in ("specforge", "speculators"):
        ours = archive(dataset / f"exports/{form}/token_freq.pt")
        assert pickle.loads(ours["data.pkl"]) == pickle.loads(theirs["data.pkl"])
        # nothing that torch.load(weights_only=True) was not seen to read
        assert operations(ours["data.pkl"]) <= operations(theirs["data.pkl"])
        assert ours["version"] == theirs["version"]
    by_hand = {7: 400, 300: 3, 151_645: 1, 2**31 - 1: 1, 9: 2}
    assert pickle.loads(theirs["data.pkl"]) == by_hand


def test_equal_counts_are_equal_bytes(tmp_path: Path) -> None:
    for name, ids in (("a", [3, 1, 1]), ("b", [1, 3, 1])):
        (tmp_path / name).mkdir()
        write_frequencies(tmp_path / name / "token_freq.pt", Counter(ids))
    one, two = ((tmp_path / name / "token_freq.pt").read_bytes() for name in "ab")
    assert one == two


def test_coverage_by_hand() -> None:
    """8,000 ids seen twice and 2,000 seen once: 16,000 of 18,000, then all."""
    counts = Counter(dict.fromkeys(range(50_000, 52_000), 1) | dict.fromkeys(range(8_000), 2))
    assert coverage(counts) == {
        "supervised_tokens": 18_000,
        "distinct_ids": 10_000,
        "coverage": {"8000": 16 / 18, "16000": 1.0, "32000": 1.0},
    }


def test_nothing_has_no_share() -> None:
    assert coverage(Counter()) == {"supervised_tokens": 0, "distinct_ids": 0, "coverage": {}}


@given(
    st.dictionaries(st.integers(0, 2**31 - 1), st.integers(1, 10**12), min_size=1),
    st.lists(st.integers(1, 200), min_size=1, unique=True).map(sorted),
)
def test_more_ids_cover_no_less(counts: dict[int, int], sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frequencies, "SIZES", sizes)
        shares = list(coverage(Counter(counts))["coverage"].values())
    assert len(shares) == len(sizes) and shares == sorted(shares)
    for size, share in zip(sizes, shares, strict=True):
        assert 0 < share <= 1 and (share == 1) == (size >= len(counts))


def test_a_run_counts_what_drafters_train_on(tmp_path: Path) -> None:
    cut = reply("zzz", **{"class": "truncated_in_answer", "finish_reason": "length"})
    rows = [row(n, f"question {n}", cut if n % 2 else reply(f"x{n}")) for n in range(1, 41)]
    settings: dict[str, Any] = {"filters": {"truncated_in_answer": "drafter"}}
    built = Built(tmp_path, rows, validation_fraction=0.3, **settings)
    lists = pl.concat([built.rows("train"), built.rows("drafter")])
    learnt = lists.select(pl.col("input_ids", "loss_mask").explode()).filter(pl.col.loss_mask == 1)
    assert built.rows("validation").height and built.rows("drafter").height
    told = built.stats["drafter_vocabulary"]
    assert told["supervised_tokens"] == learnt.height
    assert told["distinct_ids"] == learnt["input_ids"].n_unique()
    assert told["coverage"] == {"8000": 1.0, "16000": 1.0, "32000": 1.0}  # a token is a byte

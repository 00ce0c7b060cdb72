"""The card as `datasets` reads it."""

import contextlib
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.made.merged_rows import Built, reply, row
from workflow_scripts.dataset.exports import write_exports


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One for all that a test loads, and apart from the user's."""
    folder = str(tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return folder


def built(folder: Path, letter: str, **settings: Any) -> Built:
    """Two runs of the same shape, which differ in one letter of an answer."""
    rows = [row(n, f"question {n}", reply(f"{letter}{n}")) for n in range(1, 21)]
    return Built(folder, rows, **settings)


def rows_of(loaded: Any) -> dict[str, list[list[int]]]:
    return {side: rows["input_ids"][:] for side, rows in loaded.items()}


def own_command(folder: Path) -> Any:
    """What the card's own lines load."""
    lines = (folder / "README.md").read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if "import load_dataset" in line)
    names: dict[str, Any] = {}
    with contextlib.chdir(folder):
        exec("\n".join(line.strip() for line in lines[start : start + 2]), names)
    return names["data"]


@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_a_run_gives_its_own_rows(tmp_path: Path, fraction: float) -> None:
    for letter in "ab":
        run = built(tmp_path / letter, letter, validation_fraction=fraction)
        sides = ["train", "validation"] if fraction else ["train"]
        ours = {side: run.rows(side)["input_ids"].to_list() for side in sides}
        assert rows_of(datasets.load_dataset(str(run.folder))) == ours
        assert rows_of(own_command(run.folder)) == ours


def test_equal_files_are_cached_once(tmp_path: Path) -> None:
    """What tells runs apart is their content, not where and when they were made."""
    for name in ("one", "two"):
        datasets.load_dataset(str(built(tmp_path / name, "a").folder))
    assert len(list((tmp_path / "cache").rglob("dataset_info.json"))) == 1


def test_drafter_rows_are_a_split(tmp_path: Path) -> None:
    cut = reply("and so on", **{"class": "truncated_in_answer", "finish_reason": "length"})
    rows = [row(1, "a", reply("b")), row(2, "c", cut)]
    run = Built(tmp_path, rows, filters={"truncated_in_answer": "drafter"})
    assert rows_of(datasets.load_dataset(str(run.folder))).keys() == {"train", "drafter"}


def test_a_text_export_without_held_out_rows_loads(tmp_path: Path) -> None:
    """All held-out answers are cut, which text cannot say."""
    cut = reply("and so on", **{"class": "truncated_in_answer", "finish_reason": "length"})
    settings: dict[str, Any] = {"validation_fraction": 0.1}
    held_out = built(tmp_path / "whole", "a", **settings).lines("validation")
    rows = [row(n, f"question {n}", cut if n in held_out else reply(f"a{n}")) for n in range(1, 21)]
    run = Built(tmp_path / "cut", rows, filters={"truncated_in_answer": "keep"}, **settings)
    told = write_exports(run.folder, ["messages"])["messages"]
    assert told["validation"] == {"rows": 0, "left_out": len(held_out)} and held_out
    loaded = datasets.load_dataset(str(run.folder / "exports/messages"))
    assert {side: of.num_rows for side, of in loaded.items()} == {"train": 20 - len(held_out)}

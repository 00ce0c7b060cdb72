"""The steps around the training: what is drawn, cut, counted and read from logs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.drafter.arms import up_to
from benchmarks.drafter.engine import summed
from benchmarks.drafter.prepare import draw, main
from benchmarks.drafter.table import main as table
from benchmarks.drafter.train import validation
from workflow_scripts.config.load import load


def test_held_out_prompts_are_in_no_arm_and_87_percent_are_empty(tmp_path: Path) -> None:
    gsm8k = [
        {"question": f"How much is {n} + {n % 40}?", "answer": f"#### {n}"} for n in range(150)
    ]
    seeds = [{"id": "s0", "instruction": "Say", "instances": [{"input": "hi", "output": "hi"}]}]
    for name, rows in (("g.jsonl", [*gsm8k, gsm8k[0]]), ("s.jsonl", seeds)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--gsm8k", str(tmp_path / "g.jsonl"), "--self-instruct", str(tmp_path / "s.jsonl")]
    words += ["--rows", "100", "--held-out", "51", "--model", "M", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    found, human, held = (
        [json.loads(line) for line in (tmp_path / "out" / f"{name}.jsonl").open()]
        for name in ("found", "human", "held_out")
    )
    assert sum(row["messages"][1]["content"] == "" for row in found) == 87
    assert [row["id"] for row in found] == [row["id"] for row in human]
    prompts = {row["messages"][0]["content"] for row in found}
    assert len(prompts) == 100
    assert len({row["messages"][0]["content"] for row in held} - prompts) == 51
    assert "Say\n\nhi" in prompts | {row["messages"][0]["content"] for row in held}
    load(yaml.safe_load((tmp_path / "out/workflow.yaml").read_text()))


def test_too_few_prompts_are_said() -> None:
    pool = [{"id": "a", "prompt": "x", "answer": "y"}, {"id": "b", "prompt": "x ", "answer": "z"}]
    with pytest.raises(ValueError, match="1 different prompts"):
        draw(pool, 1, 1, 0)


def row(ids: int, learnt: int) -> dict[str, Any]:
    mask = [0] * (ids - learnt) + [1] * learnt
    return {
        "input_ids": list(range(ids)),
        "loss_mask": mask,
        "length": ids,
        "completion_length": learnt,
    }


def test_an_arm_has_exactly_the_supervised_tokens_asked_for() -> None:
    rows = {"a": row(10, 4), "c": row(9, 5), "d": row(3, 1)}
    taken = up_to(["b", "a", "c", "d"], rows, 7, "arm")
    assert [sum(one["loss_mask"]) for one in taken] == [4, 3]
    assert taken[1]["input_ids"] == list(range(7))
    assert taken[1]["length"] == len(taken[1]["loss_mask"]) == 7
    assert len(up_to(["a", "c"], rows, 9, "arm")) == 2
    with pytest.raises(ValueError, match="arm: 1 supervised tokens are missing"):
        up_to(["a", "c", "d"], rows, 11, "arm")


def test_validation_is_read_from_the_trainers_log() -> None:
    # Two epochs as speculators 0.9.0 logs them, wrapped at 200 columns.
    log = (
        "[06:11:10] INFO     val/loss_0_epoch=5.512, val/full_acc_0_epoch=0.250, "
        "val/cond_acc_0_epoch=0.006, val/full_acc_1_epoch=0.00e+00,   trainer.py:671\n"
        "                    val/loss_2_epoch=5.426, val/full_acc_2_epoch=0.00e+00, epoch=0\n"
        "[06:11:44] INFO     train/full_acc_0=0.9, val/full_acc_0_epoch=0.663, "
        "val/full_acc_1_epoch=0.450,\n          val/full_acc_2_epoch=0.306, epoch=1\n"
    )
    first, last = validation(log)
    assert first["accept_length"] == pytest.approx(1.25)
    assert last["accept_length"] == pytest.approx(1 + 0.663 + 0.450 + 0.306)


def test_dflashs_trainer_says_its_accept_length_itself() -> None:
    log = "INFO val/position_7_acc_epoch=0.00e+00, val/eal_epoch=1.250,   trainer.py:671\n" * 2
    assert validation(log) == [{"accept_length": 1.25}] * 2


def test_accept_length_counts_drafts_over_all_steps() -> None:
    one = {"tokens": 9, "finish": "stop", "steps": 4, "accepted": 4, "histogram": [1, 2, 1]}
    two = {"tokens": 13, "finish": "length", "steps": 4, "accepted": 8, "histogram": [0, 0, 4]}
    told = summed([one, two], 2.0)
    assert told["accept_length"] == 1 + 12 / 8
    assert told["accept_length_stopped"] == 2.0
    assert told["histogram"] == [1, 2, 5]
    assert told["tokens_per_s"] == 11.0
    plain = {"tokens": 3, "finish": "stop", "steps": None, "accepted": None, "histogram": None}
    assert "accept_length" not in summed([plain], 1.0)


def test_table_gives_mean_and_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(accept: float, speed: float) -> list[dict[str, Any]]:
        one = {"accept_length": accept, "tokens_per_s": speed}
        return [one | {"temperature": t, "in_flight": n} for t in (0.0, 0.6) for n in (32, 1)]

    arms = {"found": {"rows": 5, "supervised_tokens": 7, "one_token_rows": 4}}
    drafters = [
        {"drafter": f"found-{k}", "validation": [{"accept_length": 2.0 + k}]} for k in (0, 1)
    ]
    measured = {
        "found-0": rows(2.0, 100),
        "found-1": rows(3.0, 300),
        "again found-0": rows(2.0, 90),
    }
    records = {
        "arms": {"arms": arms},
        "train": {"steps": 8, "batch_tokens": {"found": 64}, "drafters": drafters},
        "measure": {"alone": rows(0, 100), "drafters": measured},
    }
    for name, value in records.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    assert table(["--records", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    cells = next(line for line in out.splitlines() if line.startswith("| found | 2 |")).split(" | ")
    assert cells[2] == "2.50 ± 0.71"
    assert cells[3] == cells[4] == "2.50 ± 0.71"
    assert cells[6] == "200 ± 141"
    assert cells[8] == "2.00 ± 1.41, 2.00 ± 1.41 |"
    assert "found-0, put in first and once more last: 2.0, 2.0" in out

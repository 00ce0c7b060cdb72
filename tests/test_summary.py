"""The summary of a run that has not begun, of one that was stopped and of a finished one."""

import json
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.config.load import load
from workflow_scripts.summary import lines, main

RUN = "feedfacefeedface"


class Results:
    """A run's folder with three shards."""

    def __init__(self, folder: Path):
        self.out = folder / "out"
        self.configure()

    def put(self, name: str, value: dict[str, Any]) -> None:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))

    def configure(self, **changes: Any) -> None:
        values = {"output_dir": str(self.out), "input": "x", "shards": 3, "model": {"path": "m"}}
        config = load(values | changes).model_dump(mode="json")
        self.put("run.json", {"config": config, "identity": {"run_hash": RUN}})

    def audit(self) -> None:
        counts = {"lines": 22, "accepted": 18, "rejected": 3, "blank_lines": 1}
        self.put("audit/report.json", {**counts, "verdict": "worthless", "trivial_share": 0.6666})

    def shard(self, k: int, failed: int, **classes: int) -> None:
        counts = {"completed": sum(classes.values()), "failed": failed, "classes": classes}
        self.put(f"generate/{RUN}/shard-{k:04d}.json", counts)

    def finish(self, drafter: int = 0, ok: bool = True) -> None:
        for k, complete in enumerate((4, 5, 6)):
            self.shard(k, failed=0, complete=complete)
        self.shard(1, failed=1, complete=4, truncated_in_thinking=1)
        rows = {"train": 11, "validation": 2, "drafter": drafter, "dropped": 5}
        self.put("dataset/stats.json", {"rows": rows, "supervised_tokens": 5134})
        self.put("verify.json", {"ok": ok, "checks": [{}] * 17})

    def lines(self) -> list[str]:
        return lines(self.out / "run.json")


@pytest.fixture
def run(tmp_path: Path) -> Results:
    return Results(tmp_path)


def test_nothing_has_run(run: Results) -> None:
    assert run.lines() == [f"{run.out}: nothing has run yet; start it with `snakemake --cores 7`"]


def test_only_the_audit_has_run(run: Results) -> None:
    run.audit()
    assert run.lines()[2:4] == ["generated  0 rows completed, 0 failed (0 shards)", "           -"]


def test_a_run_stopped_half_way(run: Results) -> None:
    """Shards 0 and 2 of three are written out; nothing came after."""
    run.audit()
    run.shard(0, failed=1, complete=3, no_answer=1)
    run.shard(2, failed=0, complete=2, truncated_in_thinking=1)
    run.put("generate/0123456789abcdef/shard-0001.json", {"completed": 9, "failed": 9})
    assert run.lines() == [
        "input      22 lines: 18 accepted, 3 rejected, 1 blank",
        f"audit      worthless: 66.7 % of the old responses are trivial, see {run.out}/audit/"
        "report.html",
        "generated  7 rows completed, 1 failed (2 shards)",
        "           5 complete, 1 no_answer, 1 truncated_in_thinking",
        f"run hash   {RUN}",
        f"dataset in {run.out}/dataset",
        f"report in  {run.out}/report.html",
    ]


def test_a_finished_run(run: Results, capsys: pytest.CaptureFixture[str]) -> None:
    run.audit()
    run.finish()
    found = run.lines()
    assert found[2:] == [
        "generated  15 rows completed, 1 failed (3 shards)",
        "           14 complete, 1 truncated_in_thinking",
        "dataset    11 training and 2 validation rows, 5134 supervised tokens, 5 dropped",
        "verify     every row is accounted for (17 checks)",
        f"run hash   {RUN}",
        f"dataset in {run.out}/dataset",
        f"report in  {run.out}/report.html",
    ]
    assert main(["--run", str(run.out / "run.json")]) == 0
    assert capsys.readouterr().out == "\n".join(found) + "\n"


def test_conversations_that_ended_early_are_counted(run: Results) -> None:
    run.audit()
    run.finish()
    stats = json.loads((run.out / "dataset/stats.json").read_text())
    run.put("dataset/stats.json", stats | {"ended": {"calls_differ": 12, "no_call": 1}})
    assert run.lines()[5] == (
        "           conversations that ended early: 12 calls_differ, 1 no_call"
    )


def test_what_is_not_as_usual_is_said(run: Results) -> None:
    run.configure(engine={"kind": "embedded"})
    run.audit()
    run.finish(drafter=4, ok=False)
    assert run.lines()[4:7] == [
        "dataset    11 training and 2 validation rows (and 4 for drafters), "
        "5134 supervised tokens, 5 dropped",
        "verify     FAILED, see verify.json (17 checks)",
        "engine     a 135M-parameter model on the CPU: poor answers, real workflow",
    ]

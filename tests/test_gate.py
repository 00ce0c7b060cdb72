"""The gates: what lets a run go on, each limit at its edge."""

import json
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.config.load import load
from workflow_scripts.gate import audit_faults, dataset_faults, main, verify_faults

Evidence = dict[str, Any]


def report(accepted: int = 6, rejected: int = 2, verdict: str = "worthless") -> Evidence:
    reasons = {"invalid_json": rejected - 1, "no_user_turn": 1} if rejected else {}
    counts = {"accepted": accepted, "rejected": rejected, "reject_reasons": reasons}
    return {**counts, "verdict": verdict, "trivial_share": 0.6666}


def stats(train: int, **reasons: int) -> Evidence:
    return {"rows": {"train": train, "dropped": sum(reasons.values())}, "drop_reasons": reasons}


def evidence(*counts: int) -> Evidence:
    """Checks that found so many bad rows each."""
    checks = [
        {
            "check": f"check {i}",
            "ok": not count,
            "count": count,
            "fault": "rows missing from merged/" if count else None,
            "examples": [["r1", 2], ["r2", 0]][:count],
        }
        for i, count in enumerate(counts)
    ]
    return {"ok": not any(counts), "run_hash": "feed", "checks": checks}


def settings(**audit: Any) -> dict[str, Any]:
    return {"output_dir": "out", "input": "x", "model": {"path": "m"}, "audit": audit}


def of_audit(found: Evidence, **audit: Any) -> list[str]:
    return audit_faults(found, load(settings(**audit)).audit)


# ---- audit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("accepted", "passes"), [(5, True), (4, False)])
def test_the_share_of_unusable_lines_may_reach_its_limit(accepted: int, passes: bool) -> None:
    """Five of ten lines are no more than half of them, five of nine are."""
    faults = of_audit(report(accepted, 5))
    assert (faults == []) == passes
    if faults:
        (fault,) = faults
        assert fault.startswith("55.6 % of the input lines are unusable")
        assert "audit.max_rejected_fraction (0.5)" in fault and "audit/rejected.jsonl" in fault


def test_a_limit_of_nothing_takes_no_unusable_line() -> None:
    assert of_audit(report(1000, 0), max_rejected_fraction=0) == []
    (fault,) = of_audit(report(999, 1), max_rejected_fraction=0)
    assert fault.startswith("0.1 % ") and "(0)" in fault
    assert of_audit(report(1, 999), max_rejected_fraction=1) == []


@pytest.mark.parametrize(
    ("stop_on", "verdict", "stops"),
    [
        ([], "worthless", False),
        (["worthless"], "worthless", True),
        (["worthless"], "suspicious", False),
        (["suspicious", "worthless"], "suspicious", True),
        (["ok"], "ok", True),
    ],
)
def test_the_verdicts_to_stop_on(stop_on: list[str], verdict: str, stops: bool) -> None:
    faults = of_audit(report(verdict=verdict), stop_on=stop_on)
    said = f"the verdict is `{verdict}` (66.7 % trivial responses) and audit.stop_on says to stop"
    assert [fault.split(";")[0] for fault in faults] == ([said] if stops else [])


def test_both_faults_are_said() -> None:
    faults = of_audit(report(1, 9), stop_on=["worthless"])
    assert [fault.split()[0] for fault in faults] == ["90.0", "the"]


def test_an_input_without_a_usable_row() -> None:
    """Whatever the limits allow: nothing could be generated from it."""
    lenient = {"max_rejected_fraction": 1, "stop_on": ["worthless"]}
    assert of_audit(report(0, 3), **lenient) == [
        "no usable row in the input (2 invalid_json, 1 no_user_turn); see audit/rejected.jsonl"
    ]
    assert of_audit(report(0, 0), **lenient) == [
        "no usable row in the input (it is empty); see audit/rejected.jsonl"
    ]


# ---- dataset and verify -------------------------------------------------------------------------


def test_one_training_row_is_a_dataset() -> None:
    assert dataset_faults(stats(1, too_long=900)) == []
    (fault,) = dataset_faults(stats(0, too_long=2, truncated_in_thinking=1))
    assert fault.startswith("no training row is left: 3 dropped (2 too_long, 1 truncated_in_think")
    assert "dataset/rejected.parquet" in fault and "dataset.filters" in fault
    (fault,) = dataset_faults(stats(0))
    assert fault.startswith("no training row is left: 0 dropped (nothing was completed), see")


def test_each_check_that_failed_is_said() -> None:
    assert verify_faults(evidence(0, 0)) == []
    assert verify_faults(evidence(0, 2, 0, 1)) == [
        "check 1: 2 rows missing from merged/, e.g. ['r1', 2]",
        "check 3: 1 rows missing from merged/, e.g. ['r1', 2]",
    ]


# ---- the program --------------------------------------------------------------------------------


class Gate:
    """A gate in a folder of its own."""

    def __init__(self, folder: Path, name: str, **audit: Any):
        self.mark = folder / f"{name}.ok"
        self.found = folder / "evidence.json"
        run = folder / "run.json"
        config = load(settings(**audit)).model_dump(mode="json")
        run.write_text(json.dumps({"config": config, "identity": {"run_hash": "feed"}}))
        self.command = [name, "--run", str(run), "--evidence", str(self.found)]
        self.command += ["--output", str(self.mark)]

    def judge(self, found: Evidence) -> int:
        self.found.write_text(json.dumps(found))
        return main(self.command)


@pytest.mark.parametrize(
    ("name", "good", "bad", "said"),
    [
        ("audit", report(8, 2), report(7, 3), "audit gate: 30.0 % of the input lines"),
        ("dataset", stats(1), stats(0), "dataset gate: no training row is left"),
        ("verify", evidence(0), evidence(1), "verify gate: check 0: 1 rows missing"),
    ],
)
def test_a_gate_opens_or_says_why_not(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    good: Evidence,
    bad: Evidence,
    said: str,
) -> None:
    gate = Gate(tmp_path, name, max_rejected_fraction=0.2)
    assert gate.judge(bad) == 1
    assert not gate.mark.exists() and said in capsys.readouterr().err
    assert gate.judge(good) == 0
    assert gate.mark.read_bytes() == b"ok\n" and capsys.readouterr().err == ""


def test_every_fault_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Gate(tmp_path, "audit", stop_on=["worthless"]).judge(report(1, 9)) == 1
    assert [line[11:22] for line in capsys.readouterr().err.splitlines()] == ["audit gate:"] * 2

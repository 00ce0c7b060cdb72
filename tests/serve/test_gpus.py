"""What the servers of a host share: GPUs, ports, staged copies of a model."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stand_ins.gpus import H200
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.serve.gpus import all_gpus, usable_gpus
from workflow_scripts.serve.ports import claim_port
from workflow_scripts.serve.staging import staged, unstage


def test_gpus_are_read() -> None:
    first, second = all_gpus(lambda command: H200)
    assert (first.index, first.uuid, first.used_mib, first.watts) == (0, "GPU-aaa", 4, 76.12)
    assert (second.used_mib, second.util, second.watts) == (None, 99, None)

    def missing(command: list[str]) -> str:
        raise FileNotFoundError("nvidia-smi")

    assert all_gpus(missing) == []


@pytest.mark.parametrize(
    ("visible", "wanted", "expected"),
    [
        (None, "auto", ["GPU-aaa", "GPU-bbb"]),
        (None, 1, ["GPU-aaa"]),
        (None, [1], ["GPU-bbb"]),
        (None, ["GPU-b"], ["GPU-bbb"]),
        ("1", "auto", ["GPU-bbb"]),
        ("GPU-bbb,GPU-aaa", "auto", ["GPU-bbb", "GPU-aaa"]),
        ("", "auto", None),
        (None, 3, None),
        (None, [7], None),
        ("1", [0], None),
    ],
)
def test_usable_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, wanted: Any, expected: list[str] | None
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if expected is None:
        with pytest.raises(ConfigError):
            usable_gpus(wanted, lambda command: H200)
    else:
        assert [g.uuid for g in usable_gpus(wanted, lambda command: H200)] == expected


def test_two_servers_that_start_at_once_get_two_ports() -> None:
    """Neither listens yet, and they may be of two daemons."""
    first, claim = claim_port(5000)
    code = "from workflow_scripts.serve.ports import claim_port; print(claim_port(5000)[0])"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(told) != first
    claim.close()
    again, claim = claim_port(5000)
    assert again == first
    claim.close()


def test_a_staged_copy_goes_with_its_last_user(tmp_path: Path) -> None:
    """As with two jobs of a cluster on one node."""
    model, stage = tmp_path / "model", tmp_path / "shm"
    model.mkdir()
    (model / "config.json").write_text("{}")
    stage.mkdir()
    copy, first = staged(model, str(stage), print)
    same, second = staged(model, str(stage), print)
    assert copy == same and first is not None and second is not None
    unstage(copy, first)
    assert (copy / "config.json").exists()
    unstage(copy, second)
    assert list(stage.iterdir()) == []

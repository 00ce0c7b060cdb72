"""Faults of the machine: who has the GPUs, and who may stop a run."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.made.workspace import Workspace
from tests.stand_ins.gpus import Gpus, workspace
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.locks import hold
from workflow_scripts.config.load import load
from workflow_scripts.serve import faults, seats
from workflow_scripts.serve.address import CLUSTER_VARIABLE, note_of
from workflow_scripts.serve.gpus import all_gpus, lease


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    monkeypatch.setattr(seats, "ENDING_S", 0)
    monkeypatch.setattr(faults, "MEMORY_S", 0)
    return Gpus(tmp_path, monkeypatch)


def look(gpus: Gpus, **engine: Any) -> None:
    work = workspace(gpus, 1, **engine)
    gpus.patch.chdir(work.folder)
    faults.check_servers(load(work.config), None)


def test_gpus_that_others_have(gpus: Gpus) -> None:
    """One of two is enough; with none left, it is said who has them."""
    gpus.set(2)
    one, two = all_gpus()
    with lease(one):  # type: ignore[union-attr]
        look(gpus)
        with lease(two), pytest.raises(ConfigError, match="GPU 0 is in use by .*; GPU 1 is"):  # type: ignore[union-attr]
            faults.check_servers(load(Workspace(gpus.folder / "w").config), None)


def test_memory_that_others_have(gpus: Gpus) -> None:
    gpus.set(2)
    gpus.patch.setenv("FAKE_USED", "130000")
    with pytest.raises(ConfigError, match="GPU 0 has 130000 MiB in use .* GPU 1 has 130000 MiB"):
        look(gpus)


WAITS = "import time; print(1, flush=True); time.sleep(60)"
STOPS = """
import subprocess, sys
from workflow_scripts.base.locks import hold
from workflow_scripts.serve.address import note_of
lock = hold(__import__("pathlib").Path(sys.argv[1]) / ".lock")
subprocess.run(["bash", "-c", '"$0" -c "$1" "$2"', sys.executable, sys.argv[2], sys.argv[1]])
"""
JOB = """
import sys
from workflow_scripts.serve.faults import stop_run
print(stop_run(sys.argv[1], "why"))
"""


def run(out: Path, **environ: str) -> tuple[int, str]:
    """A job below a process that holds a run's lock, as Snakemake does."""
    done = subprocess.run(
        [sys.executable, "-c", STOPS, str(out), JOB],
        capture_output=True,
        text=True,
        env=os.environ | environ,
        timeout=60,
    )
    return done.returncode, done.stdout.strip()


def test_a_job_stops_its_own_run_alone(tmp_path: Path) -> None:
    code, _ = run(tmp_path / "a")
    assert code == -signal.SIGTERM
    (note,) = (tmp_path / "a").glob(".stopping.*")
    assert note.read_text() == "why"
    # on a cluster the fault may be one node's
    assert run(tmp_path / "b", **{CLUSTER_VARIABLE: "1"}) == (0, "False")
    # another's lock: that process is no ancestor
    with (
        hold(tmp_path / "c" / ".lock"),
        subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as other,
    ):
        assert other.stdout is not None and other.stdout.readline()
        (tmp_path / "c" / ".lock").write_text(f"{other.pid} {socket.gethostname()}")
        assert not faults.stop_run(str(tmp_path / "c"), "why") and other.poll() is None
        other.kill()
    assert not note_of(str(tmp_path / "c"), other.pid).exists()


@pytest.mark.parametrize(
    ("error", "of_all"),
    [
        (ConfigError("engine.gpus"), True),
        (OSError(28, "No space left on device"), True),
        (FileNotFoundError(2, "No such file"), False),
        (OSError("shard-0001.parquet: not what the shard stage wrote"), False),
    ],
    ids=str,
)
def test_whose_fault(error: Exception, of_all: bool) -> None:
    assert faults.is_of_all(error) is of_all

"""Whatever is killed, and however: nothing is lost, and no server outlives its run."""

import contextlib
import itertools
import os
import random
import signal
import time
from pathlib import Path

import polars as pl
import pytest

from tests.made.workspace import kill_all, processes
from tests.stand_ins.gpus import Gpus, verified, workspace


def pid_of(module: str, folder: Path) -> int:
    (pid, *_) = set(processes(module)) & set(processes(str(folder)))
    return pid


@pytest.mark.parametrize(
    ("who", "number"),
    [
        ("daemon", signal.SIGKILL),
        ("server", signal.SIGKILL),
        *itertools.product(
            ("job", "snakemake", "all"), (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
        ),
    ],
)
def test_ended_by_a_signal(gpus: Gpus, who: str, number: signal.Signals) -> None:
    """Whoever is ended, however: nothing is lost, and no server outlives the idle time."""
    gpus.set(2, token_seconds=0.02)
    work = workspace(gpus, 80)
    process = work.start()
    while gpus.log.count() < 25:
        time.sleep(0.05)
    if who == "server":
        os.kill(gpus.starts()[0]["pid"], number)
    elif who == "daemon":
        os.kill(pid_of("workflow_scripts.serve.daemon", work.folder), number)
    elif who == "job":
        os.kill(pid_of("workflow_scripts.generate", work.folder), number)
    elif who == "snakemake":
        os.kill(process.pid, number)
    else:
        kill_all(process, work.folder, number)
        gpus.wait_until_gone(6 if number == signal.SIGKILL else 15)
    output, _ = process.communicate(timeout=200)
    if who in ("daemon", "server"):  # both are started again, no job notices more than that
        assert process.returncode == 0, output
    done = work.run()
    assert done.code == 0, output + done.output
    assert verified(work)
    gpus.wait_until_gone(6 if who == "snakemake" else 1)
    asked_twice = gpus.log.count() - 80
    assert 0 <= asked_twice <= 10  # two servers with five requests each in flight


def test_the_daemon_is_killed_again_and_again(gpus: Gpus) -> None:
    """At random moments, starts of its servers included: the run ends by itself, no row failed."""
    seed = int(os.environ.get("TRACEMILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"seed {seed}; repeat with TRACEMILL_SEED={seed}")
    moments = random.Random(seed)
    gpus.set(2, token_seconds=0.01)
    work = workspace(gpus, 150)
    work.configure(shards=4)
    process = work.start()
    for _ in range(6):
        until = time.monotonic() + moments.uniform(0.5, 4.0)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        here = set(processes(str(work.folder)))
        for pid in here & set(processes("workflow_scripts.serve.daemon")):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, f"seed {seed}\n{output}"
    assert verified(work)
    assert len(pl.read_parquet(work.out / "merged/failed.parquet")) == 0
    gpus.wait_until_gone(6)


def test_the_daemon_is_killed_after_the_last_row(gpus: Gpus) -> None:
    """No other one follows; what it had staged goes with the run."""
    gpus.set(1)
    stage = gpus.stage()
    work = workspace(gpus, 10, stage=str(stage))
    process = work.start()
    while not (work.out / ".locks/merge").exists():
        time.sleep(0.01)
    assert list(stage.iterdir())
    os.kill(pid_of("workflow_scripts.serve.daemon", work.folder), signal.SIGKILL)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    assert list(stage.iterdir()) == []
    gpus.wait_until_gone(6)

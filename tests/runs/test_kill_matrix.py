"""Twenty runs of 2,000 rows, in which one kind of process is killed again and again."""

import fcntl
import os
import random
import signal
import subprocess
import time
from collections import Counter

import polars as pl
import pytest

from tests.made.workspace import Workspace, kill_all, processes
from tests.stand_ins.gpus import Gpus, verified, workspace

ROWS = 2000
RUNS = 20
KILLS = 3
IN_FLIGHT = 2 * 16
KINDS = ("daemon", "server", "job", "snakemake", "all")
MODULES = {"daemon": "workflow_scripts.serve.daemon", "job": "workflow_scripts."}


def victims(gpus: Gpus, work: Workspace, kind: str) -> list[int]:
    """Processes of a kind that run now; a job is any stage's."""
    here = set(processes(str(work.folder)))
    if kind == "server":
        return sorted(here & {start["pid"] for start in gpus.starts()})
    found = here & set(processes(MODULES[kind]))
    return sorted(found - set(processes(MODULES["daemon"])) if kind == "job" else found)


def strike(
    gpus: Gpus,
    work: Workspace,
    process: subprocess.Popen[str],
    kind: str,
    number: signal.Signals,
    moments: random.Random,
) -> None:
    if kind == "all":
        kill_all(process, work.folder, number)
    elif kind == "snakemake":
        process.send_signal(number)
    elif found := victims(gpus, work, kind):
        os.kill(moments.choice(found), number)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", range(RUNS))
def test_kills(gpus: Gpus, run: int) -> None:
    seed = int(os.environ.get("TRACEMILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"seed {seed}; repeat with TRACEMILL_SEED={seed}")
    moments, kind = random.Random(seed), KINDS[run % len(KINDS)]
    gpus.set(2, token_seconds=0.002, max_running=16, start_delay=0.5)
    work = workspace(gpus, ROWS, stage=str(gpus.stage()))
    work.configure(shards=6, generate={"concurrency": 16})
    process = work.start()
    for _ in range(KILLS):
        until = time.monotonic() + moments.uniform(1.0, 9.0)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        if process.poll() is not None:
            process.communicate()
            process = work.start()
        number = moments.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        strike(gpus, work, process, kind, number, moments)
    output, _ = process.communicate(timeout=300)
    done = work.run() if process.returncode else None
    assert done is None or done.code == 0, f"seed {seed}\n{output}\n{done.output}"
    assert verified(work), f"seed {seed}"
    tables = [pl.read_parquet(work.out / f"merged/{n}.parquet") for n in ("completions", "failed")]
    rows = Counter(row for table in tables for row in table["row_id"])
    accepted = pl.read_parquet(work.out / "audit/rows.parquet")["row_id"].to_list()
    assert len(accepted) == ROWS and rows == Counter(accepted), f"seed {seed}"
    assert len(tables[1]) == 0, f"seed {seed}: {tables[1]['message'].to_list()[:3]}"
    asked_twice = gpus.log.count() - ROWS
    assert 0 <= asked_twice <= KILLS * IN_FLIGHT, f"seed {seed}"
    nothing_left(gpus, work)


def nothing_left(gpus: Gpus, work: Workspace) -> None:
    gpus.wait_until_gone(6)
    assert list((gpus.folder / "stage").iterdir()) == []
    for path in [work.out / ".lock", *(work.out / ".locks").iterdir()]:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert work.run().nothing

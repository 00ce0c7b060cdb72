"""The workflow on a real Slurm: two nodes of seven pretended GPUs each, on this machine."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Done, Workspace, chat
from slurm_cluster import Cluster, missing
from test_host import FAKE, STAND_IN, RowLog, verified

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SHARDS, ROWS = 12, 120


def start(constrain: bool) -> Iterator[Cluster]:
    why = missing(constrain)
    if not why and not importlib.util.find_spec("snakemake_executor_plugin_slurm"):
        why = "snakemake-executor-plugin-slurm is not installed; make slurm"
    if why and os.environ.get("TRACEMILL_NEEDS_SLURM"):
        pytest.fail(why)
    if why:
        pytest.skip(why)
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="slurm-")), constrain=constrain)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def plain() -> Iterator[Cluster]:
    yield from start(constrain=False)


class Site:
    """A workspace on a cluster's shared file system, and Snakemake on its login node."""

    def __init__(self, cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.cluster = cluster
        self.folder = folder
        self.patch = monkeypatch
        self.log = RowLog(folder / "requests.jsonl")
        monkeypatch.setenv("PATH", f"{cluster.bin}:{FAKE}:{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_PYTHON", sys.executable)
        monkeypatch.setenv("FAKE_STARTS", str(folder / "starts.jsonl"))
        monkeypatch.setenv("FAKE_DEVICES", str(cluster.folder / "dev"))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.answer()
        self.work = Workspace.create(folder / "w", [chat(f"Question {i}?") for i in range(ROWS)])
        engine = {"kind": "sglang", "python": str(FAKE / "python"), "canary": [], "metrics_s": 0.5}
        self.work.configure(shards=SHARDS, engine=engine)
        self.out = self.work.out

    def answer(self, **options: Any) -> None:
        """How servers that are started from now on answer."""
        options = STAND_IN | {"log": str(self.log.path)} | options
        self.patch.setenv("FAKE_OPTIONS", json.dumps(options))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start Snakemake with the profile, only quicker to notice what happens."""
        command = [sys.executable, "-m", "snakemake", "--workflow-profile", "profiles/slurm"]
        command += ["--slurm-init-seconds-before-status-checks", "1", *words]
        return subprocess.Popen(
            command, cwd=self.work.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *words: str) -> Done:
        process = self.start(*words)
        output, _ = process.communicate(timeout=400)
        return Done(process.returncode, output)

    def starts(self) -> list[dict[str, Any]]:
        path = self.folder / "starts.jsonl"
        return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []

    def whole(self) -> bool:
        """Whether each row stands exactly once, as the tables and `verify` say."""
        merged = pl.read_parquet(self.out / "merged/completions.parquet")
        return verified(self.work) and merged["row_id"].n_unique() == len(merged) == ROWS


@pytest.fixture
def site(plain: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(plain, tmp_path, monkeypatch)


def test_twelve_shards_of_which_two_fail(site: Site) -> None:
    """Every job has a GPU of its own, the one that Slurm gave it; the rerun does two shards."""
    done = site.run()
    assert done.code == 0, done.output
    starts = site.starts()
    assert len(starts) == SHARDS
    assert len({s["gpu"] for s in starts}) == SHARDS
    assert all(s["gpu"] == f"GPU-fake-{s['node']}-{s['given']}" for s in starts)
    assert site.whole()

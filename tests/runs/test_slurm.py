"""The workflow on a real Slurm: two nodes of seven pretended GPUs each, on this machine."""

import contextlib
import importlib.util
import json
import os
import re
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

from tests.made.workspace import Done, Workspace, chat, processes
from tests.stand_ins.engine import input_hash
from tests.stand_ins.gpus import FAKE, STAND_IN, RowLog, fake_uuid, verified
from tests.stand_ins.slurm import Cluster, missing
from workflow_scripts.config.load import load
from workflow_scripts.model.prompts import Prompts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
IN_FLIGHT = 5  # of a server that runs four at once


def started(constrain: bool) -> Iterator[Cluster]:
    why = missing(constrain)
    if not why and not importlib.util.find_spec("snakemake_executor_plugin_slurm"):
        why = "snakemake-executor-plugin-slurm is not installed; make slurm"
    if why and os.environ.get("TRACEMILL_NEEDS_SLURM") and not constrain:
        pytest.fail(why)  # whether devices can be constrained is up to the machine's kernel
    if why:
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    cluster = Cluster(folder, constrain=constrain)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
    assert not folder.exists() and not processes(str(folder))


@pytest.fixture(scope="module")
def plain() -> Iterator[Cluster]:
    yield from started(constrain=False)


class Site:
    """A workspace on a cluster's shared file system, and Snakemake on its login node."""

    def __init__(self, cluster: Cluster, folder: Path, patch: pytest.MonkeyPatch):
        self.cluster = cluster
        self.folder = folder
        self.uuid = fake_uuid(folder)
        self.patch = patch
        self.log = RowLog(folder / "requests.jsonl")
        patch.setenv("PATH", f"{cluster.bin}:{FAKE}:{os.environ['PATH']}")
        patch.setenv("TMPDIR", str(cluster.folder / "tmp"))  # of the nodes
        patch.setenv("FAKE_PYTHON", sys.executable)
        patch.setenv("FAKE_STARTS", str(folder / "starts.jsonl"))
        patch.setenv("FAKE_UUID", self.uuid)
        patch.setenv("FAKE_DEVICES", str(cluster.folder / "dev"))
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.answer()

    def make(self, shards: int, rows: int) -> None:
        self.rows = rows
        self.work = Workspace.create(
            self.folder / "w", [chat(f"Question {i}?") for i in range(rows)]
        )
        engine = {"kind": "sglang", "python": str(FAKE / "python"), "canary": [], "metrics_s": 0.5}
        self.work.configure(shards=shards, engine=engine)
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
        return ended(self.start(*words))

    def starts(self) -> list[dict[str, Any]]:
        path = self.folder / "starts.jsonl"
        return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []

    def at_work(self) -> dict[int, tuple[str, str]]:
        """The id and the node of the Slurm job of each shard whose server runs."""
        lines = self.cluster.ask("squeue", "-h", "-t", "RUNNING", "-o", "%i %N %k").splitlines()
        jobs = {int(k[-4:]): (number, node) for number, node, k in map(str.split, lines)}
        ready = (path.parent.name for path in (self.out / "logs/servers").glob("*/server-0.log"))
        return {k: jobs[k] for k in map(int, ready) if k in jobs}

    def whole(self) -> bool:
        """Whether each row stands exactly once, as the tables and `verify` say."""
        merged = pl.read_parquet(self.out / "merged/completions.parquet")
        return verified(self.work) and merged["row_id"].n_unique() == len(merged) == self.rows

    def shards_with(self, *questions: str) -> set[int]:
        found = set()
        for path in (self.out / "shards").glob("shard-*.parquet"):
            texts = " ".join(pl.read_parquet(path)["messages"])
            found |= {int(path.stem[-4:]) for question in questions if question in texts}
        return found

    def input_hash(self, question: str) -> str:
        """What the stand-in knows a question by."""
        config = load(self.work.config | {"model": {"path": str(self.work.folder / "model")}})
        messages = [{"role": "user", "content": question}]
        return input_hash(Prompts.from_config(config).prompt_ids(messages))


def ended(process: subprocess.Popen[str]) -> Done:
    output, _ = process.communicate(timeout=600)
    return Done(process.returncode, output)


def until(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def site(plain: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(plain, tmp_path, monkeypatch)
    yield made
    plain.ask("scancel", "--user=root")
    for pid in processes(str(tmp_path / "w")):  # of a test that failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def each_its_own_gpu(site: Site, shards: int) -> None:
    """Every server ran on the GPU that Slurm gave its job, and had ports of its own."""
    starts = site.starts()
    assert len(starts) == len({s["gpu"] for s in starts}) == shards
    assert all(s["gpu"] == f"{site.uuid}-{s['node']}-{s['given']}" for s in starts)
    assert {s["node"] for s in starts} == {"gpu1", "gpu2"}


def test_twelve_shards_of_which_two_fail(site: Site) -> None:
    """Each has a GPU of its own; the rerun does the two, and of them only the failed rows."""
    site.make(shards=12, rows=120)
    bad = ["Question 0?", "Question 1?"]
    inputs = [site.input_hash(question) for question in bad]
    site.answer(faults=[{"fault": "status", "code": 400, "input": inputs}])
    first = site.run()
    assert first.code != 0
    failed = site.shards_with(*bad)
    assert len(failed) == 2
    there = {int(path.stem[-4:]) for path in site.work.generated().glob("shard-*.parquet")}
    assert there == set(range(12)) - failed
    each_its_own_gpu(site, 12)
    before = site.log.count()
    site.answer()
    second = site.run()
    assert second.code == 0, second.output
    assert second.rules()["generate"] == 2 and len(site.starts()) == 14
    assert site.log.count() - before == 2 and site.whole()
    assert site.run().nothing


def test_a_job_cancelled_and_a_node_lost(site: Site) -> None:
    """The jobs of the lost node are started again by Slurm, which Snakemake need not know; the
    cancelled one by the next run."""
    site.make(shards=12, rows=120)
    site.answer(token_seconds=0.2)
    process = site.start()
    until(lambda: len({node for _, node in site.at_work().values()}) == 2)
    until(lambda: site.log.count() > 2 * IN_FLIGHT)
    gone, job = next((k, job) for k, (job, node) in site.at_work().items() if node == "gpu1")
    lost = sum(node == "gpu2" for _, node in site.at_work().values())
    site.cluster.ask("scancel", job)
    site.cluster.ask("scontrol", "update", "nodename=gpu2", "state=DOWN", "reason=test")
    first = ended(process)
    assert first.code != 0
    there = {int(path.stem[-4:]) for path in site.work.generated().glob("shard-*.parquet")}
    assert there == set(range(12)) - {gone}
    assert len(site.starts()) >= 12 + lost > 12
    site.answer()
    second = site.run()
    assert second.code == 0, second.output
    assert second.rules()["generate"] == 1 and site.whole()
    assert site.log.count() - 120 <= (1 + 7) * IN_FLIGHT  # of the job and a node of seven


def test_the_main_process_killed_and_started_again(site: Site) -> None:
    """Its jobs go on; those of the next Snakemake take over from them."""
    site.make(shards=12, rows=120)
    site.answer(token_seconds=0.3)
    process = site.start()
    until(lambda: site.log.count() > 6 * IN_FLIGHT)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    site.answer()  # at once, by the servers of the new jobs
    done = site.run()
    assert done.code == 0, done.output
    assert site.whole() and site.log.count() - 120 <= 12 * IN_FLIGHT
    until(lambda: not site.cluster.ask("squeue", "-h"), 60)


def test_one_big_allocation(site: Site) -> None:
    """The local profile inside one job: a daemon with a server on each of the job's GPUs, whatever
    the number of shards, and nothing left when it ends."""
    site.make(shards=4, rows=40)
    snakemake = f"{sys.executable} -m snakemake --cores 2"
    words = ["--wait", "--partition=gpu", "--nodes=1", "--gpus=3", f"--chdir={site.work.folder}"]
    site.cluster.ask("sbatch", *words, "--output=out.log", f"--wrap={snakemake}", timeout=600)
    starts = site.starts()
    assert len(starts) == len({s["gpu"] for s in starts}) == 3
    assert len({s["gpu"].rsplit("-", 1)[0] for s in starts}) == 1 and site.whole()
    assert (site.out / "logs/metrics.jsonl").exists()
    assert not processes(str(site.work.folder))


def test_constrained_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job sees its GPU as number 0. Here the stages before and after generation run on nodes
    too, as those of a large input do."""
    for cluster in started(constrain=True):
        site = Site(cluster, tmp_path, monkeypatch)
        site.make(shards=12, rows=120)
        module = site.work.folder / "workflow_scripts/workflow/run.py"
        module.write_text(module.read_text().replace("SMALL_BYTES = 16 << 20", "SMALL_BYTES = 0"))
        done = site.run()
        assert done.code == 0, done.output
        each_its_own_gpu(site, 12)
        logs = [path.read_text() for path in (site.out / "logs/servers").glob("*/host.log")]
        assert len(logs) == 12 and all("server 0 on GPU 0 is ready" in text for text in logs)
        assert len({(s["node"], s["port"]) for s in site.starts()}) == 12
        local = set(re.findall(r"^localrule (\w+):", done.output, re.MULTILINE))
        assert local == {"audit", "audit_gate", "dataset_gate", "verify_gate", "report", "all"}
        assert site.whole()

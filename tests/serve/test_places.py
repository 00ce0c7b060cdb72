"""Places on servers, without servers: who gets them, and that no server runs short of work."""

import asyncio
import contextlib
import heapq
import json
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.made.workspace import Workspace, chat
from tests.stand_ins.gpus import FAKE
from workflow_scripts.config.load import load
from workflow_scripts.engine.protocol import Facts
from workflow_scripts.generate.retries import RETRY_VARIABLE
from workflow_scripts.identity import rehearsal_length
from workflow_scripts.serve import client
from workflow_scripts.serve.address import CLUSTER_VARIABLE
from workflow_scripts.serve.daemon import Host
from workflow_scripts.serve.gpus import Gpu
from workflow_scripts.serve.seats import Job, Seat
from workflow_scripts.workflow.run import Run, open_shards


class Told:
    """A job's connection that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def is_closing(self) -> bool:
        return False

    def write(self, line: bytes) -> None:
        self.lines.append(json.loads(line))


def host(folder: Path, servers: int, limit: int, shards: int = 8) -> Host:
    """A daemon whose servers are all ready."""
    work = Workspace.create(folder, [chat("Question?")])
    work.configure(engine={"kind": "sglang", "python": "python"})
    seats = []
    for i in range(servers):
        gpu = Gpu(i, f"GPU-{i}", "H200", 0, 143771, None, None)
        seat = Seat(i, gpu, socket.socket())
        seat.state, seat.limit, seat.facts = "ready", limit, Facts(limit, 4096, {})
        engine = SimpleNamespace(url=f"http://{i}")
        seat.server = SimpleNamespace(engine=engine, started=0.0)  # type: ignore[assignment]
        seats.append(seat)
    return Host(load(work.config | {"output_dir": str(work.out), "shards": shards}), "hash", seats)


def free(made: Host, owner: Job, lease: str) -> None:
    made.grants.free(owner, lease, 10, None)


def job(name: str, requests: int) -> Job:
    made = Job(Told(), name)  # type: ignore[arg-type]
    made.waiting.extend([None] * requests)
    return made


def test_places_that_fall_free_go_to_the_next_shard(tmp_path: Path) -> None:
    """By hand: three places, the first shard has two requests, the second five. The second gets
    the place left over, then each one that falls free: the server stays full until the end."""
    made = host(tmp_path / "w", 1, 3)
    seat, (first, second) = made.grants.seats[0], (job("0000", 2), job("0001", 5))
    made.grants.jobs = [first, second]
    made.grants.grant()
    assert (len(first.leases), len(second.leases)) == (2, 1)
    full = []
    while lease := next(iter(first.leases or second.leases), None):
        owner = first if lease in first.leases else second
        free(made, owner, lease)
        full.append(len(seat.leases))
    assert full == [3, 3, 3, 3, 2, 1, 0]
    assert seat.tokens == 70 and len(first.writer.lines) == 2  # type: ignore[attr-defined]


def test_the_newest_jobs_concurrency_holds_and_the_configuration_stays(tmp_path: Path) -> None:
    """A run that was stopped and goes on with another concurrency finds its servers still there."""
    made = host(tmp_path / "w", 1, 5)
    before, (seat,) = made.config, made.grants.seats
    for name, concurrency, limit in (("0000", 2, 2), ("0001", 7, 7), ("0002", "auto", 6)):
        hello = {"spec": made.spec, "shard": name, "concurrency": concurrency}
        made._hello(job("?", 0), hello)
        assert seat.limit == limit  # `auto`: one more than the five that the server runs
    assert [one.shard for one in made.grants.jobs] == ["0000", "0001", "0002"]
    assert made.config is before


def idle_share(made: Host, shards: int, rows: int, opened: int) -> float:
    """Share of the places' time that stands free while rows are left to ask, in simulated time.

    Lengths are those of the rehearsal on two H200s; a step is a token, and a shard's job takes 60
    steps (four seconds there) to start.
    """
    coming = [job(f"{k:04d}", rows) for k in range(shards)]
    places = sum(seat.limit for seat in made.grants.seats)
    ends: list[tuple[int, int, str, Job]] = []
    starts = [(60, k) for k in range(min(opened, shards))]
    left, now, idle, total, asked = {}, 0, 0, 0, 0
    while starts or ends:
        at = min(([starts[0][0]] if starts else []) + ([ends[0][0]] if ends else []))
        if now >= 60 and asked < shards * rows:
            idle += (at - now) * (places - len(ends))
            total += (at - now) * places
        now = at
        while starts and starts[0][0] == now:
            new = coming[starts.pop(0)[1]]
            left[new.shard] = rows
            made.grants.jobs.append(new)
            made.grants.grant()
        while ends and ends[0][0] == now:
            _, _, name, owner = heapq.heappop(ends)
            free(made, owner, name)
            left[owner.shard] -= 1
            if not left[owner.shard]:
                made.grants.jobs.remove(owner)
                if len(left) + len(starts) < shards:
                    starts.append((now + 60, len(left) + len(starts)))
        for owner in made.grants.jobs:
            for told in owner.writer.lines:  # type: ignore[attr-defined]
                asked += 1
                length = rehearsal_length((120, 480), f"row {asked}", 0)
                heapq.heappush(ends, (now + length, asked, told["lease"], owner))
            owner.writer.lines.clear()  # type: ignore[attr-defined]
    assert asked == shards * rows
    return idle / total


def test_servers_stay_full_while_rows_are_left(tmp_path: Path) -> None:
    """Two servers with 147 places each and 16 shards of 275 rows, as on the two H200s where seven
    open shards left a server with 20 requests of 128 twice in 210 s."""
    assert idle_share(host(tmp_path / "seven", 2, 147), 16, 275, 7) > 0.1
    assert idle_share(host(tmp_path / "rule", 2, 147), 16, 275, open_shards(2)) < 0.01
    assert idle_share(host(tmp_path / "large", 7, 147), 80, 500, open_shards(7)) < 0.01


def test_more_shards_are_open_than_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{FAKE}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GPUS", "2")
    monkeypatch.setenv("FAKE_UUID", "GPU-fake")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    work = Workspace.create(tmp_path / "w", [chat("Question?")])
    work.configure(engine={"kind": "sglang", "python": "python"})
    monkeypatch.chdir(work.folder)
    given = SimpleNamespace(cores=7, nodes=None)
    snakemake = SimpleNamespace(remote_exec=False, resource_settings=given, global_resources={})
    run = Run(load(work.config), snakemake)
    run.limit()
    assert snakemake.global_resources == {"place": 18} and run.threads() == 0
    assert (run.cores, run.small, run.gpu) == (7, True, 1)
    # on a cluster: these GPUs are the login node's
    given.cores, snakemake.global_resources = None, {}
    run.limit()
    assert snakemake.global_resources == {} and run.cores == 1
    given.cores, given.nodes = 4, 100  # that node's, for what runs there
    run.limit()
    assert snakemake.global_resources == {}
    # inside a job of it: the cores are the node's
    given.cores, snakemake.remote_exec = 192, True
    monkeypatch.setenv(CLUSTER_VARIABLE, "")
    run.limit()
    assert os.environ[CLUSTER_VARIABLE] and snakemake.global_resources == {} and run.cores == 1


def test_free_places_are_noticed_while_shards_wait(tmp_path: Path) -> None:
    """By hand: five places, one job with four requests, eight shards."""
    made = host(tmp_path / "w", 1, 5)
    made.grants.jobs = [job("0000", 4)]
    made.grants.grant()
    assert not made._short_of_work()  # one of five is no more than a fifth
    free(made, made.grants.jobs[0], next(iter(made.grants.jobs[0].leases)))
    assert made._short_of_work()
    folder = Path(made.config.output_dir) / "generate/hash"
    folder.mkdir(parents=True)
    for k in range(1, 8):
        (folder / f"shard-{k:04d}.parquet").touch()
    assert not made._short_of_work()  # the last shard: nothing else could be asked


@pytest.mark.parametrize(("silent_s", "ends"), [(600, False), (1801, True)])
def test_a_run_that_lives_but_sends_no_job_is_not_waited_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_s: float, ends: bool
) -> None:
    """Seen: a Snakemake whose output nobody read any more hung for two hours, servers beside it."""
    made = host(tmp_path / "w", 1, 5)
    monkeypatch.setattr(made, "_more_to_come", lambda: True)
    made.last_job = time.monotonic() - silent_s

    async def wait() -> None:
        async with asyncio.timeout(1):
            await made.idle()

    with contextlib.suppress(TimeoutError):
        asyncio.run(wait())
    assert made.stopping.is_set() == ends


def test_a_clusters_job_counts_the_retry_as_its_snakemake_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snakemake on the node records the job's parameters, and its targets are not the user's: with
    another count the next run would find the shard changed and do it again."""
    work = Workspace.create(tmp_path / "w", [chat("Question?")])
    monkeypatch.chdir(work.folder)
    monkeypatch.setenv(RETRY_VARIABLE, "")  # so that it is gone again afterwards
    monkeypatch.delenv(RETRY_VARIABLE)
    wildcards = SimpleNamespace(shard="0000")

    def count(remote: bool, targets: set[str]) -> int:
        settings = SimpleNamespace(targets=targets)
        snakemake = SimpleNamespace(remote_exec=remote, dag_settings=settings)
        return Run(load(work.config), snakemake).retry_round(wildcards)

    assert count(True, {"results/a"}) == count(False, {"all"}) == 0
    on_login_node = count(False, {"retry_failed"})  # leaves its mark for jobs to inherit
    assert on_login_node == count(True, {"results/a"}) == 1


class Deaf:
    """A daemon's connection on which nothing comes until it was asked often enough."""

    def __init__(self, pings: int):
        self.left = pings
        self.sent: list[str] = []

    async def receive(self) -> dict[str, Any] | None:
        if self.left:
            await asyncio.Event().wait()
        return {"pong": True}

    def send(self, **message: Any) -> None:
        self.sent.append(message["op"])
        self.left -= 1


@pytest.mark.parametrize(("pings", "answer"), [(0, {"pong": True}), (3, {"pong": True}), (9, None)])
def test_a_daemon_that_does_not_answer_counts_as_gone(
    monkeypatch: pytest.MonkeyPatch, pings: int, answer: dict[str, Any] | None
) -> None:
    monkeypatch.setattr(client, "PING_S", 0.01)
    places = object.__new__(client.HostPlaces)
    link = Deaf(pings)
    places.link, places.say = link, lambda _: None  # type: ignore[assignment]
    assert asyncio.run(places._message()) == answer
    assert link.sent == ["ping"] * min(pings, 4)


def test_a_task_that_breaks_ends_the_daemon_with_its_reason(tmp_path: Path) -> None:
    """Nothing of it is awaited by anybody, so that it would otherwise just stop."""

    async def broken() -> None:
        raise KeyError("loads")

    async def run() -> tuple[str | None, bool]:
        made = host(tmp_path / "w", 1, 4)
        task = asyncio.create_task(broken())
        task.add_done_callback(made.ended)
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        return made.fatal, made.stopping.is_set()

    fatal, stopping = asyncio.run(run())
    assert stopping and fatal is not None and "KeyError('loads')" in fatal

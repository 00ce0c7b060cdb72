"""One server per GPU, on pretended GPUs: starts, leases, restarts, canary, who dies with whom."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import polars as pl
import pytest

from tests.made.workspace import Workspace, chat
from tests.stand_ins.gpus import Gpus, verified, workspace
from workflow_scripts.serve.address import CLUSTER_VARIABLE


def test_seven_gpus(gpus: Gpus) -> None:
    """21 shards: seven starts, every port its own, nothing left; a rerun starts nothing."""
    gpus.set(7, token_seconds=0.004)
    work = workspace(gpus, 210)
    work.configure(shards=21)
    done = work.run()
    assert done.code == 0, done.output
    starts = gpus.starts()
    assert len(starts) == 7
    assert {s["gpu"] for s in starts} == {f"{gpus.uuid}-{i}" for i in range(7)}
    assert len({s["port"] for s in starts} | {s["nccl_port"] for s in starts}) == 14
    assert gpus.log.count() == 210 and verified(work)
    gpus.wait_until_gone(2)
    again = work.run()
    assert again.nothing and len(gpus.starts()) == 7
    lines = [json.loads(x) for x in (work.out / "logs/metrics.jsonl").read_text().splitlines()]
    ready = [line for line in lines if line.get("state") == "ready"]
    assert {line["server"] for line in ready} == {str(i) for i in range(7)}
    assert {line["event"] for line in lines if "event" in line} >= {"started", "ready", "stopped"}
    assert max(line["in_flight"] for line in ready) <= 5  # a little above max_running


def test_the_servers_of_a_clusters_job_end_with_it(gpus: Gpus) -> None:
    """In a job of its own, as on a node: no server waits for another job, whatever idle_s says, and
    what the daemon writes is the shard's alone."""
    gpus.set(1)
    work = workspace(gpus, 6, idle_s=500, gpus=5)
    work.configure(shards=1)
    gpus.patch.setenv(CLUSTER_VARIABLE, "1")
    work.run("audit")
    shard = f"results/generate/{work.run_hash()}/shard-0000.parquet"
    done = work.run(shard, "--no-hooks")  # that is, nobody tells a daemon to stop
    assert done.code == 0, done.output
    assert not gpus.alive() and not list(gpus.folder.glob("tracemill-[!g]*"))
    logs = work.out / "logs/servers/0000"
    assert "server 0 on GPU 0 is ready" in (logs / "host.log").read_text()
    assert '"stopped"' in (logs / "metrics.jsonl").read_text()
    assert not (work.out / "logs/metrics.jsonl").exists()


def test_a_silent_clamp_is_told(gpus: Gpus) -> None:
    """The stand-in says that it runs 4 at once, as a real server does whose memory is short."""
    gpus.set(1)
    work = workspace(gpus, 6, server={"max_running_requests": 64})
    done = work.run()
    assert done.code == 0, done.output
    log = (work.out / "logs/host.log").read_text()
    assert "server 0: asked for 64 requests at once, SGLang runs 4" in log
    assert "surprise" in (work.out / "logs/metrics.jsonl").read_text()


def test_two_failing_shards(gpus: Gpus) -> None:
    """The rerun touches only them."""
    gpus.set(2, faults=[{"fault": "status", "code": 400, "share": 0.06}])
    work = workspace(gpus, 60)
    work.configure(shards=10)
    first = work.run()
    failed = {e["input"] for e in gpus.log.entries() if e["fault"]}
    assert first.code != 0 and failed and len(gpus.starts()) == 2
    gpus.wait_until_gone(2)
    missing = 10 - len(list(work.generated().glob("shard-*.parquet")))
    gpus.set(2)
    before = gpus.log.count()
    second = work.run()
    assert second.code == 0, second.output
    assert second.rules()["generate"] == missing <= len(failed)
    assert gpus.log.count() - before == len(failed) and verified(work)
    gpus.wait_until_gone(2)


@pytest.mark.slow
@pytest.mark.slow
def test_every_fault_in_one_run(gpus: Gpus) -> None:
    """What passes leaves no trace, what stays has its reason, and servers that die in the middle
    lose nothing."""
    rows = {"rid": "^(?!tracemill-)"}  # not a server's first token
    once = ["reset", "truncated_json", "null_fields", "abort_200", "nan_stop", "length_zero"]
    faults: list[dict[str, Any]] = [
        {"fault": "kill", "nth": [70], **rows},
        {"fault": "hang", "nth": [40], **rows},
        *({"fault": fault, "share": 0.05, "attempts": 1, **rows} for fault in once),
        {"fault": "status", "code": 400, "share": 0.05, **rows},
        {"fault": "status", "code": 500, "share": 0.1, "attempts": 2, **rows},
        {"fault": "status", "code": 429, "share": 0.2, "attempts": 1, "retry_after": 0.3, **rows},
    ]
    gpus.set(2, token_seconds=0.005, faults=faults)
    work = workspace(gpus, 200)
    work.configure(
        shards=5,
        generate={
            "retries": 8,
            "max_failed_fraction": 0.5,
            "stall_timeout_s": 3,
            "slowest_token_s": 0.05,
        },
    )
    done = work.run()
    assert done.code == 0, done.output
    assert verified(work) and len(gpus.starts()) > 2
    entries = gpus.log.entries()
    assert {e["fault"] for e in entries} == {None, "kill", "hang", "status", *once}
    last = {e["input"]: e["fault"] for e in entries}
    failed = pl.read_parquet(work.out / "merged/failed.parquet")
    assert set(failed["reason"]) == {"refused"}
    assert len(failed) == sum(fault is not None for fault in last.values()) > 0
    completed = pl.read_parquet(work.out / "merged/completions.parquet")
    assert completed["row_id"].n_unique() == len(completed) == 200 - len(failed)


def test_a_signal_while_the_scheduler_holds_its_lock() -> None:
    """Snakemake 9.27 takes its scheduler's lock in the handler of SIGTERM, on the same thread."""
    code = """
import os, signal, threading, time
from workflow_scripts.base.signals import handle_apart
lock, taken = threading.Lock(), threading.Event()
def exit_gracefully(*_):
    with lock:
        taken.set()
signal.signal(signal.SIGTERM, exit_gracefully)
handle_apart(signal.SIGTERM)
with lock:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    assert not taken.is_set()
assert taken.wait(10)
"""
    subprocess.run([sys.executable, "-c", code], timeout=30, check=True)


def test_ctrl_c(gpus: Gpus) -> None:
    gpus.set(2, token_seconds=0.02)
    work = workspace(gpus, 60)
    process = work.start()
    while gpus.log.count() < 12:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0, output
    gpus.wait_until_gone(6)
    done = work.run()
    assert done.code == 0 and verified(work)


def test_a_stuck_server_is_replaced(gpus: Gpus) -> None:
    gpus.set(1, faults=[{"fault": "stuck", "nth": [10]}])
    work = workspace(gpus, 30)
    work.configure(generate={"stall_timeout_s": 3, "retries": 4})
    done = work.run()
    assert done.code == 0, done.output
    assert "no progress for 3 s" in (work.out / "logs/host.log").read_text()
    assert len(gpus.starts()) == 2 and verified(work)
    assert pl.read_parquet(work.out / "merged/failed.parquet").is_empty()


# ---- starting ----


def test_slow_start_and_two_failed_starts(gpus: Gpus) -> None:
    gpus.set(1, start={"0": "fail", "1": "fail", "2": 2.0})
    work = workspace(gpus, 6)
    done = work.run()
    assert done.code == 0, done.output
    assert len(gpus.starts()) == 3
    assert "CUDA out of memory" in (work.out / "logs/host.log").read_text()


def test_a_server_that_never_starts(gpus: Gpus) -> None:
    gpus.set(1, start={str(i): "fail" for i in range(9)})
    work = workspace(gpus, 6, start_attempts=2)
    work.configure(shards=1)
    done = work.run()
    assert done.code != 0
    assert "no server could be started" in done.output and "CUDA out of memory" in done.output
    assert len(gpus.starts()) == 2
    gpus.wait_until_gone(2)


def test_one_gpu_of_two_that_never_starts(gpus: Gpus) -> None:
    gpus.set(2, start={"0": "fail"})
    work = workspace(gpus, 20, start_attempts=1)
    done = work.run()
    assert done.code == 0 and verified(work), done.output
    assert len(gpus.starts()) == 2


def test_another_server_at_the_port(gpus: Gpus) -> None:
    """A server that does not go by the name it was given is not ours."""
    gpus.set(1, start={"0": {"served_model_name": "somebody-else"}})
    work = workspace(gpus, 6)
    done = work.run()
    assert done.code == 0, done.output
    assert (
        "is another server (it serves 'somebody-else'" in (work.out / "logs/host.log").read_text()
    )


def test_a_port_that_is_taken(gpus: Gpus) -> None:
    import socket

    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # taken by another test, which does as well
            taken.bind(("127.0.0.1", 20_000))
            taken.listen()
        gpus.set(1)
        done = workspace(gpus, 6).run()
    assert done.code == 0, done.output
    assert gpus.starts()[0]["port"] != 20_000


def test_a_wrong_canary_stops_the_run_with_both_texts(gpus: Gpus) -> None:
    gpus.set(1)
    canary = [{"prompt": "Capital of France?", "expect": "Paris"}]
    work = workspace(gpus, 6, canary=canary)
    done = work.run()
    assert done.code != 0
    for text in ("'Capital of France?'", "'Paris'", "answered '"):
        assert text in done.output
    assert gpus.log.count() == 0  # no row was asked
    gpus.wait_until_gone(2)


def test_a_right_canary_lets_the_run_go_on(gpus: Gpus) -> None:
    gpus.set(1)
    done = workspace(gpus, 6, canary=[{"prompt": "Say letters", "expect": "^[a-z]+$"}]).run()
    assert done.code == 0, done.output


CONFIG_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"server": {"mem_fraction_statik": 0.8}}, "mem_fraction_statik"),
    ({"server": {"port": 3}}, "port"),
    ({"python": "/nowhere/python"}, "/nowhere/python cannot be run"),
    ({"gpus": 3}, "3 asked for, 2 found"),
    ({"stage": "/nowhere"}, "/nowhere cannot be written"),
]


@pytest.mark.parametrize(("engine", "message"), CONFIG_FAULTS, ids=[c[1] for c in CONFIG_FAULTS])
def test_refused_before_a_gpu_is_touched(gpus: Gpus, engine: dict[str, Any], message: str) -> None:
    gpus.set(2)
    work = workspace(gpus, 3, **engine)
    done = work.run(f"results/generate/{run_hash(work)}/shard-0000.parquet")
    assert done.code != 0 and message in done.output, done.output
    assert gpus.starts() == []


def run_hash(work: Workspace) -> str:
    work.run("audit")
    return work.run_hash()


def test_simulated_acceptance_is_refused(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.set(1)
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3")
    work = workspace(gpus, 3)
    done = work.run()
    assert done.code != 0 and "SGLANG_SIMULATE_ACC_LEN" in done.output
    assert gpus.starts() == []


def test_staging(gpus: Gpus) -> None:
    """One copy, used by both servers, removed at the end."""
    gpus.set(2)
    shm = gpus.stage()
    work = workspace(gpus, 12, stage=str(shm))
    done = work.run()
    assert done.code == 0, done.output
    paths = {s["argv"][s["argv"].index("--model-path") + 1] for s in gpus.starts()}
    assert len(paths) == 1 and paths.pop().startswith(str(shm))
    assert list(shm.iterdir()) == []


def test_changed_flags_replace_the_servers(gpus: Gpus) -> None:
    """Servers that idle are reused by the next run with the same flags, replaced with others."""
    gpus.set(1)
    work = workspace(gpus, 4, idle_s=30)
    first = work.start()
    first.communicate(timeout=100)
    assert len(gpus.starts()) == 1
    work.add_rows([chat("one more")])
    work.configure(engine={"server": {"mem_fraction_static": 0.5}})
    assert work.run().code == 0
    assert len(gpus.starts()) == 2
    assert "0.5" in gpus.starts()[1]["argv"]

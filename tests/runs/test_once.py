"""A fault of the machine or the configuration is said once and stops the run; that of a shard does
not (test_host.py: two failing shards)."""

import os
import signal
import time
from typing import Any

import pytest

from tests.made.workspace import Done, Workspace, stand_in
from tests.stand_ins.gpus import Gpus, verified, workspace

SHARDS = 20
THREADS = 2 + 5  # of Snakemake's local executor with two cores: jobs that can run at once


def many(host: Gpus, rows: int = 2 * SHARDS, **engine: Any) -> Workspace:
    work = workspace(host, rows, **engine)
    work.configure(shards=SHARDS)
    return work


def said_once(done: Done, message: str) -> bool:
    return done.code != 0 and done.output.count(message) == 1


REFUSING = {"faults": [{"fault": "status", "code": 400}]}  # whatever is asked


# ---- before the first job ----


@pytest.mark.parametrize(
    ("here", "engine", "message"),
    [
        (0, {}, "engine.gpus: auto asked for, 0 found"),
        (2, {"gpus": [5]}, "there is no GPU '5'"),
        (2, {"gpus": 3}, "3 asked for, 2 found"),
        (2, {"python": "/nowhere/python"}, "/nowhere/python cannot be run"),
        (2, {"python": "/bin/false"}, "/bin/false has no SGLang"),
        (
            2,
            {"server": {"mem_fraction_statik": 0.8}},
            "mem_fraction_statik: SGLang 0.5.11 has",
        ),
        (0, {"kind": "attach", "urls": ["http://127.0.0.1:9"]}, "127.0.0.1:9: Cannot connect"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_seen_before_the_first_job(
    gpus: Gpus, here: int, engine: dict[str, Any], message: str
) -> None:
    gpus.set(here)
    done = many(gpus, **engine).run()
    assert said_once(done, message), done.output
    assert not done.rules() and not gpus.starts()


def test_another_model_is_attached(gpus: Gpus) -> None:
    with stand_in(model_type="another") as server:
        done = many(gpus, kind="attach", urls=[server.url]).run()
    assert said_once(done, "with model_type 'another'"), done.output
    assert not done.rules()


def test_what_needs_no_server_needs_no_gpu(gpus: Gpus) -> None:
    """An audit, a dry run, a shard whose answers are all in the journal, and nothing to be done."""
    gpus.set(0)
    work = workspace(gpus, 6)
    assert work.run("audit").code == 0
    assert work.run("-n").code == 0
    gpus.set(1)
    assert work.run().code == 0
    gpus.wait_until_gone(2)
    gpus.set(0)
    (work.generated() / "shard-0001.parquet").unlink()
    done = work.run()
    assert done.code == 0 and done.rules()["generate"] == 1, done.output
    assert verified(work) and len(gpus.starts()) == 1
    assert work.run().nothing


# ---- while shards are generated ----


@pytest.mark.parametrize(
    ("here", "options", "engine", "message", "starts"),
    [
        (1, {"fail": True}, {"start_attempts": 1}, "no server could be started", 1),
        (1, REFUSING, {"start_attempts": 1}, "no server could be started", 1),
        (1, {}, {"stage": "/nowhere"}, "/nowhere cannot be written", 0),
        (1, {}, {"canary": [{"prompt": "Capital?", "expect": "Paris"}]}, "expected to find", 1),
    ],
    ids=("never ready", "refusing", "stage", "canary"),
)
def test_seen_by_a_shard(
    gpus: Gpus,
    here: int,
    options: dict[str, Any],
    engine: dict[str, Any],
    message: str,
    starts: int,
) -> None:
    gpus.set(here, **options)
    work = many(gpus, **engine)
    done = work.run()
    assert said_once(done, message), done.output
    assert done.output.rindex(message) > done.output.rindex("Error in rule generate")
    assert done.output.count("the run stops and says why") <= THREADS
    assert done.rules()["generate"] < SHARDS and len(gpus.starts()) == starts
    assert not list(work.out.glob(".stopping.*"))
    gpus.wait_until_gone(2)


def test_no_gpu_where_only_the_audit_tells_whether_one_is_needed(gpus: Gpus) -> None:
    gpus.set(0)
    work = many(gpus)
    work.configure(regenerate="trivial")
    done = work.run()
    assert said_once(done, "auto asked for, 0 found"), done.output
    assert done.rules()["generate"] < SHARDS


def test_attached_servers_that_are_gone_for_good(gpus: Gpus) -> None:
    with stand_in(token_seconds=0.005) as server:
        work = many(gpus, kind="attach", urls=[server.url], reconnect_s=1)
        process = work.start()
        while not list(work.out.glob("generate/*/shard-*.parquet")):
            time.sleep(0.05)
    output, _ = process.communicate(timeout=100)
    done = Done(process.returncode, output)
    assert done.code != 0 and done.rules()["generate"] < SHARDS, output
    assert output.count("the run stops and says why") == 1
    assert output.count("The run was stopped, since every shard would fail") == 1


# ---- a signal ----


def test_shards_that_wait_for_a_thread_do_not_start_after_a_signal(gpus: Gpus) -> None:
    """`place` allows more shards than Snakemake has threads; those that wait count as running."""
    gpus.set(1, token_seconds=0.01)
    work = many(gpus, 5 * SHARDS)
    process = work.start()
    while gpus.log.count() < 3:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert process.returncode != 0
    assert len(list((work.generated() / "journal").glob("*.jsonl"))) <= THREADS, output
    assert "every shard would fail" not in output and not list(work.out.glob(".stopping.*"))
    assert work.run().code == 0 and verified(work)

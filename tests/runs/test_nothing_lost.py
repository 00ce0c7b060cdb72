"""Nothing is lost, whatever ends a run; and what is lost on purpose is found out."""

import gzip
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.made.workspace import (
    Log,
    Workspace,
    chat,
    finished_run,
    kill_all,
    processes,
    stand_in,
)
from tests.runs.test_reruns import answered
from workflow_scripts.base import sums
from workflow_scripts.config.load import load
from workflow_scripts.verify import main as verify_program
from workflow_scripts.verify import verify

KILLS = 20
ROWS = 2000
IN_FLIGHT = 16


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Everything is killed with SIGKILL twenty times, then the run ends by itself."""
    seed = int(os.environ.get("TRACEMILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"seed {seed}; repeat with TRACEMILL_SEED={seed}")
    moments = random.Random(seed)
    work = Workspace.create(tmp_path / "w", [chat(f"Question {i}?") for i in range(ROWS)])
    work.add_rows([{"messages": []}, chat("Same?"), chat("Same?")])
    log = Log(tmp_path / "log")
    with stand_in(log=log.path, token_seconds=0.02, max_running=IN_FLIGHT) as server:
        work.configure(
            engine={"kind": "attach", "urls": [server.url]},
            generate={"concurrency": IN_FLIGHT},
            shards=5,
        )
        for _ in range(KILLS):
            seen = log.count()
            process = work.start()
            # somewhere in start-up, or after some requests of this attempt
            until = time.monotonic() + moments.uniform(0.5, 3.0)
            wanted = seen + moments.randrange(0, 160)
            while time.monotonic() < until or log.count() < wanted:
                if process.poll() is not None:
                    break
                time.sleep(0.02)
            kill_all(process, work.folder)
        done = work.run()
    assert done.code == 0, done.output
    tables = [pl.read_parquet(work.out / f"merged/{n}.parquet") for n in ("completions", "failed")]
    ids = Counter(row for table in tables for row in table["row_id"])
    accepted = pl.read_parquet(work.out / "audit/rows.parquet")["row_id"].to_list()
    assert len(accepted) == ROWS + 2 and ids == Counter(accepted), f"seed {seed}"
    assert json.loads((work.out / "verify.json").read_text())["ok"], f"seed {seed}"
    asked_twice = log.count() - (ROWS + 2)
    assert 0 <= asked_twice <= KILLS * IN_FLIGHT, f"seed {seed}"
    assert len(answered(work)) == ROWS + 2


def test_snakemake_alone_is_killed(tmp_path: Path) -> None:
    """Its orphaned job goes on; a new run waits for it and asks nothing twice."""
    work = Workspace.create(tmp_path / "w", [chat(f"Question {i}?") for i in range(30)])
    log = Log(tmp_path / "log")
    with stand_in(log=log.path, token_seconds=0.01, max_running=2) as server:
        work.configure(engine={"kind": "attach", "urls": [server.url]}, shards=1)
        process = work.start()
        while log.count() < 5:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        done = work.run()
        assert done.code == 0, done.output
        process.communicate()
    assert log.count() == 30


def test_ctrl_c(tmp_path: Path) -> None:
    work = Workspace.create(tmp_path / "w", [chat(f"Question {i}?") for i in range(40)])
    log = Log(tmp_path / "log")
    with stand_in(log=log.path, token_seconds=0.02, max_running=2) as server:
        work.configure(engine={"kind": "attach", "urls": [server.url]}, generate={"concurrency": 2})
        process = work.start()
        while log.count() < 8:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=30)
        assert process.returncode != 0 and "the next run goes on" in output, output
        assert not processes(str(work.folder))
        done = work.run()
    assert done.code == 0, done.output
    assert log.count() <= 40 + 2


def test_two_runs_at_once(tmp_path: Path) -> None:
    work = Workspace.create(tmp_path / "w", [chat(f"Question {i}?") for i in range(10)])
    log = Log(tmp_path / "log")
    with stand_in(log=log.path, token_seconds=0.05, max_running=1) as server:
        work.configure(engine={"kind": "attach", "urls": [server.url]})
        first = work.start()
        while log.count() < 2:
            time.sleep(0.02)
        second = work.run()
        assert second.code != 0 and "another run works there" in second.output, second.output
        output, _ = first.communicate(timeout=120)
        assert first.returncode == 0, output
    assert log.count() == 10


def test_every_format_goes_through(tmp_path: Path) -> None:
    """Parquet, a JSON array and gzipped lines, one row of them unusable: all accounted for."""
    work = Workspace.create(tmp_path / "w", [])
    folder = work.folder / "input"
    rows = [chat(f"Question {i}?") for i in range(12)]
    pq.write_table(pa.Table.from_pylist(rows[:4]), folder / "a.parquet")
    (folder / "b.json").write_text(json.dumps([*rows[4:8], "no object"]))
    with gzip.open(folder / "c.jsonl.gz", "wt") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows[8:])
    (folder / "a.jsonl").unlink(missing_ok=True)
    with stand_in() as server:
        work.configure(input="input/*", engine={"kind": "attach", "urls": [server.url]})
        done = work.run()
    assert done.code == 0, done.output
    merged = pl.read_parquet(work.out / "merged/completions.parquet")
    assert Counter(merged["source"]) == {
        "input/a.parquet": 4, "input/b.json": 4, "input/c.jsonl.gz": 4,
    }  # fmt: skip
    (rejected,) = (work.out / "audit/rejected.jsonl").read_text().splitlines()
    assert json.loads(rejected)["line"] == 5 and json.loads(rejected)["source"] == "input/b.json"
    assert json.loads((work.out / "verify.json").read_text())["ok"]


# ---- shards that fail ----


def test_failing_shards_and_retry(tmp_path: Path) -> None:
    """Shards over the limit fail, the others go on; the next plain run asks only what is missing.
    Below the limit, `retry_failed` asks the failed rows again."""
    work = Workspace.create(tmp_path / "w", [chat(f"Question {i}?") for i in range(30)])
    log = Log(tmp_path / "log")
    bad = [{"fault": "status", "code": 400, "share": 0.2}]
    with stand_in(log=log.path, faults=bad) as server:
        work.configure(
            engine={"kind": "attach", "urls": [server.url]}, generate={"max_failed_fraction": 0.1}
        )
        first = work.run()
        failed = {entry["input"] for entry in log.entries() if entry["fault"]}
        assert first.code != 0 and "max_failed_fraction" in first.output
        # the job itself failed; it was not taken for done with its output missing
        assert "MissingOutputException" not in first.output
        assert log.count() == 30 and failed
        assert not (work.out / "merged").exists()

        # the same again, but allowed: only the shards that failed ask again, and only failed rows
        before = log.count()
        done_shards = len(list(work.generated().glob("shard-*.parquet")))
        work.configure(generate={"max_failed_fraction": 1.0})
        second = work.run()
        assert second.code == 0, second.output
        assert second.rules()["generate"] == 3 - done_shards
        asked = [entry["input"] for entry in log.entries()[before:]]
        assert set(asked) <= failed and len(asked) == len(set(asked))
        table = pl.read_parquet(work.out / "merged/failed.parquet")
        assert table.height == len(failed) and set(table["reason"]) == {"refused"}

        # nothing to do; then a retry, with the fault still there and without it
        assert work.run().nothing
        before = log.count()
        assert work.run("retry_failed").code == 0
        assert log.count() - before == len(failed)
        assert work.run().nothing
        server.faults([])
        before = log.count()
        last = work.run("retry_failed")
        assert last.code == 0, last.output
        assert log.count() - before == len(failed)
        assert pl.read_parquet(work.out / "merged/failed.parquet").is_empty()
        assert work.run().nothing and work.run("retry_failed").nothing
        assert json.loads((work.out / "verify.json").read_text())["ok"]


# ---- gates and evidence ----


def test_an_unusable_input_stops_before_the_engine(tmp_path: Path) -> None:
    work = Workspace.create(tmp_path / "w", [{"messages": []}] * 3 + [chat("Fine?", "Yes.")])
    log = Log(tmp_path / "log")
    with stand_in(log=log.path) as server:
        work.configure(engine={"kind": "attach", "urls": [server.url]})
        audit = work.run("audit")
        assert audit.code == 0, audit.output
        done = work.run()
    assert done.code != 0 and "audit.max_rejected_fraction" in done.output
    assert log.count() == 0
    rejected = [json.loads(x) for x in (work.out / "audit/rejected.jsonl").read_text().splitlines()]
    assert [(r["line"], r["reason"]) for r in rejected] == [
        (i, "empty_conversation") for i in (1, 2, 3)
    ]


def test_a_verdict_can_stop_the_run(tmp_path: Path) -> None:
    work = Workspace.create(tmp_path / "w", [chat("Fine?", "")], audit={"stop_on": ["worthless"]})
    log = Log(tmp_path / "log")
    with stand_in(log=log.path) as server:
        work.configure(engine={"kind": "attach", "urls": [server.url]})
        done = work.run()
    assert log.count() == 0
    assert done.code != 0 and "the verdict is `worthless`" in done.output
    assert (work.out / "audit/report.json").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    rows = [
        chat(f"Question {i}?", "A good and long old answer." if i % 2 else "") for i in range(12)
    ]
    rows += [chat("Two turns?", ""), {"id": 3}]
    rows[12]["messages"] += [{"role": "user", "content": "And then?"}]
    return finished_run(tmp_path_factory.mktemp("finished") / "w", rows)


def faults(work: Workspace) -> list[str]:
    here = os.getcwd()
    os.chdir(work.folder)
    try:
        checks = verify(
            Path("results"), ["input/a.jsonl"], work.run_hash(), load(work.config).shards
        )
    finally:
        os.chdir(here)
    return [c["check"] for c in checks if not c["ok"]]


def test_kept_rows_are_kept(finished: Workspace) -> None:
    table = pl.read_parquet(finished.out / "merged/completions.parquet")
    assert table["origin"].value_counts().sort("origin").rows() == [("generated", 7), ("kept", 6)]
    parts = sorted((finished.out / "dataset").glob("*-0*.parquet"))
    rows = pl.concat([pl.read_parquet(p) for p in parts])
    kept = rows.filter(pl.col("origin") == "kept")
    assert kept.height == 6 and not kept["on_policy"].any() and rows.height == 6 + 8
    # by hand: this template writes a response without reasoning right after the role
    (first,) = kept.filter(pl.col("line") == 2).iter_rows(named=True)
    supervised = [t for t, m in zip(first["input_ids"], first["loss_mask"], strict=True) if m]
    assert supervised == [*b"A good and long old answer.", 257]
    prompt = [t for t, m in zip(first["input_ids"], first["loss_mask"], strict=True) if not m]
    assert prompt == [256, *b"user\nQuestion 1?", 257, 10, 256, *b"assistant\n"]


def edit(path: Path, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    change(pl.read_parquet(path)).write_parquet(path)


PLANTS: list[tuple[str, Callable[[pl.DataFrame], pl.DataFrame], str]] = [
    ("merged/completions.parquet", lambda t: t.slice(1), "merge: none missing"),
    ("merged/completions.parquet", lambda t: pl.concat([t, t[2:3]]), "merge: none double"),
    (
        "merged/completions.parquet",
        lambda t: t.with_columns(
            pl.when(pl.int_range(pl.len()) == 0)
            .then(pl.lit("f" * 32))
            .otherwise("row_id")
            .alias("row_id")
        ),
        "merge: none foreign",
    ),
    (
        "merged/completions.parquet",
        lambda t: t.with_columns(pl.lit("0123456789abcdef").alias("run_hash")),
        "merge: run hash",
    ),
    ("audit/rows.parquet", lambda t: t.slice(1), "input: none missing"),
    ("shards/kept.parquet", lambda t: t.slice(1), "shards: none missing"),
    ("dataset/train-00000.parquet", lambda t: t.slice(1), "dataset: none missing"),
    ("dataset/train-00000.parquet", lambda t: pl.concat([t, t[:1]]), "dataset: none double"),
    (
        "dataset/train-00000.parquet",
        lambda t: t.with_columns(pl.lit("0123456789abcdef").alias("run_hash")),
        "dataset: run hash",
    ),
    (
        "dataset/train-00000.parquet",
        lambda t: t.with_columns(pl.col("loss_mask").list.eval(pl.element() * 0)),
        "dataset: masks",
    ),
    (
        "dataset/train-00000.parquet",
        lambda t: t.with_columns(pl.col("input_ids").list.reverse()),
        "dataset: ids",
    ),
]


@pytest.mark.parametrize(("name", "change", "expected"), PLANTS, ids=[p[2] for p in PLANTS])
def test_a_planted_fault_is_found(
    finished: Workspace,
    tmp_path: Path,
    name: str,
    change: Callable[[pl.DataFrame], pl.DataFrame],
    expected: str,
) -> None:
    work = finished.copy(tmp_path / "w")
    assert faults(work) == []
    edit(work.out / name, change)
    assert expected in faults(work)


def test_a_file_that_cannot_be_read_is_evidence(
    finished: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut in the middle: the stage ends with 0, as every stage of evidence, and says which."""
    work = finished.copy(tmp_path / "w")
    path = work.out / "merged/failed.parquet"
    path.write_bytes(path.read_bytes()[:-200])
    monkeypatch.chdir(work.folder)
    assert verify_program(["--run", "results/run.json", "--output", "results/verify.json"]) == 0
    evidence = json.loads((work.out / "verify.json").read_text())
    found = {c["check"]: c["fault"] for c in evidence["checks"] if not c["ok"]}
    assert not evidence["ok"] and set(found) == {"merged: files", "files"}
    assert "files that cannot be read" in found["files"]


def test_a_changed_input_is_found(finished: Workspace, tmp_path: Path) -> None:
    work = finished.copy(tmp_path / "w")
    path = work.folder / "input/a.jsonl"
    path.write_text(path.read_text().replace("Question 3?", "Question 33?"))
    assert faults(work) == ["input: none missing", "input: none foreign"]


def test_the_gate_fails_and_the_evidence_stays(finished: Workspace, tmp_path: Path) -> None:
    work = finished.copy(tmp_path / "w")
    merged = work.out / "merged"
    edit(merged / "completions.parquet", lambda t: t.slice(1))
    # as a stage would leave it that had lost the row itself
    sums.record(merged, [merged / "completions.parquet", merged / "failed.parquet"])
    (work.out / "verify.json").unlink()
    done = work.run()
    assert done.code != 0 and "merge: none missing: 1 rows" in done.output, done.output
    evidence = json.loads((work.out / "verify.json").read_text())
    assert not evidence["ok"]
    assert (work.out / "report.html").exists()
    assert not (work.out / "gates/verify.ok").exists()

"""Files of a finished run that are damaged: found, named, made again, and nobody is asked.

The server is gone, so a row that was asked again would fail the run.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.made.workspace import Workspace, chat, finished_run, processes, stand_in
from tests.stand_ins.gpus import verified
from workflow_scripts.base.sums import NAME
from workflow_scripts.workflow.damage import damaged


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    rows = [chat(f"Question {i}?", "A good old answer." if i % 3 else "") for i in range(15)]
    work = finished_run(tmp_path_factory.mktemp("finished") / "w", rows)
    assert work.run().nothing
    return work


@pytest.fixture
def work(finished: Workspace, tmp_path: Path) -> Workspace:
    return finished.copy(tmp_path / "w")


def flip(path: Path) -> None:
    """One bit: in the middle, or in JSON of the first digit, which stays JSON."""
    content = bytearray(path.read_bytes())
    digit = re.search(rb"\d", content) if path.suffix == ".json" else None
    content[digit.start() if digit else len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00{")


FILES = [
    "audit/rows.parquet", "audit/report.json", "audit/rejected.jsonl", "shards/manifest.json",
    "shards/kept.parquet", "shards/shard-0001.parquet", "GENERATED/shard-0001.parquet",
    "GENERATED/shard-0001.json", "merged/completions.parquet", "merged/failed.parquet",
    "dataset/train-00000.parquet", "dataset/stats.json", "dataset/samples.html",
]  # fmt: skip


def bytes_of(work: Workspace) -> dict[str, bytes]:
    """All that a run's stages wrote but pages, which tell when they were made."""
    paths = [p for p in work.out.rglob("*") if p.suffix in {".parquet", ".json", ".jsonl"}]
    skip = ("logs", "journal", ".locks")
    return {
        str(p.relative_to(work.out)): p.read_bytes()
        for p in paths
        if not set(skip) & set(p.parts) and "damaged" not in str(p) and p.name != "run.json"
    }


@pytest.mark.parametrize("damage", [flip, empty, garbage, Path.unlink])
def test_every_file_of_a_stage(work: Workspace, damage: Callable[[Path], None]) -> None:
    """All at once, since each is found by itself and nothing is made of a damaged one."""
    whole = bytes_of(work)
    found = [Path(name.replace("GENERATED", f"generate/{work.run_hash()}")) for name in FILES]
    for name in found:
        if (work.out / name).stat().st_size or damage is garbage:
            damage(work.out / name)
    done = work.run()
    assert done.code == 0 and verified(work), done.output
    assert bytes_of(work) == whole
    assert work.run().nothing


@pytest.mark.parametrize("damage", [flip, cut, empty, garbage])
@pytest.mark.parametrize("name", FILES)
def test_each_file_alone_is_named(
    work: Workspace, name: str, damage: Callable[[Path], None]
) -> None:
    """In one process, as the Snakefile does it: what is moved aside, and that only once."""
    path = work.out / name.replace("GENERATED", f"generate/{work.run_hash()}")
    if not path.stat().st_size and damage is not garbage:
        return  # nothing was rejected, so there is nothing to damage
    if name == "GENERATED/shard-0001.json" and damage is flip:
        return  # counts, for verify: it holds the checksum of the table, not its own
    assert damaged(work.out, work.generated()) == {}
    damage(path)
    found = damaged(work.out, work.generated())
    expected = {  # the manifest is what makes all rows again, and the table its counts
        "shards/shard-0001.parquet": work.out / "shards/manifest.json",
        "GENERATED/shard-0001.json": work.generated() / "shard-0001.parquet",
    }.get(name, work.out / "dataset" if name.startswith("dataset/") else path)
    assert expected in found, found
    assert set(found) == {expected}


@pytest.mark.parametrize("what", ["audit", "shards", "merged", "dataset"])
def test_coreutils_reads_the_checksums(work: Workspace, what: str) -> None:
    command = ["sha256sum", "--check", "--strict", NAME]
    done = subprocess.run(command, cwd=work.out / what, capture_output=True, text=True)
    names = {line.removesuffix(": OK") for line in done.stdout.splitlines()}
    assert done.returncode == 0, done.stdout + done.stderr
    assert {f.removeprefix(f"{what}/") for f in FILES if f.startswith(what)} - names <= {
        "shard-0001.parquet"  # the manifest has its checksum
    }


def test_the_card_is_the_users_to_edit(work: Workspace) -> None:
    card = work.out / "dataset/README.md"
    card.write_text(card.read_text() + "\nNot to be sold.\n")
    assert damaged(work.out, work.generated()) == {}
    empty(card)
    assert list(damaged(work.out, work.generated())) == [work.out / "dataset"]


@pytest.mark.parametrize("what", ["audit", "shards", "merged", "dataset"])
@pytest.mark.parametrize("damage", [empty, garbage])
def test_a_damaged_list_of_checksums(
    work: Workspace, what: str, damage: Callable[[Path], None]
) -> None:
    damage(work.out / what / NAME)
    found = {path.relative_to(work.out).parts[0] for path in damaged(work.out, work.generated())}
    assert found == {what}


def test_a_run_of_an_earlier_version_has_no_checksums(work: Workspace) -> None:
    for path in work.out.glob(f"*/{NAME}"):
        path.unlink()
    assert damaged(work.out, work.generated()) == {}
    empty(work.out / "merged/failed.parquet")
    garbage(work.out / "shards/manifest.json")
    names = {str(path.relative_to(work.out)) for path in damaged(work.out, work.generated())}
    assert names == {"merged/failed.parquet", "shards/manifest.json"}


def test_what_is_only_touched_or_copied_is_looked_at_once(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in work.out.rglob("*.parquet"):
        os.utime(path)
    time.sleep(0.05)  # more than a tick of the file system's clock
    assert damaged(work.out, work.generated()) == {}
    read: list[Path] = []
    monkeypatch.setattr("workflow_scripts.base.sums.file_sha256", read.append)
    assert damaged(work.out, work.generated()) == {} and read == []


def test_a_dry_run_says_what_it_would_do(work: Workspace) -> None:
    path = work.out / "merged/completions.parquet"
    flip(path)
    content = path.read_bytes()
    done = work.run("-n")
    assert f"{Path('results/merged/completions.parquet')}: not what was written; it would be" in (
        done.output
    )
    assert path.read_bytes() == content


def silently(path: Path, *records: Path) -> None:
    """As a disk does it, with no change of the file's times: its records are younger."""
    times = path.stat()
    flip(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    time.sleep(0.05)  # more than a tick of the file system's clock
    for record in records:
        os.utime(record, ns=(record.stat().st_atime_ns, record.stat().st_mtime_ns))


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("audit/rows.parquet", "shards/manifest.json"),
        ("audit/report.json", "audit/report.html"),
        ("shards/kept.parquet", "merged/completions.parquet"),
        ("merged/completions.parquet", "dataset/README.md"),
        ("merged/failed.parquet", "report.html"),
    ],
)
def test_a_silent_change_is_found_before_it_is_read(work: Workspace, name: str, gone: str) -> None:
    whole = bytes_of(work)
    silently(work.out / name, (work.out / name).with_name(NAME))
    (work.out / gone).unlink()
    done = work.run()
    assert done.code != 0 and f"{name}: not what was written" in done.output, done.output
    assert f"{name}.damaged" in done.output
    done = work.run()
    assert done.code == 0 and bytes_of(work) == whole, done.output


def judged_again(work: Workspace) -> None:
    (work.out / "verify.json").unlink()
    (work.out / "gates/verify.ok").unlink()


@pytest.mark.parametrize("what", ["audit", "shards", "merged", "dataset", "generate"])
def test_verify_finds_a_silent_change_of_any_file(work: Workspace, what: str) -> None:
    name = {
        "audit": "audit/rows.parquet",
        "shards": "shards/shard-0002.parquet",
        "merged": "merged/completions.parquet",
        "dataset": "dataset/train-00000.parquet",
        "generate": f"generate/{work.run_hash()}/shard-0000.parquet",
    }[what]
    records = [*work.out.glob(f"*/{NAME}"), work.out / "shards/manifest.json"]
    silently(work.out / name, *records, work.generated() / "shard-0000.json")
    judged_again(work)
    done = work.run("results/gates/verify.ok")
    assert done.code != 0 and f"{what}: files: 1 files of" in done.output, done.output


def test_wrong_counts_beside_a_shard(work: Workspace) -> None:
    path = work.generated() / "shard-0000.json"
    path.write_text(path.read_text().replace('"completed": ', '"completed": 1'))
    judged_again(work)
    done = work.run("results/gates/verify.ok")
    assert done.code != 0 and "generate: counts: 1 counts in" in done.output, done.output


@pytest.mark.parametrize("content", [b"", b"\xff\x00{", b"[]", b'{"rule": "mer'])
def test_snakemakes_own_records(work: Workspace, content: bytes) -> None:
    records = [p for p in (work.folder / ".snakemake/metadata").rglob("*") if p.is_file()]
    assert len(records) > 10
    for path in records:
        path.write_bytes(content)
    done = work.run()
    assert done.code == 0 and verified(work), done.output
    assert work.run().nothing


@pytest.mark.parametrize("stage", ["audit", "shard", "merge", "dataset", "verify"])
def test_a_stage_that_outlives_its_snakemake(tmp_path: Path, stage: str) -> None:
    """It stands still while the next run does everything, and must not go on afterwards."""
    work = Workspace.create(tmp_path / "w", [chat(f"Question {i}?") for i in range(600)])
    with stand_in() as server:
        work.configure(engine={"kind": "attach", "urls": [server.url]})
        process = work.start()
        lock = work.out / ".locks" / stage
        while not (lock.exists() and lock.read_text()):
            assert process.poll() is None
            time.sleep(0.001)
        pid = int(lock.read_text().split()[0])
        os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        done = work.run()
        assert done.code == 0 and verified(work), done.output
    assert pid not in processes(str(work.folder))  # it was ended, not waited for
    assert not list(work.out.rglob("*.part"))
    merged = pl.read_parquet(work.out / "merged/completions.parquet")
    assert merged["row_id"].n_unique() == len(merged) == 600
    assert work.run().nothing

"""What reruns, line by line as the project's contract states it, each with the number of requests
that reached the engine."""

import json
import os
import time
from pathlib import Path

import polars as pl
import pytest

from tests.made.workspace import Done, Log, Workspace, chat, kill_all, stand_in
from tests.stand_ins.client import StandIn
from workflow_scripts.shard import split

ROWS = [chat(f"Question {i}: what is {i} times 7?", "OK.") for i in range(12)]
ROWS[3]["messages"] += [{"role": "user", "content": "And 4 times 8?"}]
TURNS = 13  # one row has two turns
AFTER_GENERATE = {"merge", "dataset", "dataset_gate", "verify", "verify_gate", "report"}
# one module of each room that changes no data
SPEED = (
    "base/log.py", "check_machine/job.py", "config/load.py", "embedded/server.py", "engine/http.py",
    "engine/pool.py", "plan.py", "progress/shard.py", "serve/client.py", "serve/daemon.py",
    "sglang/flags.py", "tune/job.py", "watch/screen.py", "workflow/run.py",
)  # fmt: skip
Server = tuple[StandIn, Log]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Workspace:
    """A finished run. Its tests work on copies."""
    workspace = Workspace.create(
        tmp_path_factory.mktemp("base") / "w",
        ROWS,
        engine={"kind": "attach", "urls": [server[0].url]},
    )
    before = server[1].count()
    done = workspace.run()
    assert done.code == 0, done.output
    assert server[1].count() - before == TURNS
    return workspace


@pytest.fixture
def work(base: Workspace, tmp_path: Path) -> Workspace:
    return base.copy(tmp_path / "w")


def edit(work: Workspace, name: str, comment: str = "#") -> None:
    with (work.folder / "workflow_scripts" / name).open("a") as f:
        f.write(f"{comment} another line\n")


def requests_of(
    workspace: Workspace, server: Server, *targets: str, code: int = 0
) -> tuple[Done, int]:
    before = server[1].count()
    done = workspace.run(*targets)
    assert done.code == code, done.output
    return done, server[1].count() - before


def verified(workspace: Workspace) -> bool:
    return json.loads((workspace.out / "verify.json").read_text())["ok"]


def row_ids(workspace: Workspace) -> list[str]:
    tables = [workspace.out / f"merged/{name}.parquet" for name in ("completions", "failed")]
    return sorted(row for path in tables for row in pl.read_parquet(path)["row_id"])


def test_no_change(work: Workspace, server: Server) -> None:
    done, requests = requests_of(work, server)
    assert done.nothing and requests == 0


def test_temperature(work: Workspace, server: Server) -> None:
    old = work.generated()
    kept = {path.name: path.read_bytes() for path in old.glob("*.parquet")}
    work.configure(sampling={"temperature": 0.9})
    done, requests = requests_of(work, server)
    assert requests == TURNS and verified(work)
    assert work.generated() != old
    assert {path.name: path.read_bytes() for path in old.glob("*.parquet")} == kept
    assert done.rules()["audit_rows"] == 0 and done.rules()["generate"] == 3
    # and back: everything is still there
    work.configure(sampling={"temperature": 0.6})
    done, requests = requests_of(work, server)
    assert requests == 0 and verified(work)


@pytest.mark.parametrize("what", ["template", "model"])
def test_model_files(work: Workspace, server: Server, what: str) -> None:
    old = work.generated()
    if what == "template":
        path = work.folder / "model/tokenizer_config.json"
        path.write_text(path.read_text().replace("<|im_start|>' + m", "<|im_start|> ' + m"))
    else:
        path = work.folder / "model/model.safetensors"
        path.write_bytes(b"\0" * 65)
    _, requests = requests_of(work, server, "results/merged/completions.parquet")
    assert requests == TURNS
    assert work.generated() != old and old.is_dir()


def test_speed_settings_and_client_modules(work: Workspace, server: Server) -> None:
    log = Log(work.folder / "other.jsonl")
    with stand_in(log=log.path) as other:
        work.configure(
            engine={
                "urls": [other.url],
                "gpus": 3,
                "server": {"mem_fraction_static": 0.8, "max_mamba_cache_size": 80},
                "slots": 2,
                "reconnect_s": 7,
            },
            generate={"concurrency": 3, "stall_timeout_s": 77, "retries": 9},
        )
        for name in SPEED:
            edit(work, name)
        done, requests = requests_of(work, server)
        assert done.nothing and requests == 0 and log.count() == 0


def test_data_module_edited(work: Workspace, server: Server) -> None:
    edit(work, "model/prompts.py")
    done, requests = requests_of(work, server)
    assert requests == 0 and verified(work)
    assert done.rules()["generate"] == 3 and done.rules()["dataset"] == 1
    assert done.rules()["audit_rows"] == 1  # it counts tokens as the template writes them


@pytest.mark.parametrize("name", ["job.py", "page.html.j2"])
def test_an_edit_in_the_reports_room(work: Workspace, server: Server, name: str) -> None:
    edit(work, f"report/{name}", "" if name.endswith("j2") else "#")
    done, requests = requests_of(work, server)
    assert requests == 0 and set(done.rules()) - {"all"} == {"report"}


def test_an_edit_of_what_pages_need(work: Workspace, server: Server) -> None:
    edit(work, "pages/text.py")
    done, requests = requests_of(work, server)
    assert requests == 0 and verified(work)
    assert not {"audit_rows", "shard", "generate", "merge"} & set(done.rules())
    assert {"audit", "dataset", "report"} <= set(done.rules())


def test_data_module_touched(work: Workspace, server: Server) -> None:
    for path in (work.folder / "workflow_scripts").rglob("*.py"):
        os.utime(path)
    done, requests = requests_of(work, server)
    assert done.nothing and requests == 0


def test_shard_deleted(work: Workspace, server: Server) -> None:
    path = work.generated() / "shard-0001.parquet"
    content = path.read_bytes()
    path.unlink()
    done, requests = requests_of(work, server)
    assert requests == 0 and path.read_bytes() == content
    assert done.rules()["generate"] == 1 and set(done.rules()) >= AFTER_GENERATE


def test_shard_and_its_rows_deleted(work: Workspace, server: Server) -> None:
    """The rows of a shard are no declared output of `shard`, unless they are gone."""
    rows, result = work.out / "shards/shard-0001.parquet", work.generated() / "shard-0001.parquet"
    content = rows.read_bytes(), result.read_bytes()
    rows.unlink()
    result.unlink()
    done, requests = requests_of(work, server)
    assert requests == 0 and (rows.read_bytes(), result.read_bytes()) == content
    assert done.rules()["shard"] == 1 and verified(work)
    done, requests = requests_of(work, server)
    assert done.nothing
    rows.unlink()  # not needed any more
    done, requests = requests_of(work, server)
    assert done.nothing


def test_rows_that_are_gone_are_named(work: Workspace, server: Server) -> None:
    (work.out / "shards/shard-0001.parquet").unlink()
    result = f"results/generate/{work.run_hash()}/shard-0001.parquet"
    (work.folder / result).unlink()
    done, _ = requests_of(work, server, result, code=1)
    assert "shards/shard-0001.parquet is gone; delete" in done.output
    (work.out / "shards/manifest.json").unlink()
    _, requests = requests_of(work, server, result)
    assert requests == 0


def test_shard_without_its_checksum(work: Workspace, server: Server) -> None:
    (work.generated() / "shard-0001.json").unlink()
    done, requests = requests_of(work, server)
    assert "shard-0001.parquet: cannot be checked" in done.output
    assert requests == 0 and verified(work) and done.rules()["generate"] == 1
    assert (work.generated() / "shard-0001.json").exists()


def test_the_manifest_changes_with_any_row(work: Workspace) -> None:
    """Generation depends on it alone: the same number of other rows must show."""
    rows = pl.read_parquet(work.out / "audit/rows.parquet")
    found: list[dict[str, object]] = []
    for text in ("[]", '[{"role":"user","content":"other"}]'):
        chosen = pl.col("row_id") == rows["row_id"][5]
        column = pl.when(chosen).then(pl.lit(text)).otherwise("messages")
        folder = work.folder / f"shards{len(found)}"
        folder.mkdir()
        rows.with_columns(messages=column).write_parquet(folder / "rows.parquet")
        found.append(split(folder / "rows.parquet", folder, "all", 3))
    one, other = found
    assert one["rows"] == other["rows"]
    assert isinstance(one["sha256"], list) and isinstance(other["sha256"], list)
    assert sum(a != b for a, b in zip(one["sha256"], other["sha256"], strict=True)) == 1


def test_shard_and_journal_deleted(work: Workspace, server: Server) -> None:
    path = work.generated() / "shard-0001.parquet"
    turns = pl.read_parquet(path)["turns"].list.len().sum()
    path.unlink()
    for journal in (work.generated() / "journal").glob("shard-0001.*"):
        journal.unlink()
    done, requests = requests_of(work, server)
    assert requests == turns > 0
    assert done.rules()["generate"] == 1 and set(done.rules()) >= AFTER_GENERATE


def test_shard_corrupted(work: Workspace, server: Server) -> None:
    path = work.generated() / "shard-0002.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done, requests = requests_of(work, server)
    assert "shard-0002.parquet: is not what was written" in done.output
    assert (work.generated() / "shard-0002.parquet.damaged").read_bytes() == content
    assert requests == 0 and verified(work) and done.rules()["generate"] == 1
    assert requests_of(work, server)[0].nothing


def test_filters(work: Workspace, server: Server) -> None:
    work.configure(dataset={"max_length": 100})
    done, requests = requests_of(work, server)
    assert requests == 0
    assert set(done.rules()) - {"all"} == AFTER_GENERATE - {"merge"}


def test_rows_appended(work: Workspace, server: Server) -> None:
    work.add_rows([chat("A new question?"), chat("Another one?", None)])
    _, requests = requests_of(work, server)
    assert requests == 2 and verified(work) and len(row_ids(work)) == len(ROWS) + 2


@pytest.mark.parametrize("shards", [1, 5])
def test_shard_count(work: Workspace, server: Server, shards: int) -> None:
    merged = work.out / "merged/completions.parquet"
    before = pl.read_parquet(merged)
    work.configure(shards=shards)
    _, requests = requests_of(work, server)
    assert requests == 0 and verified(work)
    assert pl.read_parquet(merged).equals(before)  # not even the order changes


def test_stopped_at_a_third_and_resumed_otherwise(base: Workspace, tmp_path: Path) -> None:
    work = base.copy(tmp_path / "w")
    log = Log(tmp_path / "log.jsonl")
    work.add_rows([chat(f"Long question {i}") for i in range(60)])
    with stand_in(log=log.path, token_seconds=0.02, max_running=2) as slow:
        work.configure(
            engine={"urls": [slow.url]}, generate={"concurrency": 2}, sampling={"seed": 9}
        )
        process = work.start()
        while log.count() < 20:
            time.sleep(0.05)
        kill_all(process, work.folder)
        in_flight = 2
    done_before = len(answered(work))
    asked_before = log.count()
    assert 20 - in_flight <= done_before <= asked_before
    with stand_in(log=log.path, max_running=16) as fast:
        work.configure(
            engine={"urls": [fast.url], "slots": 3, "server": {"mem_fraction_static": 0.7}},
            generate={"concurrency": "auto"},
        )
        done = work.run()
    assert done.code == 0, done.output
    assert verified(work)
    total = len(ROWS) + 60 + 1  # one row has two turns
    assert log.count() - asked_before == total - done_before
    inputs = [entry["input"] for entry in log.entries()]
    assert len(inputs) - len(set(inputs)) <= in_flight  # only what was in flight is asked twice


def answered(work: Workspace) -> set[str]:
    """Requests with an answer in the journals of the newest run hash."""
    newest = max((work.out / "generate").iterdir(), key=lambda p: p.stat().st_mtime)
    found = set()
    for path in (newest / "journal").glob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            record = json.loads(line[9:]) if line.endswith(b"}") else {}
            if "output_ids" in record:
                found.add(record["request"])
    return found


def test_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    """Spaces, quotes and a shell's command in names are names; nothing of them is carried out."""
    work = Workspace.create(tmp_path / "w", [chat(f"Question {i}?") for i in range(6)])
    odd = "my 'results' $(touch carried-out) `touch out`; touch out &"
    with stand_in() as server:
        work.configure(engine={"kind": "attach", "urls": [server.url]}, output_dir=odd, shards=1)
        done = work.run()
        assert done.code == 0, done.output
        assert work.run().nothing
    assert json.loads((work.folder / odd / "verify.json").read_text())["ok"]
    found = {path.name for path in work.folder.iterdir()}
    assert not found & {"carried-out", "out"}, found

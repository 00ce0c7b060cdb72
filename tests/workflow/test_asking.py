"""Whether a run will surely ask servers, by its planned jobs, its shards and its journals."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.made.workspace import Workspace, chat
from workflow_scripts.config.load import load
from workflow_scripts.workflow.asking import asks_here

LOCAL = {"local_exec": True, "remote_exec": False, "touch": False}


@pytest.mark.parametrize(
    ("jobs", "journals", "rows", "changes", "asks"),
    [
        ([0, 1, 2], [], None, {}, True),
        ([], [], None, {}, False),
        ([0, 1, 2], [], None, {"local_exec": False}, False),  # a cluster
        ([0, 1, 2], [], None, {"touch": True}, False),
        ([0, 1, 2], [], None, {"kind": "embedded"}, False),
        ([0, 1, 2], [], None, {"regenerate": "trivial"}, False),  # the audit will tell
        ([0, 1, 2], [], [0, 4, 0], {"regenerate": "trivial"}, True),
        ([0, 1, 2], [], [0, 0, 0], {"regenerate": "trivial"}, False),
        ([1, 2], ["0000.n3", "0001.n3"], [5, 5, 5], {}, True),  # stopped in the middle
        ([1], ["0000.n3", "0001.n3"], [5, 5, 5], {}, False),  # rebuilt from its journal
        ([0, 1, 2], ["0000.n1"], [5, 5, 5], {}, False),  # from one of another number of shards
        ([0, 2], ["0000.n3"], [5, 5, 0], {}, False),
    ],
)
def test_asks_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[int],
    journals: list[str],
    rows: list[int] | None,
    changes: dict[str, Any],
    asks: bool,
) -> None:
    work = Workspace.create(tmp_path / "w", [chat("Question?")])
    monkeypatch.chdir(work.folder)
    changes = dict(changes)
    engine = {"kind": changes.pop("kind", "sglang"), "python": "python"}
    work.configure(engine=engine, regenerate=changes.pop("regenerate", "all"))
    for name in journals:
        path = work.out / f"generate/hash/journal/shard-{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    if rows:
        (work.out / "shards").mkdir(parents=True)
        (work.out / "shards/manifest.json").write_text(json.dumps({"rows": rows}))
    rule, other = SimpleNamespace(name="generate"), SimpleNamespace(name="merge")
    planned = [SimpleNamespace(rule=other)]
    for k in jobs:
        planned.append(SimpleNamespace(rule=rule, wildcards=SimpleNamespace(shard=f"{k:04d}")))
    dag = SimpleNamespace(needrun_jobs=lambda: iter(planned))
    assert (
        asks_here(SimpleNamespace(dag=dag, **(LOCAL | changes)), load(work.config), "hash") is asks
    )

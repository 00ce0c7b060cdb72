"""Pretended GPUs, and runs on servers of them."""

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.made.model import IM_END, THINK_CLOSE, VOCAB
from tests.made.workspace import Log, Workspace, chat, processes
from workflow_scripts.serve.gpus import NVML_VARIABLE

# GPUs are pretended by a nvidia-smi on PATH; NVML would tell those of the machine. Whatever a test
# starts inherits this.
os.environ[NVML_VARIABLE] = "0"
H200 = """\
0, GPU-aaa, NVIDIA H200, 4, 143771, 0, 76.12
1, GPU-bbb, NVIDIA H200, [N/A], 143771, 99, [N/A]
"""
FAKE = Path(__file__).parent / "fake_gpus"
STAND_IN = {
    "vocab_size": VOCAB,
    "eos": IM_END,
    "think_close": THINK_CLOSE,
    "tokens_from": [97, 122],
    "answer_tokens": [4, 24],
    "context_length": 4096,
    "max_running": 4,
}


def fake_uuid(folder: Path) -> str:
    """How the UUIDs of a test's GPUs begin: no other test has its folder."""
    return f"GPU-fake-{zlib.crc32(bytes(folder)):08x}"


class RowLog(Log):
    """The requests for rows; a server's own first token and canaries are left out."""

    def entries(self) -> list[dict[str, Any]]:
        return [e for e in super().entries() if not e["rid"].startswith("tracemill-")]


class Gpus:
    """A pretended host: its GPUs, its server starts and the requests that reached the servers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        self.uuid = fake_uuid(folder)
        self.patch = monkeypatch
        self.log = RowLog(folder / "requests.jsonl")
        monkeypatch.setenv("PATH", f"{FAKE}:{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_PYTHON", sys.executable)
        monkeypatch.setenv("FAKE_UUID", self.uuid)
        monkeypatch.setenv("FAKE_STARTS", str(folder / "starts.jsonl"))
        monkeypatch.setenv("TMPDIR", str(folder))  # sockets of this test alone
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.set(7)

    def set(self, gpus: int, **options: Any) -> None:
        self.patch.setenv("FAKE_GPUS", str(gpus))
        options = STAND_IN | {"log": str(self.log.path)} | options
        self.patch.setenv("FAKE_OPTIONS", json.dumps(options))

    def stage(self) -> Path:
        """An empty folder for copies of models."""
        folder = self.folder / "stage"
        folder.mkdir()
        return folder

    def starts(self) -> list[dict[str, Any]]:
        path = self.folder / "starts.jsonl"
        return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []

    def alive(self) -> list[int]:
        """Servers and daemons of this test that still run."""
        return processes(str(self.folder)) + processes(str(self.folder / "w"))

    def wait_until_gone(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left


def workspace(host: Gpus, rows: int, **engine: Any) -> Workspace:
    work = Workspace.create(host.folder / "w", [chat(f"Question {i}?") for i in range(rows)])
    settings = {
        "kind": "sglang",
        "python": str(FAKE / "python"),
        "canary": [],
        "idle_s": 5,
        "metrics_s": 0.5,
    }
    work.configure(engine=settings | engine)
    return work


def verified(work: Workspace) -> bool:
    return json.loads((work.out / "verify.json").read_text())["ok"]

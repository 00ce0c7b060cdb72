"""Folders to run the workflow in, the stand-in server for them, and the rows they read."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.made.model import IM_END, THINK_CLOSE, VOCAB, make_model
from tests.made.paths import ROOT
from tests.stand_ins.client import StandIn


def stand_in(**options: Any) -> StandIn:
    """A stand-in server for the small model: printable answers, thinking by its think tokens."""
    defaults: dict[str, Any] = {
        "vocab_size": VOCAB,
        "eos": IM_END,
        "think_close": THINK_CLOSE,
        "tokens_from": (97, 122),
        "answer_tokens": (4, 24),
        "context_length": 4096,
        "model_type": "tiny",
    }
    return StandIn(**(defaults | options))


class Log:
    """The requests a stand-in wrote to its log."""

    def __init__(self, path: Path):
        self.path = path

    def entries(self) -> list[dict[str, Any]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def count(self) -> int:
        return len(self.entries())


class Done:
    """One finished Snakemake call."""

    def __init__(self, code: int, output: str):
        self.code = code
        self.output = output

    def rules(self) -> Counter[str]:
        """Jobs that were started, by rule."""
        return Counter(re.findall(r"^(?:local)?rule (\w+):", self.output, re.MULTILINE))

    @property
    def nothing(self) -> bool:
        return "Nothing to be done" in self.output


class Workspace:
    """A copy of the workflow in a folder of its own, with a configuration and an input."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.out = folder / "results"

    @classmethod
    def create(cls, folder: Path, rows: list[dict[str, Any]], **changes: Any) -> "Workspace":
        folder.mkdir(parents=True)
        ignore = shutil.ignore_patterns("__pycache__")
        for name in ("rules", "profiles", "workflow_scripts"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        shutil.copy2(ROOT / "Snakefile", folder)
        make_model(folder / "model")
        new = cls(folder)
        new.add_rows(rows)
        new.configure(
            output_dir="results",
            input="input/*.jsonl",
            shards=3,
            model={"path": "model", "thinking": True},
            sampling={"max_new_tokens": 64, "seed": 5},
            generate={"retries": 2, "max_failed_fraction": 0.0, "stall_timeout_s": 20},
            dataset={"max_length": 2048, "validation_fraction": 0.1},
            engine={"canary": []},
        )
        new.configure(**changes)
        return new

    def copy(self, folder: Path) -> "Workspace":
        """A copy with all times, so that Snakemake finds nothing to do in it."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Workspace(folder)

    def add_rows(self, rows: list[dict[str, Any]], name: str = "a.jsonl") -> None:
        path = self.folder / "input" / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)

    @property
    def config(self) -> dict[str, Any]:
        path = self.folder / "config/config.yaml"
        return yaml.safe_load(path.read_text()) if path.exists() else {}

    def configure(self, **changes: Any) -> None:
        """Set keys; a dict is merged into its section."""
        config = self.config
        for key, value in changes.items():
            if isinstance(value, dict) and isinstance(config.get(key), dict):
                config[key] |= value
            else:
                config[key] = value
        (self.folder / "config").mkdir(exist_ok=True)
        (self.folder / "config/config.yaml").write_text(yaml.safe_dump(config))

    def start(self, *targets: str, **kwargs: Any) -> subprocess.Popen[str]:
        """Start Snakemake in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--cores", "2", *targets],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={k: v for k, v in os.environ.items() if k != "TRACEMILL_RETRY_FAILED"},
            **kwargs,
        )

    def run(self, *targets: str, timeout: float = 240) -> Done:
        process = self.start(*targets)
        output, _ = process.communicate(timeout=timeout)
        return Done(process.returncode, output)

    def run_hash(self) -> str:
        return json.loads((self.out / "run.json").read_text())["identity"]["run_hash"]

    def generated(self) -> Path:
        return self.out / "generate" / self.run_hash()


def finished_run(folder: Path, rows: list[dict[str, Any]]) -> Workspace:
    """A run that is over and whose server is gone; of its rows the trivial ones were asked."""
    work = Workspace.create(folder, rows)
    with stand_in() as server:
        work.configure(
            engine={"kind": "attach", "urls": [server.url]},
            regenerate="trivial",
            audit={"repeated_min_prompts": 99},
        )
        done = work.run()
    assert done.code == 0, done.output
    return work


def processes(text: str) -> list[int]:
    """Living processes with `text` in their command line or as their working folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        told = process.info
        if told["status"] == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
            continue
        if text == told["cwd"] or any(text in word for word in told["cmdline"] or []):
            found.append(process.pid)
    return found


def kill_all(
    process: subprocess.Popen[str], folder: Path, number: signal.Signals = signal.SIGKILL
) -> None:
    """A signal to everything: Snakemake and whatever runs in the workspace."""
    os.killpg(process.pid, number)
    for pid in processes(str(folder)):
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    process.wait()


def chat(question: str, answer: str | None = "", **more: Any) -> dict[str, Any]:
    """An input row in messages form; answer None leaves the response out."""
    messages = [{"role": "user", "content": question}]
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    return {**more, "messages": messages}

"""A small model folder, workspaces to run the workflow in, and the stand-in server."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from hypothesis import HealthCheck, settings
from stand_in_sglang import StandIn
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from watched_run import Made

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# A run starts some twenty Python programs; where none may keep what it compiles, each compiles all
# of the workflow's modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Slow, shared machines: no example fails for its time.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"]
IM_START, IM_END, END_OF_TEXT, THINK, THINK_CLOSE = range(256, 261)
VOCAB = 320  # the model's vocabulary is padded beyond the tokenizer's 261, as real ones are

# ChatML with a thinking switch, in the manner of the Qwen3.5 family: earlier reasoning is left out.
TEMPLATE = """\
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and loop.last and m.reasoning_content is defined %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking %}{{- '<think>\\n' }}
{%- else %}{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""


def byte_tokenizer() -> Tokenizer:
    """One token per byte, id = byte; then the special tokens. Ids can be worked out by hand."""
    alphabet = {}
    spare = 256
    for byte in range(256):  # the printable stand-ins of byte-level BPE
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
        alphabet[chr(byte if printable else spare)] = byte
        spare += not printable
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    return tokenizer


def make_model(folder: Path, template: str = TEMPLATE) -> Path:
    """A model folder without weights, for the stand-in server."""
    folder.mkdir(parents=True)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer_config = {"chat_template": template, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    config = {"model_type": "tiny", "vocab_size": VOCAB, "eos_token_id": END_OF_TEXT}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": IM_END}))
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    return folder


def stand_in(**options: Any) -> StandIn:
    """A stand-in server for the small model: printable answers, thinking by its think tokens."""
    defaults: dict[str, Any] = {
        "vocab_size": VOCAB,
        "eos": IM_END,
        "think_close": THINK_CLOSE,
        "tokens_from": (97, 122),
        "answer_tokens": (4, 24),
        "context_length": 4096,
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
            **changes,
        )
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

    def run(self, *targets: str) -> Done:
        process = self.start(*targets)
        output, _ = process.communicate(timeout=240)
        return Done(process.returncode, output)

    def run_hash(self) -> str:
        return json.loads((self.out / "run.json").read_text())["identity"]["run_hash"]

    def generated(self) -> Path:
        return self.out / "generate" / self.run_hash()


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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StandIn, Log]]:
    log = tmp_path_factory.mktemp("server") / "requests.jsonl"
    with stand_in(log=log, max_running=8) as running:
        yield running, Log(log)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.chdir(tmp_path)
    return Made()

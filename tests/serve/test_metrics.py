"""The metrics file: what servers tell in Prometheus' text, and what becomes of it."""

import asyncio
import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.made.paths import RECORDED
from tests.stand_ins.gpus import FAKE
from workflow_scripts.engine.protocol import EngineError, Facts
from workflow_scripts.serve.gpus import Gpu
from workflow_scripts.serve.metrics import Metrics, counters
from workflow_scripts.serve.seats import Seat

RECORDING = (RECORDED / "metrics.txt").read_bytes()
TWO_RANKS = b"""\
# HELP sglang:realtime_tokens_total Total number of tokens processed. mode: decode, "prefill".
# TYPE sglang:realtime_tokens_total counter
sglang:realtime_tokens_total{mode="decode",model_name="a {decode} \\"model\\"",dp_rank="0"} 1000.0
sglang:realtime_tokens_total{mode="decode",model_name="a {decode} \\"model\\"",dp_rank="1"} 2.5e3
sglang:realtime_tokens_total{mode="prefill_compute",model_name="mode=\\"decode\\"",dp_rank="0"} 7.0
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length 2.75 1764547200000
# TYPE sglang:num_retracted_requests_total counter
sglang:num_retracted_requests_total{model_name="a"} 3
# TYPE sglang:mamba_usage histogram
sglang:mamba_usage_bucket{le="+Inf"} 9.0
sglang:mamba_usage_sum 4.0
sglang:mamba_usage_count 9.0
# TYPE python_info gauge
python_info{implementation="CPython"} 1.0
"""


def test_a_recording() -> None:
    """Of a real server. By hand: lines 15, 48, 51 and 66 of the file."""
    assert counters(RECORDING) == {
        "decoded": 294960.0,
        "kv_use": 0.20901739530062874,
        "state_use": 1.0,
        "accept_length": 0.0,
    }


def test_labels_time_stamps_and_histograms() -> None:
    """By hand: 1000 and 2500 tokens of two ranks; no bucket is a gauge, no other label a mode."""
    assert counters(TWO_RANKS) == {"decoded": 3500.0, "accept_length": 2.75, "retractions": 3.0}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_value_that_is_no_number(value: str) -> None:
    name = "sglang:full_token_usage"
    assert counters(f'{name}{{tp_rank="0"}} {value}\n'.encode()) == {"decoded": 0.0}


UNREADABLE = [
    b"<html><body>502 Reject Gateway</body></html>",
    RECORDING[: RECORDING.index(b"294960")],  # cut within a line
    RECORDING + b"\xff 1.0\n",
    b'sglang:mamba_usage{tp_rank="0", ="1"} 1.0\n',
    b"sglang:mamba_usage " + b"9" * 400 + b"\n",
]


@pytest.mark.parametrize("text", UNREADABLE, ids=["html", "cut", "bytes", "label", "large"])
def test_what_is_no_exposition(text: bytes) -> None:
    with pytest.raises(EngineError, match="/metrics: no Prometheus text"):
        counters(text)


class Engine:
    """A server that runs five requests and says `text` at /metrics."""

    url = "http://127.0.0.1:20000"

    def __init__(self) -> None:
        self.text = RECORDING

    async def loads(self) -> list[dict[str, Any]]:
        return [{"num_running_reqs": 5, "num_waiting_reqs": 2}]

    async def prometheus(self) -> bytes:
        return self.text


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def seat(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> Seat:
    """A ready server on the first of two pretended GPUs."""
    monkeypatch.setenv("PATH", f"{FAKE}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GPUS", "2")
    monkeypatch.setenv("FAKE_UUID", "GPU-fake")
    gpu = Gpu(0, "GPU-fake-0", "Fake H200", 4, 143771, 0, 70.5)
    made = Seat(0, gpu, socket.socket())
    made.state, made.limit, made.facts = "ready", 4, Facts(4, 4096, {})
    made.server = SimpleNamespace(engine=engine, started=0.0)  # type: ignore[assignment]
    return made


def test_a_line(tmp_path: Path, seat: Seat) -> None:
    """The GPU's numbers are those of the pretended nvidia-smi."""
    asyncio.run(Metrics(tmp_path / "metrics.jsonl").write([seat]))
    found = json.loads((tmp_path / "metrics.jsonl").read_text())
    expected = {
        "server": "0",
        "gpu": "GPU-fake-0",
        "url": "http://127.0.0.1:20000",
        "state": "ready",
        "running": 5,
        "queued": 2,
        "max_running": 4,
        "kv_use": 0.20901739530062874,
        "retractions": None,
        "gpu_util": 0,
        "gpu_mem_mib": 4,
        "gpu_mem_total_mib": 143771,
        "watts": 70.5,
    }
    assert found | expected == found


def test_metrics_that_cannot_be_read_are_not_told(
    tmp_path: Path, seat: Seat, engine: Engine
) -> None:
    """Nor do they make the counter look as if it had begun anew: no speed comes of it."""
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for text in (RECORDING, b"<html>", RECORDING):
        engine.text = text
        asyncio.run(metrics.write([seat]))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["kv_use"] is None for line in lines] == [False, True, False]
    assert [line["running"] for line in lines] == [5, 5, 5]
    assert [line["tokens_per_s"] for line in lines] == [None, None, None]


def test_speed_counts_tokens_of_unfinished_answers(tmp_path: Path) -> None:
    speed = Metrics(tmp_path / "metrics.jsonl")._speed
    assert speed(0, 100.0, 0.0) is None
    assert speed(0, 104.0, 6000.0) == 1500.0
    assert speed(0, 105.0, 10.0) is None  # the server was started again: its counter too
    assert speed(0, 107.0, 3010.0) == 1500.0

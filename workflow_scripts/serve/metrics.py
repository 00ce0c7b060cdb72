"""The metrics file: what each server does every few seconds, and what befell it. Append-only."""

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from workflow_scripts.engine.http import PROBE_S
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.engine.sglang import SGLang
from workflow_scripts.serve.gpus import all_gpus
from workflow_scripts.serve.seats import Seat

# Prometheus names -> ours; absent ones stay null. The gauges are stale while a server is idle, so
# running and queued come from /v1/loads.
GAUGES = {
    "sglang:full_token_usage": "kv_use",
    "sglang:mamba_usage": "state_use",
    "sglang:spec_accept_length": "accept_length",
    "sglang:num_retracted_requests_total": "retractions",
}
DECODED = "sglang:realtime_tokens_total"


def counters(text: bytes) -> dict[str, float]:
    """What a server's /metrics say, by our names; NaN and infinite values are left out.

    `decoded` counts tokens as they are generated, those of unfinished answers too, over all of the
    server's ranks; generation_tokens_total only moves when an answer ends.

    Raises:
        EngineError: this is no Prometheus text.
    """
    found = {"decoded": 0.0}
    try:
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                value = float(sample.value)
                if not math.isfinite(value):
                    continue
                if ours := GAUGES.get(sample.name):
                    found[ours] = value
                elif sample.name == DECODED and sample.labels.get("mode") == "decode":
                    found["decoded"] += value
    except (ValueError, IndexError, OverflowError) as error:
        raise EngineError("bad_answer", f"/metrics: no Prometheus text ({error!r})") from None
    return found


class Metrics:
    """Writes lines to a metrics file; one writer per file."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._host = socket.gethostname()
        self._before: dict[int, tuple[float, float]] = {}

    def event(self, server: int | None, what: str, text: str) -> None:
        """Something that befell a server, or with None the host."""
        name = None if server is None else str(server)
        self._line({"t": time.time(), "event": what, "server": name, "text": text[:4000]})

    def _line(self, entry: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the supervision of servers
            self._file.write(orjson.dumps(entry) + b"\n")

    async def write(self, seats: Sequence[Seat]) -> None:
        """One line per server."""
        gpus = {gpu.uuid: gpu for gpu in await asyncio.to_thread(all_gpus)}
        for seat in seats:
            now = time.time()
            server = seat.server
            engine = server.engine if server else None
            told = await self._told(engine) if engine and seat.state == "ready" else {}
            speed = self._speed(seat.number, now, told.get("decoded"))
            gpu = gpus.get(seat.gpu.uuid)
            self._line(
                {
                    "t": now,
                    "server": str(seat.number),
                    "host": self._host,
                    "gpu": seat.gpu.uuid,
                    "url": engine.url if engine else None,
                    "state": seat.state,
                    "age_s": round(time.monotonic() - server.started, 1) if server else None,
                    "running": told.get("running"),
                    "queued": told.get("queued"),
                    "max_running": seat.facts.max_running if seat.facts else None,
                    "in_flight": len(seat.leases),
                    "limit": seat.limit,
                    "generated_tokens": seat.tokens,
                    "tokens_per_s": speed,
                    **{name: told.get(name) for name in GAUGES.values()},
                    "gpu_util": gpu.util if gpu else None,
                    "gpu_mem_mib": gpu.used_mib if gpu else None,
                    "gpu_mem_total_mib": gpu.total_mib if gpu else None,
                    "watts": gpu.watts if gpu else None,
                }
            )

    def _speed(self, server: int, now: float, decoded: float | None) -> float | None:
        """Tokens per second since the line before; None where the counter began anew."""
        if decoded is None:
            self._before.pop(server, None)
            return None
        then, before = self._before.get(server, (now, decoded))
        self._before[server] = (now, decoded)
        if now <= then or decoded < before:
            return None
        return round((decoded - before) / (now - then), 1)

    async def _told(self, engine: SGLang) -> dict[str, Any]:
        """What the server says; missing where it does not answer in time."""
        found: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # whatever it says must not end the measuring
            async with asyncio.timeout(PROBE_S):
                loads = await engine.loads()
                found["running"] = sum(x["num_running_reqs"] for x in loads)
                found["queued"] = sum(x["num_waiting_reqs"] for x in loads)
                found |= counters(await engine.prometheus())
        return found

"""What the stand-in server says of itself: as a real one was recorded, with the live values."""

from __future__ import annotations

import argparse
import json
import re
import time
from datetime import UTC, datetime
from typing import Any

from tests.made.paths import RECORDED
from tests.stand_ins.engine import Engine

REPORTS = {
    "/server_info": "server_info",
    "/get_server_info": "server_info",
    "/model_info": "model_info",
    "/get_model_info": "model_info",
    "/v1/models": "models",
    "/v1/loads": "loads",
}
SAMPLE = re.compile(r'(sglang:(\w+)\{(?:.*mode="(\w+)")?.*\}) (\S+)')


def recording(name: str) -> Any:
    """Return what a real server answered."""
    return json.loads((RECORDED / f"{name}.json").read_text())


class Reports:
    """The recordings, and the reports that are made of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.recorded = {name: recording(name) for name in REPORTS.values()}
        info = self.recorded["server_info"]
        told = ("status", "max_total_num_tokens", "max_req_input_len", "internal_states", "version")
        arguments = {key: value for key, value in info.items() if key not in told}
        info |= json.loads(options.told)
        info["internal_states"] = [arguments | info["internal_states"][0]]
        self.metric_lines = (RECORDED / "metrics.txt").read_text().splitlines()

    def report(self, path: str, engine: Engine) -> Any:
        """Return the JSON value of a report."""
        return overlay(self.recorded[REPORTS[path]], live(engine))

    def metrics(self, engine: Engine) -> str:
        """Return the Prometheus text."""
        values, lines = live(engine), []
        model = f'model_name="{engine.options.model_path}"'
        for line in self.metric_lines:
            if sample := SAMPLE.fullmatch(line):
                key = f"{sample[2]}:{sample[3]}" if sample[3] else sample[2]
                series = re.sub('model_name="[^"]*"', lambda _: model, sample[1])
                line = f"{series} {float(values[key] if key in values else sample[4])}"
            lines.append(line)
        return "\n".join(lines) + "\n"


def overlay(recorded: Any, live: dict[str, Any]) -> Any:
    """Return the recorded answer with live values; what was recorded as null stays null."""
    if isinstance(recorded, list):
        return [overlay(value, live) for value in recorded]
    if not isinstance(recorded, dict):
        return recorded
    return {
        key: live[key] if key in live and value is not None else overlay(value, live)
        for key, value in recorded.items()
    }


def live(engine: Engine) -> dict[str, Any]:
    """Return the values that differ from the recording, by the names the reports give them."""
    o, counts, now = engine.options, engine.counts, min(time.time(), engine.stuck)
    running, waiting = len(engine.running), len(engine.waiting)
    grown = sum(job.progress(now) for job in engine.running.values())
    used = grown + sum(job.prompt_tokens for job in engine.running.values())
    usage = max(used / o.max_total_tokens, running / o.max_running)
    speed = running / o.token_seconds if o.token_seconds else 0.0
    paths = "model_path tokenizer_path id root"
    places = "max_running_requests effective_max_running_requests_per_dp"
    groups: list[tuple[Any, str]] = [
        (o.model_path, paths),
        (o.served_model_name or o.model_path, "served_model_name"),
        (o.load_format, "load_format"),
        (o.model_type, "model_type"),
        (o.context_length, "context_length context_len max_model_len"),
        (o.max_running, places + " pp_max_micro_batch_size"),
        (o.state_slots or o.max_running, "max_mamba_cache_size"),
        (o.max_total_tokens, "max_total_num_tokens token_capacity"),
        (min(o.context_length, o.max_total_tokens) - 6, "max_req_input_len"),
        (o.port, "port"),
        (int(now), "created"),
        (datetime.now(UTC).isoformat(), "timestamp"),
        (running, "num_running_reqs total_running_reqs"),
        (waiting, "num_waiting_reqs num_queue_reqs total_waiting_reqs waiting"),
        (running + waiting, "num_total_reqs total_reqs"),
        (
            used,
            "num_used_tokens num_total_tokens kv_used_tokens total_used_tokens total_tokens",
        ),
        (o.max_total_tokens - used, "kv_available_tokens"),
        (usage, "token_usage avg_token_usage"),
        (used / o.max_total_tokens, "full_token_usage"),
        (running / o.max_running, "mamba_usage"),
        (speed, "gen_throughput avg_throughput last_gen_throughput"),
        (o.accept_length, "spec_accept_length"),
        (counts["prompt_tokens"], "prompt_tokens_total realtime_tokens_total:prefill_compute"),
        (counts["generation_tokens"], "generation_tokens_total"),
        (counts["decoded"] + grown, "realtime_tokens_total:decode"),
        (counts["finished"], "num_requests_total e2e_request_latency_seconds_count"),
        (counts["finished"], "e2e_request_latency_seconds_bucket"),
        (engine.latency, "e2e_request_latency_seconds_sum"),
        (counts["aborted"] + counts["dropped"], "num_aborted_requests_total"),
    ]
    return {name: value for value, names in groups for name in names.split()}

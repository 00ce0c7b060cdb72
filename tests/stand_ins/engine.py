"""The engine of the stand-in server: places, queue and answers; and the rules that break them."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b, shake_128
from math import inf
from pathlib import Path
from typing import Any

import orjson

from tests.made.paths import RECORDED

CUTS = {"max_new_tokens", "ignore_eos", "stop_token_ids"}  # end the answer, never change it
FAULTS = [
    "kill",
    "hang",
    "stuck",
    "status",
    "reset",
    "truncated_json",
    "null_fields",
    "abort_200",
    "nan_stop",
    "loop",
    "garbage",
    "length_zero",
    "slow",
]


def recording(name: str) -> Any:
    """Return what a real server answered."""
    return json.loads((RECORDED / f"{name}.json").read_text())


def input_hash(ids: list[int]) -> str:
    """Return the short hash of input_ids that the log and the rules' "input" use."""
    return blake2b(orjson.dumps(ids), digest_size=8).hexdigest()


@dataclass(eq=False, slots=True)
class Job:
    """One request in the engine, with the answer that it will get."""

    n: int
    rid: str
    prompt_tokens: int
    digest: bytes
    attempt: int
    received: float
    output: list[int]
    finish: dict[str, Any]
    seconds: float
    started: float = 0.0
    ended: float = 0.0
    timer: asyncio.TimerHandle | None = None
    done: asyncio.Future[None] | None = None

    def progress(self, now: float) -> int:
        """Return how many tokens the request has got so far."""
        share = (now - self.started) / self.seconds if self.started and self.seconds > 0 else 0.0
        return int(min(max(share, 0.0), 1.0) * len(self.output))


@dataclass(eq=False)
class Rule:
    """One rule of fault injection; the docstring of stand_in_sglang explains the fields."""

    fault: str
    nth: int | list[int] | None = None
    rid: str | None = None
    input: str | list[str] | None = None
    share: float = 1.0
    attempts: float = inf
    times: float = inf
    code: int = 503
    retry_after: float | None = None
    message: str | None = None
    body: Any = None
    after: float = 0.5
    fields: list[str] = field(default_factory=lambda: ["output_ids", "meta_info"])
    factor: float = 10.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.fault not in FAULTS:
            raise ValueError(f"no such fault: {self.fault!r}; there are {', '.join(FAULTS)}")
        self.fired = 0
        self.ordinals = [self.nth] if isinstance(self.nth, int) else self.nth
        self.pattern = re.compile(self.rid or "")

    @classmethod
    def parse(cls, raw: str | bytes) -> list[Rule]:
        """Return the rules of a JSON list; ValueError or TypeError if one is wrong."""
        return [cls(**rule) for rule in orjson.loads(raw)]

    def fires(self, job: Job) -> bool:
        """Say whether the rule applies to this request, and count it."""
        drawn = blake2b(self.fault.encode() + job.digest, digest_size=4).digest()
        fires = (
            (self.ordinals is None or job.n in self.ordinals)
            and self.pattern.search(job.rid) is not None
            and (self.input is None or job.digest.hex() in self.input)
            and int.from_bytes(drawn, "big") < self.share * 2**32
            and job.attempt <= self.attempts
            and self.fired < self.times
        )
        self.fired += fires
        return fires


class Engine:
    """Takes requests as jobs, runs as many at once as its options say, and counts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rules = Rule.parse(options.faults)
        self.loop = asyncio.get_running_loop()
        self.by_rid: dict[str, Job] = {}
        self.running: dict[int, Job] = {}
        self.waiting: dict[int, Job] = {}
        self.attempts: Counter[bytes] = Counter()
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.latency = 0.0
        self.stuck = inf  # when it got stuck
        self.log = -1
        if options.log:
            old = Path(options.log).read_text() if os.path.exists(options.log) else ""
            self.attempts.update(bytes.fromhex(json.loads(s)["input"]) for s in old.splitlines())
            self.log = os.open(options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.ordinal = self.attempts.total()
        self.recorded = {"generate": recording("generate")}

    def draw(
        self, digest: bytes, ids: list[int], params: dict[str, Any]
    ) -> tuple[list[int], dict[str, Any]]:
        """Return the ids and the finish reason that a healthy engine answers with."""
        o, close, endless = self.options, self.options.think_close, params.get("ignore_eos")
        limit = params.get("max_new_tokens", 128)
        limit = o.context_length - len(ids) if limit is None else limit
        salt = b""
        if params.get("temperature", 1.0) > 0:
            kept = {key: params[key] for key in params if key not in CUTS}
            salt = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
        source = shake_128(digest + salt)
        (low, high), (first, last) = o.answer_tokens, o.tokens_from
        lengths = [low + number % (high - low + 1) for number in array("I", source.digest(8))]
        marks = (close, close - 1)  # the opening id is the one before the closing id
        thinks = close - 1 in ids and next(i for i in reversed(ids) if i in marks) != close
        total = (lengths[0] if thinks else 0) + (limit if endless else lengths[1])
        width = last - first + 1
        output = [first + number % width for number in array("I", source.digest(8 + 4 * total))[2:]]
        if thinks:
            output.insert(lengths[0], close)
        if not endless:
            output.append(o.eos)
        stops = set(params.get("stop_token_ids") or ()) - {o.eos}
        if stops and not stops.isdisjoint(output):
            at = next(at for at, token in enumerate(output) if token in stops)
            output, endless = output[: at + 1], False
        if endless or len(output) > limit:
            return output[:limit], {"type": "length", "length": limit}
        return output, {"type": "stop", "matched": output[-1]}

    def answer(self, job: Job, logprobs: bool) -> bytes:
        """Return the body of the HTTP 200 for a request that has ended."""
        tokens, ids, latency = len(job.output), job.output, job.ended - job.received
        meta: dict[str, Any] = {"id": job.rid, "finish_reason": job.finish}
        if not job.started:  # aborted in the queue: SGLang fills in only these
            meta |= {"weight_version": "default", "e2e_latency": latency, "completion_tokens": 0}
            return orjson.dumps({"text": "", "output_ids": [], "meta_info": meta})
        spent = job.ended - job.started
        meta = self.recorded["generate"]["meta_info"] | meta
        meta |= {
            "prompt_tokens": job.prompt_tokens,
            "queue_time": job.started - job.received,
            "completion_tokens": tokens,
            "e2e_latency": latency,
            "request_received_ts": job.received,
            "api_server_dispatch_finish_ts": job.received,
            "request_finished_ts": job.ended,
            "inference_time": spent,
            "decode_throughput": tokens / max(spent, 1e-6),
            "response_sent_to_client_ts": time.time(),
        }
        if not tokens:
            del meta["decode_throughput"]
        if self.options.accept_length:
            meta["spec_accept_length"] = self.options.accept_length
        if logprobs:
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = [[-1.0, token, None] for token in ids]
        text = f"stand-in answer of {tokens} tokens" if tokens else ""
        return orjson.dumps({"text": text, "output_ids": ids, "meta_info": meta})

    def submit(self, job: Job, hang: bool) -> None:
        """Run the request now if a place is free, else let it wait."""
        self.by_rid[job.rid] = job
        if not hang and len(self.running) >= self.options.max_running:
            self.waiting[job.n] = job
        elif not hang:
            self.start(job)
            if job.seconds <= 0 and self.stuck == inf:
                self.finish(job)

    def start(self, job: Job, queued: bool = False) -> None:
        """Give the request a place, and a timer that ends it if it takes time or was queued."""
        self.running[job.n] = job
        self.counts["peak_running"] = max(self.counts["peak_running"], len(self.running))
        job.started = time.time()
        if self.stuck == inf and (queued or job.seconds > 0):
            job.timer = self.loop.call_later(job.seconds, self.finish, job)

    def finish(self, job: Job) -> None:
        """End a request that ran to its end."""
        self.end(job)
        self.counts["finished"] += 1
        self.counts["prompt_tokens"] += job.prompt_tokens
        self.counts["generation_tokens"] += len(job.output)
        self.counts["decoded"] += len(job.output)
        self.latency += job.ended - job.received

    def end(self, job: Job) -> None:
        """Take a request out of the engine and wake its handler."""
        job.ended = time.time()
        self.leave(job)
        if job.done is not None:
            job.done.set_result(None)

    def leave(self, job: Job) -> None:
        """Forget a request and, unless the engine is stuck, let the queue move up."""
        if self.by_rid.get(job.rid) is job:
            del self.by_rid[job.rid]
        if self.stuck < inf:
            return
        if job.timer is not None:
            job.timer.cancel()
        self.waiting.pop(job.n, None)
        self.running.pop(job.n, None)
        while self.waiting and len(self.running) < self.options.max_running:
            self.start(self.waiting.pop(next(iter(self.waiting))), queued=True)

    def live(self) -> dict[str, Any]:
        """Return the values that differ from the recording, by the names the reports give them."""
        o, counts, now = self.options, self.counts, min(time.time(), self.stuck)
        running, waiting = len(self.running), len(self.waiting)
        grown = sum(job.progress(now) for job in self.running.values())
        used = grown + sum(job.prompt_tokens for job in self.running.values())
        usage = max(used / o.max_total_tokens, running / o.max_running)
        speed = running / o.token_seconds if o.token_seconds else 0.0
        paths = "model_path tokenizer_path id root"
        places = "max_running_requests effective_max_running_requests_per_dp"
        groups: list[tuple[Any, str]] = [
            (o.model_path, paths),
            (o.served_model_name or o.model_path, "served_model_name"),
            (o.load_format, "load_format"),
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
            (self.latency, "e2e_request_latency_seconds_sum"),
            (counts["aborted"] + counts["dropped"], "num_aborted_requests_total"),
        ]
        return {name: value for value, names in groups for name in names.split()}

"""The stand-in server's engine: places, a queue, and what ends a request."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Any

import orjson


def input_hash(ids: list[int]) -> str:
    """Return the short hash of input_ids that the log and the rules' "input" use."""
    return blake2b(orjson.dumps(ids), digest_size=8).hexdigest()


def aborted(message: str) -> dict[str, Any]:
    """Return the finish reason of a request that the scheduler aborted while it ran."""
    return {"type": "abort", "message": message, "status_code": None, "err_type": None}


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


class Engine:
    """Takes requests as jobs, runs as many at once as its options say, and counts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.by_rid: dict[str, Job] = {}
        self.running: dict[int, Job] = {}
        self.waiting: dict[int, Job] = {}
        self.counts: Counter[str] = Counter()
        self.latency = 0.0
        self.stuck = inf  # when it got stuck

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

    def abort(self, rid: str, everything: bool) -> None:
        """Abort by rid, which like SGLang's scheduler also takes every rid that begins with it."""
        if self.stuck < inf or not (everything or rid in self.by_rid):
            return
        for job in [*self.waiting.values(), *self.running.values()]:
            if not (everything or job.rid.startswith(rid)):
                continue
            self.counts["aborted"] += 1
            if job.started:
                job.output = job.output[: job.progress(time.time())]
                job.finish = aborted("Aborted")
                self.counts["decoded"] += len(job.output)
            else:
                job.output, job.finish = [], {"type": "abort", "message": "Abort in waiting queue"}
            self.end(job)

    def stick(self) -> None:
        """From now on nothing moves."""
        self.stuck = min(self.stuck, time.time())
        for job in self.running.values():
            if job.timer:
                job.timer.cancel()

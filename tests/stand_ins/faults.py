"""The rules that break the stand-in server; its docstring in sglang.py explains them."""

from __future__ import annotations

import os
import re
import signal
from array import array
from dataclasses import dataclass, field
from hashlib import blake2b, shake_128
from math import inf
from typing import Any

import orjson
from aiohttp import web

from tests.stand_ins.answers import error_object, reply
from tests.stand_ins.engine import Engine, Job, aborted

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


@dataclass(eq=False)
class Rule:
    """One rule of fault injection."""

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


def refused(rule: Rule) -> web.Response:
    """Return the refusal of a rule with the fault "status"."""
    message, body = rule.message or "The request queue is full.", rule.body
    headers = {} if rule.retry_after is None else {"Retry-After": f"{rule.retry_after:g}"}
    if isinstance(body, str):
        return web.Response(text=body, status=rule.code, headers=headers)
    if body is None and rule.code == 400:
        body = {"error": {"message": message}}
    elif body is None:
        body = error_object(message, rule.code, str(rule.code))
    return reply(body, rule.code, headers)


def break_engine(engine: Engine, job: Job, rule: Rule, most: int) -> None:
    """Apply a fault to the engine, or to the answer that the request will get."""
    options = engine.options
    half, eos = job.output[: (len(job.output) + 1) // 2], options.eos
    if rule.fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif rule.fault == "stuck":
        engine.stick()
    elif rule.fault == "slow":
        job.seconds = job.seconds * rule.factor + rule.seconds
    elif rule.fault == "abort_200":
        job.output, job.finish = half, aborted(rule.message or "Aborted")
    elif rule.fault == "nan_stop":
        job.output, job.finish = [*half, eos], {"type": "stop", "matched": "NaN happened"}
    elif rule.fault == "length_zero":
        job.output, job.finish = [], {"type": "length", "length": 0}
    elif rule.fault == "loop":
        job.output = (job.output[:12] * most)[:most]
        job.finish = {"type": "length", "length": most}
        job.seconds = options.token_seconds * most
    elif rule.fault == "garbage":
        drawn = array("I", shake_128(b"garbage" + job.digest).digest(4 * len(job.output)))
        job.output = [number % options.vocab_size for number in drawn[1:]] + [eos]
        job.finish = {"type": "stop", "matched": eos}


async def break_wire(request: web.BaseRequest, answer: bytes, rule: Rule) -> web.StreamResponse:
    """Send the answer through a fault of the wire, if the rule is one."""
    if rule.fault == "truncated_json":
        return reply(answer[: len(answer) // 2])
    if rule.fault == "null_fields":
        return reply(orjson.loads(answer) | dict.fromkeys(rule.fields))
    if rule.fault != "reset":
        return reply(answer)
    headers = {"Content-Type": "application/json", "Content-Length": str(len(answer))}
    response = web.StreamResponse(headers=headers)
    if rule.after > 0:
        await response.prepare(request)
        await response.write(answer[: int(len(answer) * rule.after)])
    if request.transport is not None:
        request.transport.abort()
    return response

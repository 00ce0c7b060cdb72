"""A stand-in for an SGLang 0.5.11 server, for tests and benchmarks: no GPU, no model.

It answers as the recordings in `data/sglang/0.5.11` show: the same keys, value shapes, statuses and
error bodies. The ids it answers with depend only on `input_ids` and the sampling parameters
(`max_new_tokens` only cuts them; at temperature 0 the seed and the others do nothing). At most
`--max-running` requests run at once, each for `--token-seconds` a token; 0, the default, answers at
once, without sleeping. The `text` it gives is not the ids' text.

Faults are a JSON list of rules, given by `--faults` or set anew by POST /stand_in/faults. The first
rule that matches a request applies. A rule names its "fault" and matches on all of these it has:

  nth       one or more ordinals: the requests received, from 1
  rid       a regular expression, searched in the request's rid
  input     one or more hashes of input_ids, as `input_hash` and the log give them
  share     this share of all inputs, chosen by their hash
  attempts  k: only the first k times that one input is seen
  times     k: the rule fires k times in all, in this process

  kill            the process is gone at once (SIGKILL)
  hang            the answer is lost: never sent, even after an abort; takes no place in the engine
  stuck           from now on nothing moves: health is fine, requests and aborts change nothing
  status          refused with "code" (503), "retry_after", and "message" or a whole "body"
  reset           the socket closes after the share "after" (0.5) of the body; 0: before any byte
  truncated_json  a complete HTTP answer that holds half of the JSON
  null_fields     "fields" (["output_ids", "meta_info"]) are null
  abort_200       half of the answer, HTTP 200, finish type "abort" with "message"
  nan_stop        half of the answer and the eos id, finish {"type": "stop", "matched": "NaN ..."}
  loop            the answer repeats its first twelve ids until max_new_tokens
  garbage         ids drawn from the whole vocabulary that end like a good answer
  length_zero     no ids, finish {"type": "length", "length": 0}
  slow            takes "factor" (10) times as long, and "seconds" (0) more

The log has a line for every /generate request that has ids, refused or not, written before anything
else happens to it. With it, ordinals and attempts go on counting over restarts of the process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import time
import uuid
from collections import Counter
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from tests.stand_ins.answers import body, draw, error_object, reply
from tests.stand_ins.engine import Engine, Job
from tests.stand_ins.faults import Rule, break_engine, break_wire, refused
from tests.stand_ins.reports import REPORTS, Reports, recording

DISCONNECT_POLL = 1.0  # seconds between two looks at a waiting client's socket
KEEP_ALIVE = 5.0  # seconds; uvicorn's default, which SGLang keeps
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or "
    "waiting requests, the operation will not be performed.)\n"
)


class Received:
    """Counts the requests received and writes them to the log, if there is one; an earlier
    process's lines there are counted too."""

    def __init__(self, path: str | None) -> None:
        self.attempts: Counter[bytes] = Counter()
        self.log = -1
        if path:
            old = Path(path).read_text() if os.path.exists(path) else ""
            self.attempts.update(bytes.fromhex(json.loads(s)["input"]) for s in old.splitlines())
            self.log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.ordinal = self.attempts.total()

    def count(self, digest: bytes) -> tuple[int, int]:
        """Return the request's ordinal and how often its input was seen."""
        self.ordinal += 1
        self.attempts[digest] += 1
        return self.ordinal, self.attempts[digest]

    def write(self, job: Job, seed: int | None, fault: str | None) -> None:
        if self.log >= 0:
            line = {"t": job.received, "rid": job.rid, "n": job.n, "input": job.digest.hex()}
            line |= {"prompt_tokens": job.prompt_tokens, "seed": seed, "fault": fault}
            os.write(self.log, orjson.dumps(line) + b"\n")


class Server:
    """The engine's HTTP surface."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.engine = Engine(options)
        self.received = Received(options.log)
        self.rules = Rule.parse(options.faults)
        self.faults: Counter[str] = Counter()
        self.reports = Reports(options)
        self.meta_info = recording("generate")["meta_info"]
        self.routes = {("GET", path): self.report for path in REPORTS} | {
            ("GET", "/health"): self.health,
            ("GET", "/health_generate"): self.health,
            ("GET", "/metrics"): self.metrics,
            ("GET", "/flush_cache"): self.flush_cache,
            ("POST", "/flush_cache"): self.flush_cache,
            ("POST", "/abort_request"): self.abort_request,
            ("POST", "/generate"): self.generate,
            ("POST", "/stand_in/faults"): self.set_faults,
            ("GET", "/stand_in/requests"): self.requests,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any HTTP request."""
        handler = self.routes.get((request.method, request.path))
        if handler is not None:
            return await handler(request)
        if any(path == request.path for _, path in self.routes):
            return reply({"detail": "Method Not Allowed"}, 405)
        return reply({"detail": "Not Found"}, 404)

    async def generate(self, request: web.BaseRequest) -> web.StreamResponse:
        """Check, log and run one request, and answer it as its fault, if any, wants."""
        received = time.time()
        try:
            asked = orjson.loads(await request.content.read())
            ids, params = asked.get("input_ids"), asked.get("sampling_params") or {}
            if ids is None and isinstance(asked.get("text"), str):
                ids = list(asked["text"].encode())
            packed, highest = orjson.dumps(ids), max(ids, default=0) + 0
        except (ValueError, TypeError, AttributeError) as error:
            message = f"not one request with a list of ids: {error}"
            return reply(error_object(message, 400, "Reject Request"), 400)
        rid = asked.get("rid") or uuid.uuid4().hex
        self.engine.counts["received"] += 1
        refusal = self.refusal(rid, ids, params)
        alien = refusal is None and (highest >= self.options.vocab_size or b"-" in packed)
        job = self.job(received, rid, ids, blake2b(packed, digest_size=8).digest())
        if not refusal and not alien:
            job.output, job.finish = draw(self.options, job.digest, ids, params)
            job.seconds = self.options.token_seconds * len(job.output)
        rule = fault = None
        if refusal is None:
            rule = next((rule for rule in self.rules if rule.fires(job)), None)
        if rule or alien:
            fault = rule.fault if rule else "out_of_vocabulary"
            self.faults[fault] += 1
        self.received.write(job, params.get("sampling_seed"), fault)
        if refusal is not None or (rule and rule.fault == "status"):
            self.engine.counts["rejected"] += 1
            return refused(rule) if rule else reply({"error": {"message": refusal}}, 400)
        if rule:
            break_engine(self.engine, job, rule, params.get("max_new_tokens", 128))
        if alien:  # a device-side assert ends the whole server
            os.kill(os.getpid(), signal.SIGKILL)
        self.engine.submit(job, hang=fault == "hang")
        if not await self.ended(job, request):
            return web.Response(status=499)
        logprobs = bool(asked.get("return_logprob"))
        answer = body(job, self.meta_info, self.options.accept_length, logprobs)
        return await break_wire(request, answer, rule) if rule else reply(answer)

    def job(self, received: float, rid: str, ids: list[int], digest: bytes) -> Job:
        """Return a counted request without an answer."""
        n, attempt = self.received.count(digest)
        return Job(n, rid, len(ids), digest, attempt, received, [], {}, 0.0)

    async def ended(self, job: Job, request: web.BaseRequest) -> bool:
        """Wait until the request has ended; False if the client went away before."""
        while not job.ended:
            job.done = job.done or self.engine.loop.create_future()
            await asyncio.wait({job.done}, timeout=DISCONNECT_POLL)
            if request.transport is None and not job.ended:
                self.engine.counts["dropped"] += 1
                self.engine.leave(job)
                return False
        return True

    def refusal(self, rid: str, ids: list[int], params: dict[str, Any]) -> str | None:
        """Return the message of the 400 that the request gets, if it gets one."""
        limit, count, new = self.options.context_length, len(ids), params.get("max_new_tokens", 128)
        heat = params.get("temperature", 1.0)
        if not ids:
            return "input_ids cannot be empty."
        if rid in self.engine.by_rid:
            return f"Duplicate request ID detected: {rid}"
        if count >= limit:
            return (
                f"The input ({count} tokens) is longer than the model's context length "
                f"({limit} tokens)."
            )
        if new is not None and count + new > limit:
            return (
                f"Requested token count exceeds the model's maximum context length of {limit} "
                f"tokens. You requested a total of {count + new} tokens: {count} tokens from the "
                f"input messages and {new} tokens for the completion. Please reduce the number of "
                "tokens in the input messages or the completion to fit within the limit."
            )
        return f"temperature must be non-negative, got {heat}." if heat < 0 else None

    async def abort_request(self, request: web.BaseRequest) -> web.Response:
        """Abort a request, or all."""
        asked = orjson.loads(await request.read() or b"{}")
        self.engine.abort(asked.get("rid") or "", bool(asked.get("abort_all")))
        return web.Response()

    async def flush_cache(self, request: web.BaseRequest) -> web.Response:
        """Say that the cache is flushed, with 400 while requests run or wait."""
        busy = self.engine.running or self.engine.waiting
        return web.Response(text=FLUSHED, status=400 if busy else 200)

    async def set_faults(self, request: web.BaseRequest) -> web.Response:
        """Replace the rules."""
        try:
            self.rules = Rule.parse(await request.read())
        except (ValueError, TypeError, re.error) as error:
            return reply({"error": {"message": str(error)}}, 400)
        return reply({"rules": len(self.rules)})

    async def requests(self, request: web.BaseRequest) -> web.Response:
        """Return the stand-in's own counters."""
        engine = self.engine
        names = "received finished rejected aborted dropped peak_running generation_tokens"
        counts = {name: engine.counts[name] for name in names.split()}
        counts |= {"running": len(engine.running), "queued": len(engine.waiting)}
        return reply({**counts, "stuck": engine.stuck < inf, "by_fault": dict(self.faults)})

    async def health(self, request: web.BaseRequest) -> web.Response:
        """Say that all is well, stuck or not."""
        return web.Response()

    async def report(self, request: web.BaseRequest) -> web.Response:
        """Return what the server says of itself."""
        return reply(self.reports.report(request.path, self.engine))

    async def metrics(self, request: web.BaseRequest) -> web.Response:
        """Return the same for Prometheus."""
        return web.Response(text=self.reports.metrics(self.engine))


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="A stand-in for an SGLang 0.5.11 server.")
    add = parser.add_argument
    add("--port", type=int, default=0, help="0: any free port")
    add("--port-file", help="file that gets the port once the server listens")
    add("--log", help="JSON lines, one for each /generate request received")
    add("--model-path", default="stand-in-model")
    add("--model-type", default="qwen3_5", help="as /model_info tells it")
    add("--load-format", default="auto", help="as reported; there are no weights")
    add("--served-model-name", help="name that the server goes by; default: its model path")
    add("--vocab-size", type=int, default=248320)
    add("--context-length", type=int, default=8192)
    add("--max-running", type=int, default=16)
    add("--state-slots", type=int, default=0, help="told, not enforced; 0: as --max-running")
    add("--max-total-tokens", type=int, default=613614, help="told, not enforced")
    add("--token-seconds", type=float, default=0.0, help="time of a token; 0: answer at once")
    add("--accept-length", type=float, default=0.0, help="as reported; 0: no speculation")
    add("--told", default="{}", help="JSON object: further values of /server_info")
    add("--eos", type=int, default=248046)
    add("--think-close", type=int, default=248069, help="the opening id is the one before it")
    add("--answer-tokens", type=int, nargs=2, default=[16, 64], metavar=("LO", "HI"))
    add("--tokens-from", type=int, nargs=2, default=[1000, 50000], metavar=("LO", "HI"))
    add("--start-delay", type=float, default=0.0, help="seconds before the server listens")
    add("--faults", default="[]", help="JSON list of rules")
    options = parser.parse_args(arguments)
    (low, high), close = options.tokens_from, options.think_close
    marks = (options.eos, close, close - 1)
    if not 0 <= low <= high < options.vocab_size or any(low <= mark <= high for mark in marks):
        parser.error("--tokens-from must be a range of ordinary ids inside the vocabulary")
    if not 0 <= options.answer_tokens[0] <= options.answer_tokens[1]:
        parser.error("--answer-tokens must be a range")
    return options


async def serve(options: argparse.Namespace) -> None:
    """Serve until a signal ends the process."""
    server = Server(options)
    await asyncio.sleep(options.start_delay)
    protocol = web.Server(server.handle, access_log=None, keepalive_timeout=KEEP_ALIVE)
    listener = await server.engine.loop.create_server(
        protocol, "127.0.0.1", options.port, backlog=1024
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        server.engine.loop.add_signal_handler(number, os._exit, 0)
    options.port = listener.sockets[0].getsockname()[1]
    if options.port_file:
        part = Path(f"{options.port_file}.part")
        part.write_text(f"{options.port}\n")
        part.replace(options.port_file)
    url = f"http://127.0.0.1:{options.port}"
    print(json.dumps({"ready": True, "url": url, "pid": os.getpid()}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(parse_options()))

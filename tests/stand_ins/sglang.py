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
from array import array
from hashlib import blake2b, shake_128
from math import inf
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from tests.made.paths import RECORDED
from tests.stand_ins.engine import Engine, Job, Rule, recording

REPORTS = {
    "/server_info": "server_info",
    "/get_server_info": "server_info",
    "/model_info": "model_info",
    "/get_model_info": "model_info",
    "/v1/models": "models",
    "/v1/loads": "loads",
}
DISCONNECT_POLL = 1.0  # seconds between two looks at a waiting client's socket
KEEP_ALIVE = 5.0  # seconds; uvicorn's default, which SGLang keeps
SAMPLE = re.compile(r'(sglang:(\w+)\{(?:.*mode="(\w+)")?.*\}) (\S+)')
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or "
    "waiting requests, the operation will not be performed.)\n"
)


def reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return an HTTP answer with a JSON body; bytes are taken for JSON."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return web.Response(body=raw, status=status, content_type="application/json", headers=headers)


def error_object(message: str, code: int, kind: str) -> dict[str, Any]:
    """Return the body that SGLang gives an HTTP exception or a malformed request."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


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


class Server(Engine):
    """The engine's HTTP surface, and the faults of both."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.recorded |= {name: recording(name) for name in REPORTS.values()}
        info = self.recorded["server_info"]
        told = ("status", "max_total_num_tokens", "max_req_input_len", "internal_states", "version")
        arguments = {key: value for key, value in info.items() if key not in told}
        info |= json.loads(options.told)
        info["internal_states"] = [arguments | info["internal_states"][0]]
        self.metric_lines = (RECORDED / "metrics.txt").read_text().splitlines()
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
            body = orjson.loads(await request.content.read())
            ids, params = body.get("input_ids"), body.get("sampling_params") or {}
            if ids is None and isinstance(body.get("text"), str):
                ids = list(body["text"].encode())
            packed, highest = orjson.dumps(ids), max(ids, default=0) + 0
        except (ValueError, TypeError, AttributeError) as error:
            message = f"not one request with a list of ids: {error}"
            return reply(error_object(message, 400, "Bad Request"), 400)
        digest = blake2b(packed, digest_size=8).digest()
        rid = body.get("rid") or uuid.uuid4().hex
        self.counts["received"] += 1
        self.ordinal += 1
        self.attempts[digest] += 1
        refusal = self.refusal(rid, ids, params)
        alien = refusal is None and (highest >= self.options.vocab_size or b"-" in packed)
        output, finish = ([], {}) if refusal or alien else self.draw(digest, ids, params)
        most = params.get("max_new_tokens", 128)
        n, attempt = self.ordinal, self.attempts[digest]
        seconds = self.options.token_seconds * len(output)
        job = Job(n, rid, len(ids), digest, attempt, received, output, finish, seconds)
        rule = fault = None
        if self.rules and refusal is None:
            rule = next((rule for rule in self.rules if rule.fires(job)), None)
        if rule or alien:
            fault = rule.fault if rule else "out_of_vocabulary"
            self.faults[fault] += 1
        if self.log >= 0:
            line = {"t": received, "rid": rid, "n": n, "input": digest.hex()}
            line |= {"prompt_tokens": len(ids), "seed": params.get("sampling_seed")}
            os.write(self.log, orjson.dumps({**line, "fault": fault}) + b"\n")
        if refusal is not None:
            self.counts["rejected"] += 1
            return reply({"error": {"message": refusal}}, 400)
        if rule:
            refused = self.break_engine(job, rule, most)
            if refused is not None:
                return refused
        if alien:  # a device-side assert ends the whole server
            os.kill(os.getpid(), signal.SIGKILL)
        self.submit(job, hang=fault == "hang")
        while not job.ended:
            job.done = job.done or self.loop.create_future()
            await asyncio.wait({job.done}, timeout=DISCONNECT_POLL)
            if request.transport is None and not job.ended:
                self.counts["dropped"] += 1
                self.leave(job)
                return web.Response(status=499)
        answer = self.answer(job, bool(body.get("return_logprob")))
        return await self.break_wire(request, answer, rule) if rule else reply(answer)

    def refusal(self, rid: str, ids: list[int], params: dict[str, Any]) -> str | None:
        """Return the message of the 400 that the request gets, if it gets one."""
        limit, count, new = self.options.context_length, len(ids), params.get("max_new_tokens", 128)
        heat = params.get("temperature", 1.0)
        if not ids:
            return "input_ids cannot be empty."
        if rid in self.by_rid:
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

    def break_engine(self, job: Job, rule: Rule, most: int) -> web.Response | None:
        """Apply a fault to the engine or to what it says; return the refusal, if it refuses."""
        half, eos = job.output[: (len(job.output) + 1) // 2], self.options.eos
        if rule.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif rule.fault == "status":
            self.counts["rejected"] += 1
            message, body = rule.message or "The request queue is full.", rule.body
            headers = {} if rule.retry_after is None else {"Retry-After": f"{rule.retry_after:g}"}
            if isinstance(body, str):
                return web.Response(text=body, status=rule.code, headers=headers)
            if body is None and rule.code == 400:
                body = {"error": {"message": message}}
            elif body is None:
                body = error_object(message, rule.code, str(rule.code))
            return reply(body, rule.code, headers)
        elif rule.fault == "stuck":
            self.stuck = min(self.stuck, time.time())
            for other in self.running.values():
                if other.timer:
                    other.timer.cancel()
        elif rule.fault == "slow":
            job.seconds = job.seconds * rule.factor + rule.seconds
        elif rule.fault == "abort_200":
            job.output, job.finish = half, self.aborted(rule.message or "Aborted")
        elif rule.fault == "nan_stop":
            job.output, job.finish = [*half, eos], {"type": "stop", "matched": "NaN happened"}
        elif rule.fault == "length_zero":
            job.output, job.finish = [], {"type": "length", "length": 0}
        elif rule.fault == "loop":
            job.output = (job.output[:12] * most)[:most]
            job.finish = {"type": "length", "length": most}
            job.seconds = self.options.token_seconds * most
        elif rule.fault == "garbage":
            drawn = array("I", shake_128(b"garbage" + job.digest).digest(4 * len(job.output)))
            job.output = [number % self.options.vocab_size for number in drawn[1:]] + [eos]
            job.finish = {"type": "stop", "matched": eos}
        return None

    async def break_wire(
        self, request: web.BaseRequest, answer: bytes, rule: Rule
    ) -> web.StreamResponse:
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

    @staticmethod
    def aborted(message: str) -> dict[str, Any]:
        """Return the finish reason of a request that the scheduler aborted while it ran."""
        return {"type": "abort", "message": message, "status_code": None, "err_type": None}

    async def abort_request(self, request: web.BaseRequest) -> web.Response:
        """Abort by rid, which like SGLang's scheduler also takes every rid that begins with it."""
        body = orjson.loads(await request.read() or b"{}")
        rid, everything = body.get("rid") or "", bool(body.get("abort_all"))
        if self.stuck < inf or not (everything or rid in self.by_rid):
            return web.Response()
        for job in [*self.waiting.values(), *self.running.values()]:
            if not (everything or job.rid.startswith(rid)):
                continue
            self.counts["aborted"] += 1
            if job.started:
                job.output = job.output[: job.progress(time.time())]
                job.finish = self.aborted("Aborted")
                self.counts["decoded"] += len(job.output)
            else:
                job.output, job.finish = [], {"type": "abort", "message": "Abort in waiting queue"}
            self.end(job)
        return web.Response()

    async def flush_cache(self, request: web.BaseRequest) -> web.Response:
        """Say that the cache is flushed, with 400 while requests run or wait."""
        return web.Response(text=FLUSHED, status=400 if self.running or self.waiting else 200)

    async def set_faults(self, request: web.BaseRequest) -> web.Response:
        """Replace the rules."""
        try:
            self.rules = Rule.parse(await request.read())
        except (ValueError, TypeError, re.error) as error:
            return reply({"error": {"message": str(error)}}, 400)
        return reply({"rules": len(self.rules)})

    async def requests(self, request: web.BaseRequest) -> web.Response:
        """Return the stand-in's own counters."""
        names = "received finished rejected aborted dropped peak_running generation_tokens"
        counts = {name: self.counts[name] for name in names.split()}
        counts |= {"running": len(self.running), "queued": len(self.waiting)}
        return reply({**counts, "stuck": self.stuck < inf, "by_fault": dict(self.faults)})

    async def health(self, request: web.BaseRequest) -> web.Response:
        """Say that all is well, stuck or not."""
        return web.Response()

    async def report(self, request: web.BaseRequest) -> web.Response:
        """Return what the server says of itself as recorded, with the live values."""
        return reply(overlay(self.recorded[REPORTS[request.path]], self.live()))

    async def metrics(self, request: web.BaseRequest) -> web.Response:
        """Return the recorded Prometheus text with the live values."""
        live, lines = self.live(), []
        model = f'model_name="{self.options.model_path}"'
        for line in self.metric_lines:
            if sample := SAMPLE.fullmatch(line):
                key = f"{sample[2]}:{sample[3]}" if sample[3] else sample[2]
                series = re.sub('model_name="[^"]*"', lambda _: model, sample[1])
                line = f"{series} {float(live[key] if key in live else sample[4])}"
            lines.append(line)
        return web.Response(text="\n".join(lines) + "\n")


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="A stand-in for an SGLang 0.5.11 server.")
    add = parser.add_argument
    add("--port", type=int, default=0, help="0: any free port")
    add("--port-file", help="file that gets the port once the server listens")
    add("--log", help="JSON lines, one for each /generate request received")
    add("--model-path", default="stand-in-model")
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
    listener = await server.loop.create_server(protocol, "127.0.0.1", options.port, backlog=1024)
    for number in (signal.SIGTERM, signal.SIGINT):
        server.loop.add_signal_handler(number, os._exit, 0)
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

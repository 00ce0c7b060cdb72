"""What the stand-in server answers a request with."""

from __future__ import annotations

import argparse
import time
from array import array
from hashlib import shake_128
from typing import Any

import orjson
from aiohttp import web

from tests.stand_ins.engine import Job

CUTS = {"max_new_tokens", "ignore_eos", "stop_token_ids"}  # end the answer, never change it


def reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return an HTTP answer with a JSON body; bytes are taken for JSON."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return web.Response(body=raw, status=status, content_type="application/json", headers=headers)


def error_object(message: str, code: int, kind: str) -> dict[str, Any]:
    """Return the body that SGLang gives an HTTP exception or a malformed request."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def draw(
    options: argparse.Namespace, digest: bytes, ids: list[int], params: dict[str, Any]
) -> tuple[list[int], dict[str, Any]]:
    """Return the ids and the finish reason that a healthy engine answers with."""
    close, endless = options.think_close, params.get("ignore_eos")
    limit = params.get("max_new_tokens", 128)
    limit = options.context_length - len(ids) if limit is None else limit
    salt = b""
    if params.get("temperature", 1.0) > 0:
        kept = {key: params[key] for key in params if key not in CUTS}
        salt = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
    source = shake_128(digest + salt)
    (low, high), (first, last) = options.answer_tokens, options.tokens_from
    lengths = [low + number % (high - low + 1) for number in array("I", source.digest(8))]
    marks = (close, close - 1)  # the opening id is the one before the closing id
    thinks = close - 1 in ids and next(i for i in reversed(ids) if i in marks) != close
    total = (lengths[0] if thinks else 0) + (limit if endless else lengths[1])
    width = last - first + 1
    output = [first + number % width for number in array("I", source.digest(8 + 4 * total))[2:]]
    if thinks:
        output.insert(lengths[0], close)
    if not endless:
        output.append(options.eos)
    stops = set(params.get("stop_token_ids") or ()) - {options.eos}
    if stops and not stops.isdisjoint(output):
        at = next(at for at, token in enumerate(output) if token in stops)
        output, endless = output[: at + 1], False
    if endless or len(output) > limit:
        return output[:limit], {"type": "length", "length": limit}
    return output, {"type": "stop", "matched": output[-1]}


def body(job: Job, recorded: dict[str, Any], accept_length: float, logprobs: bool) -> bytes:
    """Return the body of the HTTP 200 for a request that has ended.

    `recorded` is the meta_info of a real answer; `accept_length` is 0 without speculation.
    """
    tokens, ids, latency = len(job.output), job.output, job.ended - job.received
    meta: dict[str, Any] = {"id": job.rid, "finish_reason": job.finish}
    if not job.started:  # aborted in the queue: SGLang fills in only these
        meta |= {"weight_version": "default", "e2e_latency": latency, "completion_tokens": 0}
        return orjson.dumps({"text": "", "output_ids": [], "meta_info": meta})
    spent = job.ended - job.started
    meta = recorded | meta
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
    if accept_length:
        meta["spec_accept_length"] = accept_length
    if logprobs:
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = [[-1.0, token, None] for token in ids]
    text = f"stand-in answer of {tokens} tokens" if tokens else ""
    return orjson.dumps({"text": text, "output_ids": ids, "meta_info": meta})

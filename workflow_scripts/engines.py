"""The engine protocol, and the two engines that speak it over HTTP.

Prompt ids go in, output ids come out; nothing is tokenized on the way. Every request carries an id
of ours, so that it can be aborted, and every sampling parameter, so that no default of an engine
applies.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import httpx
import orjson
from httpx_aiohttp import AiohttpTransport

from workflow_scripts.answers import Answer
from workflow_scripts.config import Config, ConfigError, Sampling
from workflow_scripts.identity import numeric_flags

CONNECT_S = 10.0
PROBE_S = 30.0  # SGLang's /health itself may take 20 s under a long prefill
NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
JSON_HEADERS = {"content-type": "application/json"}
EMBEDDED_START_S = 120.0
KEEPALIVE_S = 4.0  # below the 5 s after which uvicorn closes an idle connection


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: `rid` is unique per attempt, `seed` belongs to the row and its turn. `fixed` is
    the exact number of tokens to generate, in rehearsals."""

    rid: str
    prompt_ids: list[int]
    seed: int
    fixed: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of itself: requests that it runs at once, context in tokens (prompt and
    completion together), and all of its own account."""

    max_running: int
    context: int
    raw: dict[str, Any]


class EngineError(Exception):
    """A request without a usable answer.

    Attributes:
        reason: class of the failure, recorded with the row.
        retry: whether another attempt can succeed.
        sent: whether the request can have reached the server; one that cannot have is no attempt.
        after_s: seconds the server asks to wait.
    """

    def __init__(
        self, reason: str, message: str, retry: bool = True, sent: bool = True, after_s: float = 0
    ):
        super().__init__(message)
        self.reason = reason
        self.retry = retry
        self.sent = sent
        self.after_s = after_s


class Engine(Protocol):
    """One server. `since` is when it was first seen alive, in seconds of `time.monotonic`."""

    url: str
    since: float

    async def describe(self) -> Facts: ...
    async def ask(self, ask: Ask, sampling: Sampling | None = None) -> Answer: ...
    async def abort(self, rid: str) -> None: ...
    async def progress(self) -> object:
        """Anything that changes while the server generates."""

    async def load(self) -> tuple[int | None, float | None]:
        """Requests running and share of the cache in use, None where unknown."""


def http_transport() -> httpx.AsyncBaseTransport:
    """httpx over aiohttp's connections: about ten times cheaper per request than its own.

    The transport is used without a client on top: redirects, cookies and authentication, which a
    client looks after, do not occur here and cost as much as the request itself.
    """

    def session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        return aiohttp.ClientSession(connector=connector)

    return AiohttpTransport(client=session)


class HttpEngine:
    """What both engines share: requests, and what their failures mean."""

    def __init__(
        self, url: str, sampling: Sampling, end_ids: list[int], http: httpx.AsyncBaseTransport
    ):
        self.url = url.rstrip("/")
        self.sampling = sampling
        self.end_ids = end_ids
        self.http = http
        self.since = time.monotonic()
        self._urls: dict[str, httpx.URL] = {}

    def _url(self, path: str) -> httpx.URL:
        """The parsed address; parsing it for each request costs more than sending it."""
        if path not in self._urls:
            self._urls[path] = httpx.URL(self.url + path)
        return self._urls[path]

    async def _call(self, method: str, path: str, timeout: float | None, body: Any = None) -> bytes:
        """Send a request and return the body of a 200.

        Args:
            timeout: seconds without any byte; None for an answer, which may take an hour and is
                bounded by `dispatch`.

        Raises:
            EngineError: whatever else comes back, or nothing.
        """
        request = httpx.Request(
            method,
            self._url(path),
            content=orjson.dumps(body) if body is not None else b"",
            headers=JSON_HEADERS,
            extensions={"timeout": {"connect": CONNECT_S, "pool": CONNECT_S, "read": timeout}},
        )
        try:
            response = await self.http.handle_async_request(request)
            try:
                content = await response.aread()
            finally:  # a request given up closes its connection
                await response.aclose()
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            # the transport names a refused and a lost connection alike; the cause tells
            cause = error.__cause__ or error
            if isinstance(cause, NEVER_SENT):
                raise EngineError("unreachable", f"{self.url}: {cause}", sent=False) from None
            what = f"{self.url}: {type(cause).__name__}: {cause}"
            raise EngineError("connection_lost", what) from None
        if response.status_code == 200:
            return content
        raise self._refused(response)

    def _refused(self, response: httpx.Response) -> EngineError:
        text = response.text[:500]
        message = f"{self.url}: HTTP {response.status_code}: {text}"
        if response.status_code in (408, 409, 425, 429, 503):
            try:
                after = float(response.headers.get("retry-after", 0))
            except ValueError:
                after = 0.0
            return EngineError("overloaded", message, after_s=after)
        if response.status_code >= 500:
            return EngineError("server_error", message)
        return EngineError("refused", message, retry=False)

    async def _json(self, method: str, path: str, timeout: float | None, body: Any = None) -> Any:
        raw = await self._call(method, path, timeout, body)
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            message = f"{self.url}{path}: the answer is no JSON ({error}): {raw[:200]!r}"
            raise EngineError("bad_answer", message) from None

    def _understood(self, read: Callable[[Any], Answer], found: Any) -> Answer:
        try:
            return read(found)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            message = f"{self.url}: fields are missing or null ({what}): {str(found)[:200]}"
            raise EngineError("bad_answer", message) from None


class SGLang(HttpEngine):
    """SGLang's native API (seen on 0.5.11; the same fields in 0.5.23)."""

    async def describe(self) -> Facts:
        found = await self._json("GET", "/server_info", PROBE_S)
        try:
            state = found["internal_states"][0]
            running = state["effective_max_running_requests_per_dp"]
            return Facts(
                max_running=int(running) * int(found.get("dp_size") or 1),
                context=int(found["context_length"] or found["max_req_input_len"] + 6),
                raw=found,
            )
        except (KeyError, TypeError, IndexError, ValueError) as error:
            message = f"{self.url}/server_info: not what SGLang answers ({error!r})"
            raise EngineError("foreign_server", message, retry=False) from None

    async def ask(self, ask: Ask, sampling: Sampling | None = None) -> Answer:
        s = sampling or self.sampling
        body = {
            "rid": ask.rid,
            "input_ids": ask.prompt_ids,
            "sampling_params": {
                "temperature": s.temperature,
                "top_p": s.top_p,
                "top_k": s.top_k,
                "min_p": s.min_p,
                "max_new_tokens": ask.fixed or s.max_new_tokens,
                "sampling_seed": ask.seed,
                "stop_token_ids": None if ask.fixed else self.end_ids,
                "ignore_eos": ask.fixed is not None,
            },
        }
        return self._understood(_read_sglang, await self._json("POST", "/generate", None, body))

    async def abort(self, rid: str) -> None:
        await self._call("POST", "/abort_request", PROBE_S, {"rid": rid})

    async def loads(self) -> list[dict[str, Any]]:
        """The server's own account of its load, one entry per data-parallel rank."""
        found = await self._json("GET", "/v1/loads?include=core", PROBE_S)
        return list(found["loads"])

    async def prometheus(self) -> bytes:
        return await self._call("GET", "/metrics", PROBE_S)

    async def progress(self) -> object:
        keys = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "num_total_tokens")
        return [[load.get(key) for key in keys] for load in await self.loads()]

    async def load(self) -> tuple[int | None, float | None]:
        loads = await self.loads()
        return sum(x["num_running_reqs"] for x in loads), max(x["token_usage"] for x in loads)


def _read_sglang(found: Any) -> Answer:
    meta = found["meta_info"]
    finish = meta["finish_reason"]
    retractions = meta.get("num_retractions", meta.get("total_retractions"))
    return Answer(
        output_ids=list(found["output_ids"]),
        finish=str(finish["type"]),
        matched=finish.get("matched"),
        retractions=int(retractions or 0),
        accept_length=meta.get("spec_accept_length"),
    )


class LlamaCpp(HttpEngine):
    """The embedded engine: llama.cpp's own API, one request per slot."""

    facts: Facts

    async def describe(self) -> Facts:
        return self.facts

    async def ask(self, ask: Ask, sampling: Sampling | None = None) -> Answer:
        s = sampling or self.sampling
        body = {
            "prompt": ask.prompt_ids,
            "n_predict": s.max_new_tokens,
            "seed": ask.seed,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "top_k": max(s.top_k, 0),
            "min_p": s.min_p,
            # SGLang's order: the cuts see the tempered probabilities
            "samplers": ["temperature", "top_k", "top_p", "min_p"],
            "return_tokens": True,
            "cache_prompt": False,  # a warm cache cuts the prompt into other batches: other ids
            "stream": True,  # only a streamed request ends when its connection is closed
            "response_fields": ["tokens", "stop", "stop_type"],
        }
        raw = await self._call("POST", "/completion", None, body)
        try:
            parts = [orjson.loads(line[6:]) for line in raw.split(b"\n") if line[:6] == b"data: "]
        except orjson.JSONDecodeError as error:
            raise EngineError("bad_answer", f"{self.url}: a line is no JSON ({error})") from None
        return self._understood(_read_llama, parts)

    async def abort(self, rid: str) -> None:
        """Nothing to send: giving a request up closes its connection, and that ends it."""

    async def progress(self) -> object:
        slots = await self._json("GET", "/slots", PROBE_S)
        return [[slot.get("id_task"), slot.get("next_token")] for slot in slots]

    async def load(self) -> tuple[int | None, float | None]:
        slots = await self._json("GET", "/slots", PROBE_S)
        return sum(bool(slot["is_processing"]) for slot in slots), None


def _read_llama(parts: Any) -> Answer:
    ids = [token for part in parts for token in part["tokens"]]
    stop = parts[-1]["stop_type"]  # the last line, which has no tokens
    return Answer(ids, "stop", ids[-1]) if stop == "eos" else Answer(ids, "length", None)


@asynccontextmanager
async def open_engines(
    config: Config, end_ids: list[int], say: Callable[[str], None]
) -> AsyncIterator[list[tuple[Engine, Facts]]]:
    """The servers that the configuration names, each checked; started and stopped if ours.

    Raises:
        ConfigError: a server computes with other numerics than the configuration says.
        EngineError: a server does not answer, or is not what it should be.
    """
    async with http_transport() as http:
        if config.engine.kind == "embedded":
            async with _embedded(config, end_ids, http) as engine:
                yield [(engine, await engine.describe())]
        else:
            yield [await _attached(url, config, end_ids, http) for url in config.engine.urls]


async def _attached(
    url: str, config: Config, end_ids: list[int], http: httpx.AsyncBaseTransport
) -> tuple[Engine, Facts]:
    engine = SGLang(url, config.sampling, end_ids, http)
    facts = await engine.describe()
    check_numerics(url, config, facts)
    return engine, facts


def check_numerics(url: str, config: Config, facts: Facts) -> None:
    """Raises ConfigError where a server computes with other numerics than the run's hash says."""
    wanted, found = numeric_flags(config.engine.server), numeric_flags(facts.raw)
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ConfigError(
                f"engine.server: {url} runs with {name}={found.get(name)!r}, the configuration "
                f"says {wanted.get(name)!r}; it changes the answers, so set `{name}` under "
                "engine.server to what the server has, or restart the server"
            )


@asynccontextmanager
async def _embedded(
    config: Config, end_ids: list[int], http: httpx.AsyncBaseTransport
) -> AsyncIterator[Engine]:
    """Start the embedded engine as a child process and end it with the block."""
    command = [sys.executable, "-m", "workflow_scripts.embedded_server"]
    command += ["--model", str(Path(config.model.path) / "model.gguf")]
    command += ["--slots", str(config.engine.slots)]
    command += ["--context", str(config.engine.slot_context), "--parent-pid", str(os.getpid())]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(EMBEDDED_START_S):
            line = await process.stdout.readline()
        if not line:
            code = await process.wait()
            message = f"the embedded engine ended with status {code}; its reason stands above"
            raise EngineError("start_failed", message)
        ready = orjson.loads(line)
        engine = LlamaCpp(ready["url"], config.sampling, end_ids, http)
        engine.facts = Facts(ready["slots"], ready["context"], {})
        yield engine
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(5):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

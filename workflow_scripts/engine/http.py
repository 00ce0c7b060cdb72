"""HTTP requests to an engine, and what their failures mean."""

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import httpx
import orjson
from httpx_aiohttp import AiohttpTransport

from workflow_scripts.config.sections import Sampling
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.model.answers import Answer

CONNECT_S = 10.0
PROBE_S = 30.0  # SGLang's /health itself may take 20 s under a long prefill
NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# Nothing compressed is wanted: a few bytes could become gigabytes.
JSON_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
PLAIN = ("", "identity")
BODY_BYTES = 64 << 20  # most of an answer to anything but a request for tokens
REFUSAL_BYTES = 16 << 10  # read of an answer that is no 200
LONGEST_WAIT_S = 60.0  # of what a server asks to wait
KEEPALIVE_S = 4.0  # below the 5 s after which uvicorn closes an idle connection


def without_secrets(url: str) -> str:
    """A URL without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def http_transport() -> httpx.AsyncBaseTransport:
    """httpx over aiohttp's connections: about ten times cheaper per request than its own.

    The transport is used without a client on top: redirects, cookies and authentication, which a
    client looks after, do not occur here and cost as much as the request itself.
    """

    def session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        return aiohttp.ClientSession(connector=connector, auto_decompress=False)

    return AiohttpTransport(client=session)


class HttpEngine:
    """What both engines share: requests, and what their failures mean."""

    def __init__(
        self, url: str, sampling: Sampling, end_ids: list[int], http: httpx.AsyncBaseTransport
    ):
        self._address = url.rstrip("/")
        self.url = without_secrets(self._address)  # as messages, logs and tables name it
        self.sampling = sampling
        self.end_ids = end_ids
        self.http = http
        self.since = time.monotonic()
        self._urls: dict[str, httpx.URL] = {}

    def _url(self, path: str) -> httpx.URL:
        """The parsed address; parsing it for each request costs more than sending it."""
        if path not in self._urls:
            self._urls[path] = httpx.URL(self._address + path)
        return self._urls[path]

    async def _call(
        self,
        method: str,
        path: str,
        timeout: float | None,
        body: Any = None,
        most: int = BODY_BYTES,
    ) -> bytes:
        """Send a request and return the body of a 200.

        Args:
            timeout: seconds without any byte; None for an answer, which may take an hour and is
                bounded by the pool.
            most: bytes of the body; a longer one is not read to its end.

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
                if response.status_code != 200:
                    raise self._refused(response, await _beginning(response))
                content = await self._body(response, path, most)
            finally:  # a request given up closes its connection
                await response.aclose()
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            # the transport names a refused and a lost connection alike; the cause tells
            cause = error.__cause__ or error
            if isinstance(cause, NEVER_SENT):
                raise EngineError("unreachable", f"{self.url}: {cause}", sent=False) from None
            what = f"{self.url}: {type(cause).__name__}: {cause}"
            raise EngineError("connection_lost", what) from None
        return content

    async def _body(self, response: httpx.Response, path: str, most: int) -> bytes:
        if (coding := response.headers.get("content-encoding", "")) not in PLAIN:
            message = f"{self.url}{path}: the answer is compressed ({coding}), which nobody asked"
            raise EngineError("bad_answer", message)
        pieces, size = [], 0
        async for piece in response.aiter_raw():
            pieces.append(piece)
            size += len(piece)
            if size > most:
                message = f"{self.url}{path}: the answer has more than {most:,} bytes"
                raise EngineError("bad_answer", message)
        return b"".join(pieces)

    def _refused(self, response: httpx.Response, body: bytes) -> EngineError:
        text = body.decode("utf-8", "replace")[:500]
        message = f"{self.url}: HTTP {response.status_code}: {text}"
        if response.status_code in (408, 409, 425, 429, 503):
            after = _seconds(response.headers.get("retry-after", "0"))
            return EngineError("overloaded", message, after_s=after)
        if response.status_code >= 500:
            return EngineError("server_error", message)
        return EngineError("refused", message, retry=False)

    async def _json(
        self,
        method: str,
        path: str,
        timeout: float | None,
        body: Any = None,
        most: int = BODY_BYTES,
    ) -> Any:
        raw = await self._call(method, path, timeout, body, most)
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
            message = f"{self.url}: not an answer to this request ({what}): {str(found)[:200]}"
            raise EngineError("bad_answer", message) from None


async def _beginning(response: httpx.Response) -> bytes:
    """The first bytes of a body, as they came."""
    found = b""
    async for piece in response.aiter_raw():
        found += piece
        if len(found) >= REFUSAL_BYTES:
            break
    return found[:REFUSAL_BYTES]


def _seconds(text: str) -> float:
    """What a `Retry-After` says, up to LONGEST_WAIT_S; 0 for a date or nonsense."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return min(value, LONGEST_WAIT_S) if value > 0 else 0.0  # a NaN is not more than 0

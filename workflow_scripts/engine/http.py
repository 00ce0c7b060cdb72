"""HTTP requests to an engine, and what their failures mean."""

import time
from collections.abc import Callable
from typing import Any

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
JSON_HEADERS = {"content-type": "application/json"}
KEEPALIVE_S = 4.0  # below the 5 s after which uvicorn closes an idle connection


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

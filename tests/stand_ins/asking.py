"""How the stand-in's own tests ask it."""

import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.stand_ins.client import StandIn

EOS, THINK, CLOSE = 248046, 248068, 248069
PROMPT = list(range(100, 150))
HTTP = httpx.Client(timeout=10)


def post(server: StandIn, ids: Any = PROMPT, **params: Any) -> httpx.Response:
    """Send one /generate request; keywords are sampling parameters, but for rid."""
    body = {"rid": params.pop("rid", None), "input_ids": ids, "sampling_params": params}
    return HTTP.post(f"{server.url}/generate", json=body)


def get(server: StandIn, path: str) -> Any:
    return HTTP.get(server.url + path).json()


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> float:
    """Wait until the condition holds; return how long that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it never came true"
        time.sleep(0.02)
    return time.monotonic() - start

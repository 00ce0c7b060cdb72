"""Answers that are not the answer to their request, and bodies that nobody can hold."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.made.paths import ROOT
from workflow_scripts.config.sections import Sampling
from workflow_scripts.engine.protocol import Ask, EngineError
from workflow_scripts.engine.sglang import ANSWER_BYTES, TOKEN_BYTES, SGLang

# What SGLang 0.5.11 answered on an H200; its end token stands for one that it stopped at.
RECORDED = Path(ROOT / "tests/data/sglang/0.5.11/generate_spec.json")
END = 100
MOST = 16
PROMPT = [7] * 50


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def plain(code: int, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    """A response as it comes from the wire, nothing of it read."""
    return httpx.Response(code, headers=headers, stream=httpx.ByteStream(body))


def asked(respond: Callable[[httpx.Request], httpx.Response], rid: str = "a") -> Any:
    async def ask() -> Any:
        engine = SGLang(
            "http://x", Sampling(max_new_tokens=MOST), [END], httpx.MockTransport(respond)
        )
        return await engine.ask(Ask(rid, PROMPT, 1))

    return asyncio.run(ask())


def answered(answer: Any, rid: str = "a") -> Any:
    return asked(lambda _: plain(200, json.dumps(answer).encode()), rid)


def test_the_recorded_answer() -> None:
    found = answered(recorded())
    assert found.output_ids == [1049, *[100] * 15] and found.finish == "length"
    assert found.accept_length == 3.2 and found.retractions == 0


def stopped(answer: dict[str, Any], matched: Any = END) -> dict[str, Any]:
    answer["meta_info"]["finish_reason"] = {"type": "stop", "matched": matched}
    return answer


def test_a_stop_at_an_end_token() -> None:
    found = answered(stopped(recorded()))
    assert (found.finish, found.matched) == ("stop", END)


def meta(**changes: Any) -> dict[str, Any]:
    found = recorded()
    found["meta_info"] |= changes
    return found


def with_ids(ids: list[int]) -> dict[str, Any]:
    return {**meta(completion_tokens=len(ids)), "output_ids": ids}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (meta(id="b"), "meta_info.id is 'b', this request's is 'a'"),
        (meta(id=None), "meta_info.id is None"),
        (meta(prompt_tokens=51), "prompt_tokens is 51, this request's is 50"),
        (meta(prompt_tokens=50.0), "prompt_tokens is 50.0"),
        (meta(completion_tokens=15), "completion_tokens is 15, this request's is 16"),
        (with_ids([1] * (MOST + 1)), "17 output ids, 16 were asked for at most"),
        (stopped(recorded(), 1049), "stopped at 1049, the last id is 100, no end token"),
        (stopped(recorded(), None), "stopped at None"),
        (stopped(with_ids([5, 1049]), 1049), "stopped at 1049, the last id is 1049, no end token"),
        (stopped(with_ids([])), "the last id is None"),
        (meta(spec_accept_length="lots"), "spec_accept_length is 'lots', no length"),
        (meta(spec_accept_length=-1), "spec_accept_length is -1"),
        (meta(total_retractions=2**40), "retractions is 1099511627776, no count"),
        (meta(total_retractions=True), "retractions is True"),
        ({**recorded(), "output_ids": None}, "TypeError"),
        ([], "TypeError"),
    ],
)
def test_not_the_answer_to_this_request(answer: Any, words: str) -> None:
    with pytest.raises(EngineError, match="not an answer to this request") as caught:
        answered(answer)
    assert words in str(caught.value)
    assert caught.value.reason == "bad_answer" and caught.value.retry and caught.value.sent


def test_infinite_numbers_are_no_answer() -> None:
    text = json.dumps(meta(spec_accept_length=float("inf")))
    with pytest.raises(EngineError, match="no JSON"):
        asked(lambda _: plain(200, text.encode()))


class Endless(httpx.AsyncByteStream):
    """A body without an end; counts what is read of it."""

    def __init__(self) -> None:
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.read += 1 << 16
            yield b" " * (1 << 16)


def test_a_body_without_an_end() -> None:
    body = Endless()
    with pytest.raises(EngineError, match="more than") as caught:
        asked(lambda _: httpx.Response(200, stream=body))
    assert caught.value.reason == "bad_answer"
    assert body.read <= ANSWER_BYTES + TOKEN_BYTES * MOST + (1 << 16)


def test_an_error_page_without_an_end() -> None:
    body = Endless()
    with pytest.raises(EngineError, match="HTTP 500") as caught:
        asked(lambda _: httpx.Response(500, stream=body))
    assert body.read <= 1 << 17 and len(str(caught.value)) < 1000


def test_nothing_is_unpacked() -> None:
    """A few kilobytes that would be gigabytes; and the request says that none is wanted."""
    seen: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["accept-encoding"])
        packed = gzip.compress(json.dumps(recorded()).encode() + b" " * 100_000)
        headers = {"content-encoding": "gzip"}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(packed))

    with pytest.raises(EngineError, match="compressed"):
        asked(respond)
    assert seen == ["identity"]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("1e9", 60.0), ("inf", 60.0), ("nan", 0.0), ("-5", 0.0), ("Fri, 31 Dec", 0.0)],
)
def test_how_long_a_server_may_ask_to_wait(header: str, seconds: float) -> None:
    with pytest.raises(EngineError) as caught:
        asked(lambda _: plain(503, b"full", {"retry-after": header}))
    assert caught.value.after_s == seconds and caught.value.reason == "overloaded"

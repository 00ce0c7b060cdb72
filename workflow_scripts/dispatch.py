"""Requests to servers: bounded in flight, given to the least loaded, asked again by rule.

The rules:

- never sent (connection refused): no attempt of the row; the server is set aside until it answers
  again. No server for `engine.reconnect_s`: the job stops, unanswered rows wait for the next run.
- connection lost, 5xx, an answer that cannot be read, an abort or a NaN sent as an answer: an
  attempt; asked again after a growing pause.
- 429 and 503: an attempt, after the pause that the server asks for.
- any other 4xx: the request itself is refused; asking again cannot help, and it says nothing of the
  server.
- a server without progress for `generate.stall_timeout_s`: its requests are given up, aborted there
  and asked again.
- one request beyond its own time limit: the same, for it alone.
- a prompt that leaves less than `sampling.min_new_tokens` of the context: not sent, failed as
  `over_context`; one that leaves less than max_new_tokens gets what is left.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from workflow_scripts.answers import Answer, fault
from workflow_scripts.config import Generate, Sampling
from workflow_scripts.engines import Ask, Engine, EngineError, Facts

PAUSE_S = 0.5  # before the second attempt; doubled each time
LONGEST_PAUSE_S = 30.0
PROBE_EVERY_S = 2.0
HEADROOM = 1.15  # in flight over what a server runs at once, so that its queue never runs dry


class NoServer(Exception):
    """No server answers; the job stops and the next run goes on."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no usable answer, and how the server was at that moment."""

    reason: str
    message: str
    attempts: int
    server: str
    server_age_s: float
    running_requests: int | None
    cache_use: float | None


@dataclass(eq=False, slots=True)
class Place:
    """Room for one request at a server; `rid` names the request there."""

    rid: str
    engine: Engine
    context: int
    task: asyncio.Task[object] | None = None
    given_up: bool = False


class Places(Protocol):
    """Where places come from.

    `capacity` is the number of requests that can be in flight at once.
    """

    @property
    def capacity(self) -> int: ...

    async def take(self) -> Place:
        """Wait for a place. Raises NoServer."""

    async def free(self, place: Place, tokens: int, error: EngineError | None) -> None:
        """Give a place back, with the tokens it generated or the error it met."""


class Pool:
    """A job's requests.

    Args:
        places: where requests can go.
        settings: the configuration's `generate`.
        sampling: the configuration's `sampling`.
        vocab_size: number of the model's ids; others are faults.
    """

    def __init__(self, places: Places, settings: Generate, sampling: Sampling, vocab_size: int):
        self.places = places
        self.settings = settings
        self.sampling = sampling
        self.vocab_size = vocab_size
        self.request_s = (
            settings.stall_timeout_s + settings.slowest_token_s * sampling.max_new_tokens
        )

    async def ask(
        self, prompt_ids: list[int], seed: int, fixed: int | None = None
    ) -> tuple[Answer, int] | Failure:
        """Ask until there is a usable answer or no attempt is left.

        Returns:
            The answer and the number of attempts, or the failure.

        Raises:
            NoServer: see the module's rules.
        """
        attempts = 0
        while True:
            place = await self.places.take()
            error: EngineError | None = None
            answer: Answer | None = None
            try:
                answer = await self._once(place, prompt_ids, seed, fixed)
                if what := fault(answer, self.vocab_size):
                    error = EngineError("engine_error", f"{place.engine.url}: {what}")
            except EngineError as caught:
                error = caught
            finally:
                tokens = len(answer.output_ids) if answer else 0
                await self.places.free(place, tokens, error)
            if error is None:
                assert answer is not None
                return answer, attempts + 1
            if not error.sent and error.retry:
                continue
            attempts += error.sent
            if not error.retry or attempts >= self.settings.retries:
                return await failure(place.engine, error, attempts)
            pause = min(PAUSE_S * 2 ** (attempts - 1), LONGEST_PAUSE_S) * random.uniform(0.75, 1.25)
            await asyncio.sleep(max(pause, error.after_s))

    def _fitted(self, length: int, context: int) -> Sampling | None:
        """Sampling for a prompt of `length` tokens, None for the configured one.

        Raises:
            EngineError: the context leaves too little room; never sent.
        """
        most = self.sampling.max_new_tokens
        room = context - length
        if room >= most:
            return None
        if room < min(self.sampling.min_new_tokens, most):
            raise EngineError(
                "over_context",
                f"the prompt's {length} tokens leave {room} of the server's context of {context}; "
                "sampling.min_new_tokens are needed",
                retry=False,
                sent=False,
            )
        return self.sampling.model_copy(update={"max_new_tokens": room})

    async def _once(
        self, place: Place, prompt_ids: list[int], seed: int, fixed: int | None
    ) -> Answer:
        sampling = self._fitted(len(prompt_ids), place.context)
        task = asyncio.current_task()
        assert task is not None
        place.task = task
        try:
            async with asyncio.timeout(self.request_s):
                return await place.engine.ask(Ask(place.rid, prompt_ids, seed, fixed), sampling)
        except TimeoutError:
            await abort(place)
            what = f"{place.engine.url}: no answer within {self.request_s:.0f} s"
            raise EngineError("timeout", what) from None
        except asyncio.CancelledError:
            if not place.given_up:
                await asyncio.shield(abort(place))  # the job stops: free its place on the server
                raise
            task.uncancel()
            await abort(place)
            what = f"{place.engine.url}: no progress for {self.settings.stall_timeout_s:.0f} s"
            raise EngineError("stalled", what) from None


async def abort(place: Place) -> None:
    with suppress(EngineError, TimeoutError):
        async with asyncio.timeout(5):
            await place.engine.abort(place.rid)


async def failure(engine: Engine, error: EngineError, attempts: int) -> Failure:
    running, cache = None, None
    with suppress(Exception):  # the failure counts, not what can be said of the server
        async with asyncio.timeout(5):
            running, cache = await engine.load()
    age = round(time.monotonic() - engine.since, 1)
    return Failure(error.reason, str(error), attempts, engine.url, age, running, cache)


# ---- places at servers that this job alone uses ----


@dataclass(slots=True)
class Seat:
    """A server with its limit and the places taken there."""

    engine: Engine
    facts: Facts
    limit: int
    taken: list[Place] = field(default_factory=list)
    answered: int = 0
    down: bool = False


class OwnPlaces:
    """Places at servers that this job alone uses: attached ones and the embedded engine.

    Args:
        engines: the servers, with what each says of itself.
        settings: the configuration's `generate`.
        reconnect_s: seconds without any server before the job stops.
        say: takes a line for the log.
    """

    def __init__(
        self,
        engines: list[tuple[Engine, Facts]],
        settings: Generate,
        reconnect_s: float,
        say: Callable[[str], None],
    ):
        self.seats = [Seat(e, facts, in_flight(settings, facts)) for e, facts in engines]
        self.stall_s = settings.stall_timeout_s
        self.reconnect_s = reconnect_s
        self.say = say
        self._freed = asyncio.Event()
        self._watchers: list[asyncio.Task[None]] = []
        self._all_down_since: float | None = None

    @property
    def capacity(self) -> int:
        return sum(seat.limit for seat in self.seats)

    async def __aenter__(self) -> "OwnPlaces":
        self._watchers = [asyncio.create_task(self._watch(seat)) for seat in self.seats]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)

    async def take(self) -> Place:
        while True:
            free = [s for s in self.seats if not s.down and len(s.taken) < s.limit]
            if free:
                seat = min(free, key=lambda s: len(s.taken) / s.limit)
                place = Place(uuid.uuid4().hex, seat.engine, seat.facts.context)
                seat.taken.append(place)
                return place
            if all(seat.down for seat in self.seats):
                self._all_down_since = self._all_down_since or time.monotonic()
                if time.monotonic() - self._all_down_since > self.reconnect_s:
                    urls = ", ".join(seat.engine.url for seat in self.seats)
                    raise NoServer(
                        f"no server has answered for {self.reconnect_s:.0f} s ({urls}); start it "
                        "again and rerun: finished rows are kept, only the others are asked"
                    )
            self._freed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._freed.wait()

    async def free(self, place: Place, tokens: int, error: EngineError | None) -> None:
        seat = next(s for s in self.seats if s.engine is place.engine)
        seat.taken.remove(place)
        seat.answered += error is None
        self._freed.set()
        if error is not None and error.reason == "unreachable":
            if not seat.down:
                seat.down = True
                self.say(f"server set aside: {error}")
            await asyncio.sleep(0.2)

    async def _watch(self, seat: Seat) -> None:
        """Bring a server back that answers again; give up requests of one that stands still."""
        last: object = None
        moved = time.monotonic()
        while True:
            await asyncio.sleep(min(self.stall_s / 4, PROBE_EVERY_S))
            now: object = None
            with suppress(Exception):  # a probe that fails shows no progress
                now = (seat.answered, await _within(self.stall_s / 4, seat.engine.progress))
            if seat.down and now is not None:
                seat.down, self._all_down_since = False, None
                seat.engine.since = time.monotonic()
                self.say(f"server is back: {seat.engine.url}")
            if not seat.taken or (now is not None and now != last):
                moved = time.monotonic()
            last = now if now is not None else last
            if time.monotonic() - moved > self.stall_s:
                self.say(f"{seat.engine.url}: no progress; {len(seat.taken)} requests given up")
                for place in seat.taken:
                    if place.task is not None:
                        place.given_up = True
                        place.task.cancel()
                moved = time.monotonic()


async def _within(seconds: float, call: Callable[[], Awaitable[object]]) -> object:
    async with asyncio.timeout(max(seconds, 1.0)):
        return await call()


def in_flight(settings: Generate, facts: Facts) -> int:
    """Requests to keep in flight at a server."""
    if settings.concurrency != "auto":
        return settings.concurrency
    return max(facts.max_running + 1, int(facts.max_running * HEADROOM))

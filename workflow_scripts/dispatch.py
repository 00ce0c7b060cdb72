"""Requests to servers: bounded in flight, given to the least loaded, asked again by rule.

The rules:

- never sent (connection refused): no attempt of the row; the server is set aside until it answers
  again. No server for `reconnect_s`: the job stops, unanswered rows wait for the next run.
- connection lost, 5xx, an answer that cannot be read, an abort or a NaN sent as an answer: an
  attempt; asked again after a growing pause.
- 429 and 503: an attempt, after the pause that the server asks for.
- any other 4xx: the request itself is refused; asking again cannot help.
- a server without progress for `stall_timeout_s`: its requests are given up, aborted there and
  asked again.
- one request beyond its own time limit: the same, for it alone.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from workflow_scripts.answers import Answer, fault
from workflow_scripts.config import Generate
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


@dataclass(slots=True)
class Seat:
    """A server with its limit and what is in flight there."""

    engine: Engine
    facts: Facts
    limit: int
    tasks: dict[str, asyncio.Task[object]] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    answered: int = 0
    down: bool = False


class Pool:
    """The servers of one job.

    Args:
        engines: the servers, with what each says of itself.
        settings: the configuration's `generate`.
        max_new_tokens: longest completion, for the time limit of one request.
        vocab_size: ids from here on are faults.
        reconnect_s: seconds without any server before the job stops.
        say: takes a line for the log.
    """

    def __init__(
        self,
        engines: list[tuple[Engine, Facts]],
        settings: Generate,
        max_new_tokens: int,
        vocab_size: int,
        reconnect_s: float,
        say: Callable[[str], None],
    ):
        self.settings = settings
        self.seats = [Seat(e, facts, in_flight(settings, facts)) for e, facts in engines]
        self.request_s = settings.stall_timeout_s + settings.slowest_token_s * max_new_tokens
        self.vocab_size = vocab_size
        self.reconnect_s = reconnect_s
        self.say = say
        self._freed = asyncio.Event()
        self._watchers: list[asyncio.Task[None]] = []
        self._all_down_since: float | None = None

    @property
    def places(self) -> int:
        """Requests that may be in flight at once."""
        return sum(seat.limit for seat in self.seats)

    async def __aenter__(self) -> "Pool":
        self._watchers = [asyncio.create_task(self._watch(seat)) for seat in self.seats]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        # what is still in flight belongs to a job that stops: free its places on the servers
        aborts = [seat.engine.abort(rid) for seat in self.seats for rid in seat.tasks]
        if aborts:
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await asyncio.gather(*aborts, return_exceptions=True)

    async def ask(self, prompt_ids: list[int], seed: int) -> tuple[Answer, int] | Failure:
        """Ask until there is a usable answer or no attempt is left.

        Returns:
            The answer and the number of attempts, or the failure.

        Raises:
            NoServer: see the module's rules.
        """
        attempts = 0
        while True:
            seat = await self._seat()
            try:
                answer = await self._once(seat, prompt_ids, seed)
                what = fault(answer, self.vocab_size)
                if what is None:
                    return answer, attempts + 1
                error = EngineError("engine_error", f"{seat.engine.url}: {what}")
            except EngineError as caught:
                error = caught
            if not error.sent:
                await self._set_aside(seat, error)
                continue
            attempts += 1
            if not error.retry or attempts >= self.settings.retries:
                return await self._failure(seat, error, attempts)
            pause = min(PAUSE_S * 2 ** (attempts - 1), LONGEST_PAUSE_S) * random.uniform(0.75, 1.25)
            await asyncio.sleep(max(pause, error.after_s))

    async def _seat(self) -> Seat:
        """The least loaded server with a free place; waits for one."""
        while True:
            free = [s for s in self.seats if not s.down and len(s.tasks) < s.limit]
            if free:
                return min(free, key=lambda s: len(s.tasks) / s.limit)
            if all(seat.down for seat in self.seats):
                since = self._all_down_since or time.monotonic()
                self._all_down_since = since
                if time.monotonic() - since > self.reconnect_s:
                    urls = ", ".join(seat.engine.url for seat in self.seats)
                    raise NoServer(
                        f"no server has answered for {self.reconnect_s:.0f} s ({urls}); start it "
                        "again and rerun: finished rows are kept, only the others are asked"
                    )
            self._freed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._freed.wait()

    async def _once(self, seat: Seat, prompt_ids: list[int], seed: int) -> Answer:
        rid = uuid.uuid4().hex
        task = asyncio.current_task()
        assert task is not None
        seat.tasks[rid] = task
        try:
            async with asyncio.timeout(self.request_s):
                answer = await seat.engine.ask(Ask(rid, prompt_ids, seed))
            seat.answered += 1
        except TimeoutError:
            await self._abort(seat, rid)
            what = f"{seat.engine.url}: no answer within {self.request_s:.0f} s"
            raise EngineError("timeout", what) from None
        except asyncio.CancelledError:
            if rid not in seat.given_up:
                raise  # the job stops; `__aexit__` aborts what is in flight
            task.uncancel()
            seat.given_up.discard(rid)
            await self._abort(seat, rid)
            what = f"{seat.engine.url}: no progress for {self.settings.stall_timeout_s:.0f} s"
            raise EngineError("stalled", what) from None
        finally:
            if not task.cancelling():
                del seat.tasks[rid]
                self._freed.set()
        return answer

    async def _abort(self, seat: Seat, rid: str) -> None:
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(5):
                await seat.engine.abort(rid)

    async def _failure(self, seat: Seat, error: EngineError, attempts: int) -> Failure:
        running, cache = None, None
        with suppress(Exception):  # the failure counts, not what can be said of the server
            async with asyncio.timeout(5):
                running, cache = await seat.engine.load()
        age = time.monotonic() - seat.engine.since
        return Failure(
            error.reason, str(error), attempts, seat.engine.url, round(age, 1), running, cache
        )

    async def _set_aside(self, seat: Seat, error: EngineError) -> None:
        if not seat.down:
            seat.down = True
            self.say(f"server set aside: {error}")
        await asyncio.sleep(0.2)

    async def _watch(self, seat: Seat) -> None:
        """Bring a server back that answers again; give up requests of one that stands still."""
        stall = self.settings.stall_timeout_s
        last: object = None
        moved = time.monotonic()
        while True:
            await asyncio.sleep(min(stall / 4, PROBE_EVERY_S))
            now: object = None
            with suppress(Exception):  # a probe that fails shows no progress
                now = (seat.answered, await _within(stall / 4, seat.engine.progress))
            if seat.down and now is not None:
                seat.down, self._all_down_since = False, None
                seat.engine.since = time.monotonic()
                self.say(f"server is back: {seat.engine.url}")
            if not seat.tasks or (now is not None and now != last):
                moved = time.monotonic()
            last = now if now is not None else last
            if seat.tasks and time.monotonic() - moved > stall:
                self.say(f"{seat.engine.url}: no progress; {len(seat.tasks)} requests given up")
                for rid, task in list(seat.tasks.items()):
                    seat.given_up.add(rid)
                    task.cancel()
                moved = time.monotonic()


async def _within(seconds: float, call: Callable[[], Awaitable[object]]) -> object:
    async with asyncio.timeout(max(seconds, 1.0)):
        return await call()


def in_flight(settings: Generate, facts: Facts) -> int:
    """Requests to keep in flight at a server."""
    if settings.concurrency != "auto":
        return settings.concurrency
    return max(facts.max_running + 1, int(facts.max_running * HEADROOM))

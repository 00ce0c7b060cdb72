"""Places at servers that a job alone uses: who is asked, who is set aside, who is given up."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.made.clock import Clock
from tests.made.engines import GOOD, MadeEngine, for_ever
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Generate, Sampling
from workflow_scripts.engine.own_places import OwnPlaces
from workflow_scripts.engine.places import NoServer, Place
from workflow_scripts.engine.pool import Pool
from workflow_scripts.engine.protocol import EngineError, Facts

STALL_S, RECONNECT_S = 40.0, 120.0
UNREACHABLE = EngineError("unreachable", "http://a: connection refused", sent=False)


class Host:
    """Servers a, b, ... and the places there.

    Args:
        running: what each server runs at once, one more is kept in flight; 0 where it has not
            answered yet.
    """

    def __init__(self, clock: Clock, *running: int, **settings: Any):
        self.clock = clock
        self.engines = [
            MadeEngine(f"http://{name}") for name, _ in zip("abc", running, strict=False)
        ]
        facts = [Facts(n, 1024 * (i + 1), {}) if n else None for i, n in enumerate(running)]
        self.settings = Generate(stall_timeout_s=STALL_S, **settings)
        self.said: list[str] = []
        self.places = OwnPlaces(
            list(zip(self.engines, facts, strict=True)),
            self.settings,
            RECONNECT_S,
            self.said.append,
        )

    def run(self, what: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def within() -> Any:
            async with self.places:
                return await what()

        return self.clock.run(within())

    async def take(self, number: int) -> list[Place]:
        return [await self.places.take() for _ in range(number)]

    async def free(self, places: list[Place], error: EngineError | None = None) -> None:
        for place in places:
            await self.places.free(place, 3, error)

    def taken(self) -> list[int]:
        return [len(seat.taken) for seat in self.places.seats]


def silent() -> object:
    raise EngineError("connection_lost", "no answer to a probe")


def still() -> object:
    return "the same as ever"


# ---- least loaded first -------------------------------------------------------------------------


def test_the_server_with_the_smallest_share_taken_is_next(clock: Clock) -> None:
    """By hand: of two and of four places, each third goes to the smaller server."""
    host = Host(clock, 1, 3)
    assert host.places.capacity == 2 + 4

    async def fill() -> list[list[int]]:
        seen = []
        for number in (2, 1, 3):
            found = await host.take(number)
            seen.append(host.taken())
            assert all(p.context == (1024 if p.engine.url == "http://a" else 2048) for p in found)
        return seen

    assert host.run(fill) == [[1, 1], [1, 2], [2, 4]]


@pytest.mark.parametrize(
    ("running", "concurrency", "limit"),
    [(1, "auto", 2), (20, "auto", 23), (128, "auto", 147), (128, 5, 5)],
)
def test_in_flight_is_a_little_more_than_a_server_runs(
    clock: Clock, running: int, concurrency: Any, limit: int
) -> None:
    """Fifteen per cent, at least one; or what is configured."""
    assert Host(clock, running, concurrency=concurrency).places.capacity == limit


def test_who_finds_no_place_gets_the_next_that_is_freed(clock: Clock) -> None:
    host = Host(clock, 1, 1)

    async def wait() -> str:
        places = await host.take(4)
        waiting = asyncio.create_task(host.places.take())
        await asyncio.sleep(100.2)
        assert not waiting.done()
        (freed, *_) = [p for p in places if p.engine.url == "http://b"]
        when = clock.now
        await host.free([freed])
        found = await waiting
        assert clock.now == when
        assert found.rid not in {p.rid for p in places}
        return found.engine.url

    assert host.run(wait) == "http://b" and host.taken() == [2, 2]


# ---- set aside ----------------------------------------------------------------------------------


def test_a_server_that_cannot_be_reached_is_set_aside_until_it_answers(clock: Clock) -> None:
    host = Host(clock, 4, 4)
    gone, _ = host.engines
    gone.moves = silent

    async def meanwhile() -> None:
        for place in await host.take(2):
            await host.free([place], UNREACHABLE if place.engine is gone else None)
        assert host.said == ["server set aside: http://a: connection refused"]
        others = await host.take(3)
        assert host.taken() == [0, 3]
        await asyncio.sleep(2 * STALL_S)
        assert host.taken() == [0, 3] and len(host.said) == 1
        back = clock.now
        gone.moves = still
        await asyncio.sleep(2)
        assert host.said[1:] == ["server is back: http://a"]
        assert back <= gone.since <= back + 2  # its age is counted anew
        await host.take(3)
        assert host.taken() == [3, 3]
        assert all(not place.given_up for place in others)

    host.run(meanwhile)


def test_other_errors_say_nothing_of_the_server(clock: Clock) -> None:
    host = Host(clock, 4, 4)

    async def fail() -> None:
        for reason in ("refused", "overloaded", "timeout", "over_context"):
            await host.free(await host.take(1), EngineError(reason, reason))
        await host.take(2)

    host.run(fail)
    assert host.taken() == [1, 1] and host.said == []


def test_a_server_that_was_lost_must_show_that_it_is_the_same(clock: Clock) -> None:
    """Nothing is asked of it meanwhile; another one is never asked, and the job stops with why."""
    host = Host(clock, 1)
    (engine,) = host.engines

    async def lose() -> None:
        await host.free(await host.take(1), EngineError("connection_lost", "reset"))
        waiting = asyncio.create_task(host.places.take())
        await asyncio.sleep(0.1)
        assert engine.described == 1 and waiting.done()  # at once, where it is the same
        engine.facts = ConfigError("engine.urls: another model; name the server of this one")
        await host.free([await waiting], EngineError("connection_lost", "reset"))
        with pytest.raises(NoServer, match="another model; name the server of this one and rerun"):
            await host.places.take()
        assert engine.asked == []

    host.run(lose)
    assert [line.split(":")[0] for line in host.said] == ["server not taken back"]


# ---- no server at all ---------------------------------------------------------------------------


def test_without_any_server_the_job_stops_after_a_while(clock: Clock) -> None:
    host = Host(clock, 1, 1)

    async def wait() -> float:
        for engine in host.engines:
            engine.moves = silent
        await host.free(await host.take(2), UNREACHABLE)
        began = clock.now
        with pytest.raises(NoServer) as stopped:
            await host.places.take()
        assert str(stopped.value) == (
            "no server has answered for 120 s (http://a, http://b); start it again and rerun: "
            "finished rows are kept, only the others are asked"
        )
        return clock.now - began

    assert RECONNECT_S < host.run(wait) <= RECONNECT_S + 1


def test_a_server_that_comes_back_in_time_is_asked(clock: Clock) -> None:
    """Twice, each time shortly before the end: the wait begins anew."""
    host = Host(clock, 1)
    (engine,) = host.engines

    async def wait() -> None:
        for _ in range(2):
            taken = await host.take(1)
            engine.moves = silent
            await host.free(taken, UNREACHABLE)
            waiting = asyncio.create_task(host.places.take())
            await asyncio.sleep(RECONNECT_S - 5)
            assert not waiting.done()
            engine.moves = still
            await host.free([await waiting])

    host.run(wait)
    assert [line.split(":")[0] for line in host.said] == ["server set aside", "server is back"] * 2


def test_a_server_that_answers_later_is_asked_then(clock: Clock) -> None:
    """It says that it runs one request at once: two are kept in flight there."""
    host = Host(clock, 1, 0)

    async def wait() -> list[int]:
        host.engines[1].moves = silent
        await host.take(2)
        waiting = asyncio.create_task(host.take(2))
        await asyncio.sleep(30)
        assert host.places.capacity == 2 and not waiting.done()
        host.engines[1].moves = still
        await waiting
        return host.taken()

    assert host.run(wait) == [2, 2]
    assert host.said == ["server is back: http://b"]


# ---- a server that stands still -----------------------------------------------------------------


def nothing() -> None:
    """The request hangs."""


async def hanging() -> object:
    await for_ever()
    return None


@pytest.mark.parametrize("fault", ["no change", "no answer", "hangs"])
def test_requests_of_a_server_that_stands_still_are_given_up(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Both requests go to a, where one place more is taken; so b has the smaller share when they
    are asked again."""
    host = Host(clock, 2, 2)
    stuck, good = host.engines
    stuck.script = iter([nothing] * 2)
    stuck.moves = silent if fault == "no answer" else still
    if fault == "hangs":
        monkeypatch.setattr(stuck, "progress", hanging)
    pool = Pool(host.places, host.settings, Sampling(max_new_tokens=2000), 1000)

    async def ask() -> list[Any]:
        taken = await host.take(6)
        kept, *more = (place for place in taken if place.engine is stuck)
        await host.free(more)
        asked = [asyncio.create_task(pool.ask([1, 2], seed)) for seed in (1, 2)]
        await asyncio.sleep(STALL_S - 1)
        assert [ask.seed for ask in stuck.asked] == [1, 2] and good.asked == []
        await host.free([place for place in taken if place.engine is good])
        found = await asyncio.gather(*asked)
        assert host.taken() == [1, 0] and not kept.given_up
        return found

    assert host.run(ask) == [(GOOD, 2), (GOOD, 2)]
    # at most a look later, which takes 2 s and a probe's 10 s; then the pause of a second attempt
    assert STALL_S < clock.now - 1000 <= STALL_S + 12 + 1
    assert sorted(ask.seed for ask in good.asked) == [1, 2]
    assert stuck.aborted == [ask.rid for ask in stuck.asked] and good.aborted == []
    assert host.said == ["http://a: no progress; 3 requests given up"]


def test_answers_are_progress(clock: Clock) -> None:
    """Also where a probe always shows the same, as of a server that is always full."""
    host = Host(clock, 1)
    (engine,) = host.engines
    engine.moves = still

    async def work() -> None:
        slow, quick = await host.take(2)
        slow.task = asyncio.current_task()
        for _ in range(10):
            await asyncio.sleep(STALL_S / 2)
            await host.free([quick])
            (quick,) = await host.take(1)
        assert not slow.given_up

    host.run(work)
    assert host.said == []


def test_an_idle_server_may_stand_still(clock: Clock) -> None:
    host = Host(clock, 1)
    host.engines[0].moves = still

    async def wait() -> None:
        await asyncio.sleep(10 * STALL_S)
        (place,) = await host.take(1)
        place.task = asyncio.current_task()
        await asyncio.sleep(STALL_S - 3)  # it has the whole time
        assert not place.given_up

    host.run(wait)
    assert host.said == []


def test_what_was_given_up_is_asked_elsewhere(clock: Clock) -> None:
    """The server that stands still is empty then, and would be asked first for being so."""
    host = Host(clock, 2, 2)
    stuck, good = host.engines
    stuck.script, stuck.moves = iter([nothing] * 99), still
    pool = Pool(host.places, host.settings, Sampling(max_new_tokens=2000), 1000)

    async def ask() -> Any:
        return await asyncio.gather(*(pool.ask([1, 2], seed) for seed in (1, 2)))

    assert host.run(ask) == [(GOOD, 2), (GOOD, 1)]  # the first one went to `stuck` at first
    assert (len(stuck.asked), len(good.asked)) == (1, 2)

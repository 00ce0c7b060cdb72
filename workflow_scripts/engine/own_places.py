"""Places at servers that a job alone uses: attached ones and the embedded engine."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Generate
from workflow_scripts.engine.places import NoServer, Place, in_flight
from workflow_scripts.engine.protocol import Backend, EngineError, Facts
from workflow_scripts.engine.stall import StallClock

PROBE_EVERY_S = 2.0
LOST = ("unreachable", "connection_lost")  # after which the server can be another one


@dataclass(slots=True)
class OwnSeat:
    """A server with its limit and the places taken there; one that has not answered yet has no
    facts and no limit. `gone` where it does not answer, `down` where it has yet to show again that
    it is the same server, `still` where it answers and nothing moves; `refusal` says why it is not
    the same server any more."""

    engine: Backend
    facts: Facts | None
    limit: int
    taken: list[Place] = field(default_factory=list)
    answered: int = 0
    down: bool = False
    gone: bool = False
    refusal: str | None = None
    doubted: asyncio.Event = field(default_factory=asyncio.Event)
    still: bool = False


class OwnPlaces:
    """Places at servers that this job alone uses: attached ones and the embedded engine.

    Args:
        engines: the servers, with what each says of itself; at least one does.
        settings: the configuration's `generate`.
        reconnect_s: seconds without any server before the job stops.
        say: takes a line for the log.
    """

    def __init__(
        self,
        engines: Sequence[tuple[Backend, Facts | None]],
        settings: Generate,
        reconnect_s: float,
        say: Callable[[str], None],
    ):
        self.seats = [
            OwnSeat(engine, facts, in_flight(settings, facts) if facts else 0)
            for engine, facts in engines
        ]
        for seat in self.seats:
            seat.down = seat.gone = seat.facts is None
        self.settings = settings
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
            up = [seat for seat in self.seats if not seat.down]
            # one that stands still is the emptiest: what was given up there would come back to it
            moving = [seat for seat in up if not seat.still] or up
            free = [seat for seat in moving if len(seat.taken) < seat.limit]
            if free:
                seat = min(free, key=lambda s: len(s.taken) / s.limit)
                assert seat.facts is not None
                place = Place(uuid.uuid4().hex, seat.engine, seat.facts.context)
                seat.taken.append(place)
                return place
            if not up:
                self._all_down_since = self._all_down_since or time.monotonic()
                if time.monotonic() - self._all_down_since > self.reconnect_s:
                    raise NoServer(self._nobody())
            self._freed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._freed.wait()

    def _nobody(self) -> str:
        urls = ", ".join(seat.engine.url for seat in self.seats)
        why = [seat.refusal for seat in self.seats if seat.refusal]
        why = why or [
            f"no server has answered for {self.reconnect_s:.0f} s ({urls}); start it again"
        ]
        return f"{'; '.join(why)} and rerun: finished rows are kept, only the others are asked"

    async def free(self, place: Place, tokens: int, error: EngineError | None) -> bool:
        seat = next(s for s in self.seats if s.engine is place.engine)
        seat.taken.remove(place)
        seat.answered += error is None
        self._freed.set()
        if error is not None and error.reason in LOST:
            if not seat.down:
                seat.down = True
                seat.doubted.set()
            if error.reason == "unreachable":
                if not seat.gone:
                    self.say(f"server set aside: {error}")
                seat.gone = True
                await asyncio.sleep(0.2)
        return True

    async def _watch(self, seat: OwnSeat) -> None:
        """Bring a server back that answers again; give up requests of one that stands still."""
        clock = StallClock(self.stall_s)
        while True:
            await self._pause(seat)
            now: object = None
            with suppress(Exception):  # a probe that fails shows no progress
                now = (seat.answered, await _within(self.stall_s / 4, seat.engine.progress))
            if seat.down and now is not None and await self._same(seat):
                self._all_down_since = None
                if seat.gone:
                    seat.engine.since = time.monotonic()
                    self.say(f"server is back: {seat.engine.url}")
                seat.down = seat.gone = False
                self._freed.set()
            stands_still = clock.look(now, waited_for=bool(seat.taken))
            seat.still = stands_still or (seat.still and not clock.changed)
            if stands_still:
                self.say(f"{seat.engine.url}: no progress; {len(seat.taken)} requests given up")
                for place in seat.taken:
                    if place.task is not None:
                        place.given_up = True
                        place.task.cancel()
                clock.restart()

    async def _pause(self, seat: OwnSeat) -> None:
        """Until the next look; one that was just set aside is looked at at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self.stall_s / 4, PROBE_EVERY_S)):
                await seat.doubted.wait()
        seat.doubted.clear()

    async def _same(self, seat: OwnSeat) -> bool:
        """Whether a server that was lost is the one that it was: whatever listens there now could
        be another."""
        try:
            seat.facts = await seat.engine.describe()
        except EngineError:
            return False
        except ConfigError as error:
            if seat.refusal != str(error):
                seat.refusal = str(error)
                self.say(f"server not taken back: {error}")
            return False
        seat.limit = seat.limit or in_flight(self.settings, seat.facts)
        seat.refusal = None
        return True


async def _within(seconds: float, call: Callable[[], Awaitable[object]]) -> object:
    async with asyncio.timeout(max(seconds, 1.0)):
        return await call()

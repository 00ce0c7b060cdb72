"""Places: room for a request at a server."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from workflow_scripts.config.sections import Generate
from workflow_scripts.engine.protocol import Backend, EngineError, Facts

HEADROOM = 1.15  # in flight over what a server runs at once, so that its queue never runs dry


class NoServer(Exception):
    """No server answers; the job stops and the next run goes on."""


@dataclass(eq=False, slots=True)
class Place:
    """Room for one request at a server; `rid` names the request there."""

    rid: str
    engine: Backend
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

    async def free(self, place: Place, tokens: int, error: EngineError | None) -> bool:
        """Give a place back, with the tokens it generated or the error it met.

        Returns:
            False where the place was lost meanwhile with the host's daemon, whose servers end with
            it: then a lost connection says nothing of the request.
        """


async def abort(place: Place) -> None:
    with suppress(EngineError, TimeoutError):
        async with asyncio.timeout(5):
            await place.engine.abort(place.rid)


def in_flight(settings: Generate, facts: Facts) -> int:
    """Requests to keep in flight at a server."""
    if settings.concurrency != "auto":
        return settings.concurrency
    return max(facts.max_running + 1, int(facts.max_running * HEADROOM))

"""Time by hand: nothing waits, and everything that would comes when it is due."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class Clock:
    """A clock for the event loop, and for modules whose `time` it stands in for.

    While nothing is ready, the time jumps to the next timer: no test that runs on it sleeps or
    depends on the speed of the machine. Sockets and other threads are not waited for.
    """

    def __init__(self) -> None:
        self.now = 1000.0  # seconds

    def monotonic(self) -> float:
        return self.now

    def run(self, what: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, as `asyncio.run` does."""
        with asyncio.Runner(loop_factory=self._loop) as runner:
            return runner.run(what)

    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(_Jumps(self))
        loop.time = self.monotonic  # type: ignore[method-assign]
        return loop


class _Jumps(selectors.SelectSelector):
    """Moves the clock where another selector waits."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is ready and no timer is set: it would wait for ever"
        self.clock.now += max(timeout, 0)
        return super().select(0)

"""An engine made by hand: it does with each request what its script says."""

import asyncio
from collections.abc import Callable, Iterable

from workflow_scripts.config.sections import Sampling
from workflow_scripts.engine.protocol import Ask, EngineError, Facts
from workflow_scripts.model.answers import Answer

Step = Answer | EngineError | Callable[[], None]
GOOD = Answer([97, 98, 99], "stop", 99)


async def for_ever() -> None:
    await asyncio.Event().wait()


class MadeEngine:
    """A server.

    Args:
        script: for each request the answer, the error, or what happens before the request hangs
            until it is given up. Further requests are answered with GOOD.
    """

    def __init__(self, url: str = "http://made:1", script: Iterable[Step] = ()):
        self.url = url
        self.since = 900.0  # a hundred seconds before a Clock's first moment
        self.script = iter(script)
        self.facts: Facts | Exception = Facts(1, 1024, {})
        self.described = 0
        self.asked: list[Ask] = []
        self.sampled: list[Sampling | None] = []
        self.aborted: list[str] = []
        self.loaded: tuple[int | None, float | None] | EngineError = (7, 0.25)
        self.moves: Callable[[], object] = object  # what a probe sees: each time another thing

    async def describe(self) -> Facts:
        self.described += 1
        if isinstance(self.facts, Exception):
            raise self.facts
        return self.facts

    async def ask(self, ask: Ask, sampling: Sampling | None = None) -> Answer:
        self.asked.append(ask)
        self.sampled.append(sampling)
        step = next(self.script, GOOD)
        if isinstance(step, Answer):
            return step
        if isinstance(step, EngineError):
            raise step
        step()
        await for_ever()
        raise AssertionError("unreachable")

    async def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    async def progress(self) -> object:
        return self.moves()

    async def load(self) -> tuple[int | None, float | None]:
        if isinstance(self.loaded, EngineError):
            raise self.loaded
        return self.loaded

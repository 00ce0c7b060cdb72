"""Supervision: one server kept running on each GPU."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.log import say
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.engine.sglang import SGLang
from workflow_scripts.engine.stall import StallClock
from workflow_scripts.serve.errors import CanaryFailed, StartFailed
from workflow_scripts.serve.grants import Grants
from workflow_scripts.serve.metrics import Metrics
from workflow_scripts.serve.proofs import surprises
from workflow_scripts.serve.seats import Seat
from workflow_scripts.serve.server import Launch, Server

RESTART_PAUSE_S = 2.0  # doubled for each start in a row that failed


@dataclass(eq=False)
class Keeper:
    """Starts a seat's server, watches it, and starts it again.

    Args:
        give_up: told why, where nothing more can come of this.
        stopping: set when the daemon is to end.
    """

    seat: Seat
    launch: Launch
    version: str
    grants: Grants
    metrics: Metrics
    give_up: Callable[[str], None]
    stopping: asyncio.Event
    _odd: bool = False

    async def keep(self) -> None:
        """Keep a server running until the daemon ends or starting it is given up."""
        seat, attempts = self.seat, 0
        while not self.stopping.is_set():
            seat.state = "starting"
            seat.server = Server(seat.number, seat.gpu, self.launch, self._event)
            try:
                await self._start(seat.server)
                attempts = 0
                why = await self._watch(seat.server)
            except (CanaryFailed, ConfigError) as error:
                await seat.server.stop()
                seat.state = "failed"
                self._event("refused", str(error))
                self.give_up(str(error))
                return
            except StartFailed as error:
                why, attempts = str(error), attempts + 1
            except Exception as error:  # nothing may end a server's supervision without a word
                why, attempts = f"its supervision failed: {error!r}", attempts + 1
            seat.state = "down"
            self._event("dead", why)
            say(f"server {seat.number} on GPU {seat.gpu.index}: {why}")
            await seat.server.stop()
            if attempts >= self.launch.config.engine.start_attempts:
                seat.state = "failed"
                if all(other.state == "failed" for other in self.grants.seats):
                    self.give_up(f"no server could be started: {why}")
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(RESTART_PAUSE_S * 2**attempts if attempts else 0):
                    await self.stopping.wait()

    def _event(self, what: str, text: str) -> None:
        self.metrics.event(self.seat.number, what, text)

    async def _start(self, server: Server) -> None:
        seat = self.seat
        seat.facts = await server.start()
        self.grants.resize(seat)
        seat.state = "ready"
        self._event("ready", f"{seat.facts.max_running} at once")
        say(f"server {seat.number} on GPU {seat.gpu.index} is ready")
        for line in surprises(self.launch.config, self.version, seat.gpu, seat.facts):
            say(f"server {seat.number}: {line}")
            self._event("surprise", line)
        self.grants.grant()

    async def _watch(self, server: Server) -> str:
        """Wait until the server has to be replaced; returns why."""
        assert server.engine is not None
        seat, clock = self.seat, StallClock(self.launch.config.generate.stall_timeout_s)
        while True:
            await asyncio.sleep(min(clock.limit_s / 4, 1.0))
            if not server.running:
                code = server.process.returncode if server.process else None
                return f"the server ended with status {code}"
            now = await self._progress(server.engine, max(clock.limit_s / 4, 1.0))
            if clock.look(now, waited_for=bool(seat.leases)):
                held = f"{len(seat.leases)} requests in flight"
                return f"no progress for {clock.limit_s:.0f} s with {held}"

    async def _progress(self, engine: SGLang, limit_s: float) -> object:
        """What changes while a server works; None where it does not answer. One that answers in
        another form than is known is judged by the requests that come back."""
        try:
            async with asyncio.timeout(limit_s):
                return self.seat.freed, await engine.progress()
        except (EngineError, TimeoutError):
            return None
        except Exception as error:
            if not self._odd:
                self._odd = True
                self._event("surprise", f"its account of its load is not understood: {error!r}")
            return self.seat.freed, None

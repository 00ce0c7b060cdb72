"""Places on a host's servers, given to the jobs that are connected.

Places go to the job that came first, so a shard that ends leaves its places to the next one and no
server drains; at the end of a run the last rows spread over all servers.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress

from workflow_scripts.config.sections import Generate
from workflow_scripts.engine.places import in_flight
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.serve.seats import Job, Seat

DEFAULT_LIMIT = 512  # places a job may ask for at a server whose limit is not known yet
ABORT_S = 5.0


class Grants:
    """Who holds which place. Jobs are kept in the order they came.

    Args:
        settings: the configuration's `generate`.
    """

    def __init__(self, seats: Sequence[Seat], settings: Generate):
        self.seats = seats
        self.settings = settings
        self.jobs: list[Job] = []
        self._next = 0

    def capacity(self) -> int:
        return sum(seat.limit or DEFAULT_LIMIT for seat in self.seats if seat.state != "failed")

    def join(self, job: Job, settings: Generate) -> None:
        """A job that wants places. It was started by the newest configuration, so its settings hold
        for all from now on."""
        self.settings = settings
        for seat in self.seats:
            self.resize(seat)
        self.jobs.append(job)

    def resize(self, seat: Seat) -> None:
        """Set the places of a seat by what its server says of itself."""
        if seat.facts:
            seat.limit = in_flight(self.settings, seat.facts)

    def grant(self) -> None:
        """Give free places to waiting requests: the oldest job first, the emptiest server first."""
        for job in self.jobs:
            while job.waiting:
                free = [seat for seat in self.seats if seat.free]
                if not free:
                    return
                self._lease(job, min(free, key=lambda s: len(s.leases) / s.limit))

    def _lease(self, job: Job, seat: Seat) -> None:
        job.waiting.popleft()
        self._next += 1
        name = f"{os.getpid():x}-{self._next:012x}"
        seat.leases[name] = job
        job.leases[name] = seat
        assert seat.server is not None and seat.server.engine is not None
        assert seat.facts is not None
        age = round(time.monotonic() - seat.server.started, 1)
        job.tell(lease=name, url=seat.server.engine.url, context=seat.facts.context, age_s=age)

    def free(self, job: Job, lease: str, tokens: int, fault: str | None) -> None:
        """A job gives a place back, with the tokens generated there, or a fault."""
        seat = job.leases.pop(lease, None)
        if seat is not None:
            seat.leases.pop(lease, None)
            seat.tokens += tokens
            seat.freed += not fault
        self.grant()

    async def leave(self, job: Job) -> None:
        """A job is gone: its requests are aborted, its places are free."""
        if job in self.jobs:
            self.jobs.remove(job)
        for name, seat in job.leases.items():
            seat.leases.pop(name, None)
            if seat.state == "ready" and seat.server and seat.server.engine:
                with suppress(EngineError, TimeoutError):
                    async with asyncio.timeout(ABORT_S):
                        await seat.server.engine.abort(name)
        self.grant()

    def stand_free(self) -> bool:
        """Whether jobs are connected, none waits for a place, and more than a fifth is free."""
        if not self.jobs or any(job.waiting for job in self.jobs):
            return False
        ready = [seat for seat in self.seats if seat.state == "ready"]
        free = sum(seat.limit - len(seat.leases) for seat in ready)
        return free * 5 > sum(seat.limit for seat in ready)

"""Leased GPUs, each with the server on it, and the jobs that hold places there."""

import asyncio
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import orjson

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.log import say
from workflow_scripts.engine.protocol import Facts
from workflow_scripts.serve.gpus import Gpu, in_use, lease, usable_gpus
from workflow_scripts.serve.server import Server

ENDING_S = 15.0  # for the servers of a run that was killed to end by themselves


@dataclass(eq=False, slots=True)
class Seat:
    """One GPU, its server and the places on it.

    `limit` is the number of requests in flight there, `leases` who holds them by the request's id,
    `freed` counts answers, `tokens` those that they generated.
    """

    number: int
    gpu: Gpu
    lock: socket.socket
    server: Server | None = None
    facts: Facts | None = None
    limit: int = 0
    state: str = "starting"
    leases: dict[str, "Job"] = field(default_factory=dict)
    tokens: int = 0
    freed: int = 0

    @property
    def free(self) -> bool:
        return self.state == "ready" and len(self.leases) < self.limit


@dataclass(eq=False, slots=True)
class Job:
    """A connected job: requests that wait for a place, and the places it holds."""

    writer: asyncio.StreamWriter
    shard: str
    waiting: deque[None] = field(default_factory=deque)
    leases: dict[str, Seat] = field(default_factory=dict)

    def tell(self, **message: Any) -> None:
        if not self.writer.is_closing():
            self.writer.write(orjson.dumps(message) + b"\n")


def lease_gpus(wanted: str | int | list[int | str]) -> list[Seat]:
    """Lease the GPUs to use; of a number of GPUs the first that nobody else has. Says which are
    taken.

    Raises:
        ConfigError: there are none, or all are taken and stay so for ENDING_S.
    """
    until = time.monotonic() + ENDING_S
    while True:
        seats, taken = _lease(wanted)
        if seats:
            for text in taken:
                say(f"{text}; this run leaves it out")
            return seats
        if time.monotonic() > until:
            raise ConfigError(
                f"engine.gpus: {'; '.join(taken)}; wait for that run or tune to end, or name other "
                "GPUs"
            )
        time.sleep(0.5)


def _lease(wanted: str | int | list[int | str]) -> tuple[list[Seat], list[str]]:
    """Seats on GPUs that are free, and what is told of those that are taken."""
    most = len(usable_gpus(wanted))
    seats: list[Seat] = []
    taken: list[str] = []
    for place, gpu in enumerate(usable_gpus("auto" if isinstance(wanted, int) else wanted)):
        if len(seats) == most:
            break
        if (lock := lease(gpu)) is not None:
            seats.append(Seat(place, gpu, lock))
        else:
            taken.append(in_use(gpu))
    return seats, taken

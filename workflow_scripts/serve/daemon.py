"""The host's daemon: one server per GPU, and the places on them given to whichever shard needs one.

Jobs come and go, servers stay: a job connects over a Unix socket, takes a place for each request
and gives it back. Places go to the job that came first, so a shard that ends leaves its places to
the next one and no server drains; at the end of a run the last rows spread over all servers. A
job that dies gives its places back by its closed connection, and its requests are aborted.

A server that ends, or stands still, is started again. The daemon ends with its servers when it is
told to, or when no job has been connected for `engine.idle_s` and none is to come. One that belongs
to a single shard's job, on a cluster, ends when that job is gone.

Messages are lines of JSON. Job: {"op": "hello", "spec", "shard", "concurrency"}, {"op": "take"},
{"op": "free", "lease", "tokens", "fault"}, {"op": "stop"}. Daemon: {"capacity"}, {"lease", "url",
"context", "age_s"}, {"fatal"}.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.locks import is_held
from workflow_scripts.base.log import say
from workflow_scripts.config.load import read_run
from workflow_scripts.config.sections import Config
from workflow_scripts.engine.http import http_transport
from workflow_scripts.engine.places import in_flight
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.address import logs_of, spec
from workflow_scripts.serve.errors import CanaryFailed, StartFailed
from workflow_scripts.serve.metrics import Metrics
from workflow_scripts.serve.seats import DEFAULT_LIMIT, Job, Seat, lease_gpus
from workflow_scripts.serve.server import Server, surprises
from workflow_scripts.serve.staging import staged, unstage
from workflow_scripts.serve.tuned import check_here
from workflow_scripts.sglang.flags import nearest, refuse_simulation, translate
from workflow_scripts.sglang.version import sglang_version

SHORT_LOOKS = 4  # looks in a row that find places free before it is said
LONGEST_WAIT_S = 1800.0  # for a run that lives but sends no job: Snakemake itself may hang
RESTART_PAUSE_S = 2.0  # doubled for each start in a row that failed


class Host:
    """The daemon's state. Jobs are kept in the order they came.

    Args:
        shard: the only shard whose job the daemon serves, on a cluster.
    """

    def __init__(
        self,
        config: Config,
        run_hash: str,
        seats: list[Seat],
        version: str = "",
        shard: str | None = None,
    ):
        self.config = config
        self.run_hash = run_hash
        self.version = version
        self.spec = spec(config, run_hash)
        self.seats = seats
        self.jobs: list[Job] = []
        self.fatal: str | None = None
        self.stopping = asyncio.Event()
        self.shard = shard
        self.metrics = Metrics(logs_of(config.output_dir, shard) / "metrics.jsonl")
        self.next_lease = 0
        self.last_job = time.monotonic()

    # ---- places ----

    def grant(self) -> None:
        """Give free places to waiting requests: the oldest job first, the emptiest server first."""
        for job in self.jobs:
            while job.waiting:
                free = [seat for seat in self.seats if seat.free]
                if not free:
                    return
                seat = min(free, key=lambda s: len(s.leases) / s.limit)
                job.waiting.popleft()
                self.next_lease += 1
                name = f"{os.getpid():x}-{self.next_lease:012x}"
                seat.leases[name] = job
                job.leases[name] = seat
                assert seat.server is not None and seat.server.engine is not None
                assert seat.facts is not None
                age = time.monotonic() - seat.server.started
                job.tell(
                    lease=name,
                    url=seat.server.engine.url,
                    context=seat.facts.context,
                    age_s=round(age, 1),
                )

    def capacity(self) -> int:
        return sum(seat.limit or DEFAULT_LIMIT for seat in self.seats if seat.state != "failed")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One job's connection, from hello to its end."""
        job = Job(writer, "?")
        try:
            while line := await reader.readline():
                message = orjson.loads(line)
                op = message["op"]
                if op == "stop":
                    self.stopping.set()
                elif op == "hello":
                    self._hello(job, message)
                elif op == "take":
                    job.waiting.append(None)
                    self.grant()
                elif op == "free":
                    self._free(job, message)
                await writer.drain()
        except (ConnectionError, ValueError, KeyError, asyncio.CancelledError):
            pass  # the job is gone, or the daemon ends
        finally:
            await self._gone(job)
            writer.close()

    def _hello(self, job: Job, message: dict[str, Any]) -> None:
        if message["spec"] != self.spec:
            if not self.jobs:  # servers of an earlier configuration: make room for the new ones
                self.stopping.set()
            job.tell(other=True)
            return
        job.shard = message["shard"]
        concurrency = message["concurrency"]
        generate = self.config.generate.model_copy(update={"concurrency": concurrency})
        self.config = self.config.model_copy(update={"generate": generate})
        for seat in self.seats:
            if seat.facts:
                seat.limit = in_flight(generate, seat.facts)
        self.jobs.append(job)
        job.tell(capacity=self.capacity())
        if self.fatal:
            job.tell(fatal=self.fatal)

    def _free(self, job: Job, message: dict[str, Any]) -> None:
        seat = job.leases.pop(message["lease"], None)
        if seat is not None:
            seat.leases.pop(message["lease"], None)
            seat.tokens += message["tokens"]
            seat.freed += not message["fault"]
        self.grant()

    async def _gone(self, job: Job) -> None:
        if job in self.jobs:
            self.jobs.remove(job)
        if not self.jobs:
            self.last_job = time.monotonic()
            if self.shard is not None:
                self.stopping.set()
        for name, seat in job.leases.items():
            seat.leases.pop(name, None)
            if seat.state == "ready" and seat.server and seat.server.engine:
                with contextlib.suppress(EngineError, TimeoutError):
                    async with asyncio.timeout(5):
                        await seat.server.engine.abort(name)
        self.grant()

    def give_up(self, text: str) -> None:
        """Nothing more can come of this: tell every job."""
        self.fatal = text
        say(text)
        for job in self.jobs:
            job.tell(fatal=text)

    # ---- servers ----

    async def keep(self, seat: Seat, make: Any) -> None:
        """Keep a server running on a GPU: start, watch, start again."""
        attempts = 0
        while not self.stopping.is_set():
            seat.state = "starting"
            seat.server = make(seat, lambda what, text: self.metrics.event(seat.number, what, text))
            try:
                seat.facts = await seat.server.start()
                attempts = 0
                seat.limit = in_flight(self.config.generate, seat.facts)
                seat.state = "ready"
                self.metrics.event(seat.number, "ready", f"{seat.facts.max_running} at once")
                say(f"server {seat.number} on GPU {seat.gpu.index} is ready")
                for line in surprises(self.config, self.version, seat.gpu, seat.facts):
                    say(f"server {seat.number}: {line}")
                    self.metrics.event(seat.number, "surprise", line)
                self.grant()
                why = await self._watch(seat)
            except (CanaryFailed, ConfigError) as error:
                await seat.server.stop()
                seat.state = "failed"
                self.metrics.event(seat.number, "refused", str(error))
                self.give_up(str(error))
                return
            except StartFailed as error:
                why, attempts = str(error), attempts + 1
            seat.state = "down"
            self.metrics.event(seat.number, "dead", why)
            say(f"server {seat.number} on GPU {seat.gpu.index}: {why}")
            await seat.server.stop()
            if attempts >= self.config.engine.start_attempts:
                seat.state = "failed"
                if all(other.state == "failed" for other in self.seats):
                    self.give_up(f"no server could be started: {why}")
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESTART_PAUSE_S * 2**attempts if attempts else 0):
                    await self.stopping.wait()

    async def _watch(self, seat: Seat) -> str:
        """Wait until the server has to be replaced; returns why."""
        assert seat.server is not None and seat.server.engine is not None
        stall = self.config.generate.stall_timeout_s
        last: object = None
        moved = time.monotonic()
        while True:
            await asyncio.sleep(min(stall / 4, 1.0))
            if not seat.server.running:
                code = seat.server.process.returncode if seat.server.process else None
                return f"the server ended with status {code}"
            now: object = None
            with contextlib.suppress(EngineError, TimeoutError, KeyError, TypeError):
                async with asyncio.timeout(max(stall / 4, 1.0)):
                    now = (seat.freed, await seat.server.engine.progress())
            if not seat.leases or (now is not None and now != last):
                moved = time.monotonic()
            last = now if now is not None else last
            if time.monotonic() - moved > stall:
                return f"no progress for {stall:.0f} s with {len(seat.leases)} requests in flight"

    async def measure(self) -> None:
        short = 0
        while True:
            await asyncio.sleep(self.config.engine.metrics_s)
            await self.metrics.write(self.seats)
            short = short + 1 if self._short_of_work() else 0
            if short == SHORT_LOOKS:
                text = "places stand free while shards wait; raise --resources place=N"
                say(text)
                self.metrics.event(None, "short of work", text)

    def _short_of_work(self) -> bool:
        """Whether a fifth of the places stands free although some shard is not open yet."""
        ready = [seat for seat in self.seats if seat.state == "ready"]
        free = sum(seat.limit - len(seat.leases) for seat in ready)
        asked = any(job.waiting for job in self.jobs)
        few = (
            self.shard is None
            and bool(self.jobs)
            and not asked
            and free * 5 > sum(seat.limit for seat in ready)
        )
        return few and self._shards_left() > len(self.jobs)

    async def idle(self) -> None:
        """End when nobody needs the servers: no job for a while, and none to come."""
        while True:
            await asyncio.sleep(0.2)
            since = time.monotonic() - self.last_job
            idle = not self.jobs and since > self.config.engine.idle_s
            if idle and (since > LONGEST_WAIT_S or not self._more_to_come()):
                break
        say(f"no job for {since:.0f} s; the servers stop")
        self.stopping.set()

    def _more_to_come(self) -> bool:
        """Whether the run still goes on and has shards left: Snakemake may take its time."""
        if self.shard is not None:
            return False
        return self._shards_left() > 0 and is_held(Path(self.config.output_dir) / ".lock")

    def _shards_left(self) -> int:
        folder = Path(self.config.output_dir) / "generate" / self.run_hash
        return self.config.shards - len(list(folder.glob("shard-*.parquet")))


async def run_host(run_file: Path, folder: Path, shard: str | None) -> None:
    """Serve until told to stop, or idle. Prints one line when it listens."""
    config, identity = read_run(run_file)
    server = config.engine.server if isinstance(config.engine.server, dict) else {}
    refuse_simulation(os.environ, config.engine.rehearsal, server)
    version = await sglang_version(config.engine.python)
    if warning := nearest(version)[1]:
        say(warning)
    flags = translate({"enable_metrics": True, **server}, version)
    prompts = Prompts.from_config(config)
    # a cluster has chosen the GPUs of its job
    seats = lease_gpus(config.engine.gpus if shard is None else "auto")
    if made_for := orjson.loads(run_file.read_bytes()).get("tuned"):
        check_here(config.output_dir, made_for, version, [seat.gpu for seat in seats])
    logs = logs_of(config.output_dir, shard)
    logs.mkdir(parents=True, exist_ok=True)
    model, users = await asyncio.to_thread(
        staged, Path(config.model.path), config.engine.stage, say
    )
    host = Host(config, identity["run_hash"], seats, version, shard)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, host.stopping.set)
    listener = await asyncio.start_unix_server(host.serve, folder / "socket")
    print(orjson.dumps({"ready": True, "pid": os.getpid()}).decode(), flush=True)
    async with http_transport() as http:

        def make(seat: Seat, event: Any) -> Server:
            return Server(seat.number, seat.gpu, config, prompts, model, flags, logs, http, event)

        keepers = [asyncio.create_task(host.keep(seat, make)) for seat in seats]
        others = [asyncio.create_task(host.measure()), asyncio.create_task(host.idle())]
        await host.stopping.wait()
        listener.close()
        for task in (*keepers, *others):
            task.cancel()
        await asyncio.gather(*keepers, *others, return_exceptions=True)
        await asyncio.gather(*(seat.server.stop() for seat in seats if seat.server))
        for seat in seats:
            seat.state = "stopped"
            host.metrics.event(seat.number, "stopped", "")
        await host.metrics.write(seats)
    if shard is not None:
        shutil.rmtree(folder, ignore_errors=True)
    if users is not None and not config.engine.stage_keep:
        unstage(model, users)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--folder", type=Path, required=True, help="folder for the socket")
    parser.add_argument("--shard", help="serve the job of this shard only, and end with it")
    args = parser.parse_args(argv)
    try:
        asyncio.run(run_host(args.run, args.folder, args.shard))
    except ConfigError as error:
        print(orjson.dumps({"error": str(error)}).decode(), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

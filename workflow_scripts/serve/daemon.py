"""The host's daemon: one server per GPU, and the places on them given to whichever shard needs one.

Jobs come and go, servers stay: a job connects over a Unix socket, takes a place for each request
and gives it back. Places go to the job that came first, so a shard that ends leaves its places to
the next one and no server drains; at the end of a run the last rows spread over all servers. A
job that dies gives its places back by its closed connection, and its requests are aborted.

A server that ends, or stands still, is started again. The daemon ends with its servers when it is
told to, or when no job has been connected for `engine.idle_s` and none is to come. One that belongs
to a single shard's job, on a cluster, ends when that job is gone.

Messages are lines of JSON. Job: {"op": "hello", "spec", "shard", "concurrency"}, {"op": "take"},
{"op": "free", "lease", "tokens", "fault"}, {"op": "ping"}, {"op": "stop"}. Daemon: {"capacity"},
{"lease", "url", "context", "age_s"}, {"pong"}, {"fatal"}.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.limits import raise_descriptors
from workflow_scripts.base.locks import is_held
from workflow_scripts.base.log import say
from workflow_scripts.config.load import read_run
from workflow_scripts.config.sections import Config
from workflow_scripts.engine.http import http_transport
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.address import logs_of, spec
from workflow_scripts.serve.faults import server_flags
from workflow_scripts.serve.grants import Grants
from workflow_scripts.serve.keeper import Keeper
from workflow_scripts.serve.metrics import Metrics
from workflow_scripts.serve.seats import Job, Seat, lease_gpus
from workflow_scripts.serve.server import Launch
from workflow_scripts.serve.staging import staged, unstage
from workflow_scripts.serve.tuned import check_here
from workflow_scripts.sglang.flags import nearest

SHORT_LOOKS = 4  # looks in a row that find places free before it is said
LONGEST_WAIT_S = 1800.0  # for a run that lives but sends no job: Snakemake itself may hang


class Host:
    """The daemon: its jobs' connections, and when it ends.

    Args:
        shard: the only shard whose job the daemon serves, on a cluster.
    """

    def __init__(self, config: Config, run_hash: str, seats: list[Seat], shard: str | None = None):
        self.config = config
        self.results = Path(config.output_dir) / "generate" / run_hash
        self.spec = spec(config, run_hash)
        self.grants = Grants(seats, config.generate)
        self.fatal: str | None = None
        self.stopping = asyncio.Event()
        self.shard = shard
        self.metrics = Metrics(logs_of(config.output_dir, shard) / "metrics.jsonl")
        self.last_job = time.monotonic()

    # ---- jobs ----

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One job's connection, from hello to its end."""
        job = Job(writer, "?")
        try:
            while line := await reader.readline():
                self._told(job, orjson.loads(line))
                await writer.drain()
        except (ConnectionError, ValueError, KeyError, asyncio.CancelledError):
            pass  # the job is gone, or the daemon ends
        finally:
            await self._gone(job)
            writer.close()

    def _told(self, job: Job, message: dict[str, Any]) -> None:
        op = message["op"]
        if op == "stop":
            self.stopping.set()
        elif op == "hello":
            self._hello(job, message)
        elif op == "ping":
            job.tell(pong=True)
        elif op == "take":
            job.waiting.append(None)
            self.grants.grant()
        elif op == "free":
            self.grants.free(job, message["lease"], message["tokens"], message["fault"])

    def _hello(self, job: Job, message: dict[str, Any]) -> None:
        if message["spec"] != self.spec:
            if not self.grants.jobs:  # servers of an earlier configuration: make room for new ones
                self.stopping.set()
            job.tell(other=True)
            return
        job.shard = message["shard"]
        update = {"concurrency": message["concurrency"]}
        self.grants.join(job, self.config.generate.model_copy(update=update))
        job.tell(capacity=self.grants.capacity())
        if self.fatal:
            job.tell(fatal=self.fatal)

    async def _gone(self, job: Job) -> None:
        await self.grants.leave(job)
        if not self.grants.jobs:
            self.last_job = time.monotonic()
            if self.shard is not None:
                self.stopping.set()

    def give_up(self, text: str) -> None:
        """Nothing more can come of this: tell every job."""
        self.fatal = text
        say(text)
        for job in self.grants.jobs:
            job.tell(fatal=text)

    def ended(self, task: "asyncio.Task[None]") -> None:
        """A task of the daemon's own is over; one that broke ends the daemon, with its reason."""
        if not task.cancelled() and (error := task.exception()):
            trace = "".join(traceback.format_exception(error))
            say(f"the daemon failed:\n{trace}")
            self.give_up(f"the host's daemon failed ({error!r}); its log has more; run again")
            self.stopping.set()

    # ---- the run ----

    async def measure(self) -> None:
        """Write the metrics file, and say when places stand free while shards wait."""
        short = 0
        while True:
            await asyncio.sleep(self.config.engine.metrics_s)
            await self.metrics.write(self.grants.seats)
            short = short + 1 if self._short_of_work() else 0
            if short == SHORT_LOOKS:
                text = "places stand free while shards wait; raise --resources place=N"
                say(text)
                self.metrics.event(None, "short of work", text)

    def _short_of_work(self) -> bool:
        """Whether places stand free although some shard is not open yet."""
        if self.shard is not None or not self.grants.stand_free():
            return False
        return self._shards_left() > len(self.grants.jobs)

    async def idle(self) -> None:
        """End when nobody needs the servers: no job for a while, and none to come."""
        while True:
            await asyncio.sleep(0.2)
            since = time.monotonic() - self.last_job
            idle = not self.grants.jobs and since > self.config.engine.idle_s
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
        return self.config.shards - len(list(self.results.glob("shard-*.parquet")))


async def run_host(run_file: Path, folder: Path, shard: str | None) -> None:
    """Serve until told to stop, or idle. Prints one line when it listens.

    Raises:
        ConfigError: what the configuration asks for is not to be had on this machine.
    """
    config, identity = read_run(run_file)
    raise_descriptors()  # a connection a job, and the servers' own
    version, flags = await asyncio.to_thread(server_flags, config)
    if warning := nearest(version)[1]:
        say(warning)
    prompts = Prompts.from_config(config)
    # a cluster has chosen the GPUs of its job
    seats = lease_gpus(config.engine.gpus if shard is None else "auto")
    if made_for := orjson.loads(run_file.read_bytes()).get("tuned"):
        check_here(config.output_dir, made_for, version, [seat.gpu for seat in seats])
    logs = logs_of(config.output_dir, shard)
    logs.mkdir(parents=True, exist_ok=True)
    model, users = await asyncio.to_thread(
        staged, Path(config.model.path), config.engine.stage, say, config.engine.stage_keep
    )
    try:
        host = Host(config, identity["run_hash"], seats, shard)
        async with http_transport() as http:
            launch = Launch(config, prompts, model, flags, logs, http)
            await _until_stopped(host, launch, version, folder / "socket")
    finally:
        if users is not None and not config.engine.stage_keep:
            unstage(model, users)
    if shard is not None:
        shutil.rmtree(folder, ignore_errors=True)


async def _until_stopped(host: Host, launch: Launch, version: str, socket: Path) -> None:
    """Listen, keep the servers, and stop them at the end."""
    loop, seats = asyncio.get_running_loop(), host.grants.seats
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, host.stopping.set)
    listener = await asyncio.start_unix_server(host.serve, socket)
    print(orjson.dumps({"ready": True, "pid": os.getpid()}).decode(), flush=True)
    both = (host.grants, host.metrics, host.give_up, host.stopping)
    keepers = [Keeper(seat, launch, version, *both) for seat in seats]
    tasks = [asyncio.create_task(keeper.keep()) for keeper in keepers]
    tasks += [asyncio.create_task(host.measure()), asyncio.create_task(host.idle())]
    for task in tasks:
        task.add_done_callback(host.ended)
    await host.stopping.wait()
    listener.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(seat.server.stop() for seat in seats if seat.server))
    for seat in seats:
        seat.state = "stopped"
        host.metrics.event(seat.number, "stopped", "")
    await host.metrics.write(seats)


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

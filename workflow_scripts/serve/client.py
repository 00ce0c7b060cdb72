"""A job's side of the host's daemon: start it where it does not run, take places from it."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import orjson

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.engine.places import NoServer, Place
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.engine.sglang import SGLang
from workflow_scripts.serve.address import CLUSTER_VARIABLE, logs_of, private_dir, runtime_dir, spec

OTHER_GONE_S = 120.0  # for servers of an earlier configuration to stop
END_S = 25.0  # for a daemon of one's own; shorter than the 30 s that Slurm gives a cancelled job


class HostPlaces:
    """Places at the host's servers, granted by its daemon one by one.

    Inside a cluster's job the daemon is the job's own: another job's would have other GPUs, and
    would end with that job.

    Raises (while connecting):
        ConfigError: the daemon cannot start; it says why.
    """

    def __init__(
        self,
        config: Config,
        run_hash: str,
        shard: int,
        end_ids: list[int],
        http: httpx.AsyncBaseTransport,
        say: Callable[[str], None],
    ):
        self.config = config
        name = f"{shard:04d}"
        self.shard = name if CLUSTER_VARIABLE in os.environ else None  # of a daemon of its own
        self.hello = {
            "op": "hello",
            "spec": spec(config, run_hash),
            "shard": name,
            "concurrency": config.generate.concurrency,
        }
        self.end_ids = end_ids
        self.http = http
        self.say = say
        self.folder = private_dir() if self.shard else runtime_dir(config.output_dir)
        self.logs = logs_of(config.output_dir, self.shard)
        self.capacity = 0
        self._engines: dict[str, SGLang] = {}
        self._waiting: deque[asyncio.Future[Place]] = deque()
        self._held: set[str] = set()
        self._fatal: str | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._daemon: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "HostPlaces":
        try:
            reader = await self._connect()
        except BaseException:
            await self.__aexit__()
            raise
        self._reader = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        if self.shard is not None:
            await asyncio.to_thread(self._end)

    def _end(self) -> None:
        """Wait for the job's own daemon, which ends with its only connection: what still runs when
        a cluster's job ends is killed."""
        if self._daemon is not None:
            with suppress(subprocess.TimeoutExpired):
                self._daemon.wait(END_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _connect(self) -> asyncio.StreamReader:
        """Connect to the daemon, starting it if need be, and agree on the servers."""
        until = time.monotonic() + OTHER_GONE_S
        while True:
            reader, self._writer = await self._reach()
            self._send(self.hello)
            line = await reader.readline()
            answer = orjson.loads(line) if line else {}
            if "capacity" in answer:
                self.capacity = answer["capacity"]
                return reader
            self._writer.close()
            if time.monotonic() > until:
                raise ConfigError(
                    f"{self.folder}: servers of another configuration are still in use; wait for "
                    "that run to end"
                )
            await asyncio.sleep(0.3)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.folder / "socket"
        with (self.folder / "lock").open("a") as lock:
            # one job at a time looks and, if it must, starts the daemon
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
            with suppress(OSError):
                return await asyncio.open_unix_connection(path)
            path.unlink(missing_ok=True)
            await asyncio.to_thread(self._start)
            return await asyncio.open_unix_connection(path)

    def _start(self) -> None:
        run = Path(self.config.output_dir) / "run.json"
        command = [sys.executable, "-m", "workflow_scripts.serve.daemon", "--run", str(run)]
        command += ["--folder", str(self.folder)]
        command += ["--shard", self.shard] if self.shard is not None else []
        self.logs.mkdir(parents=True, exist_ok=True)
        self.say("starting the host's daemon")
        with (self.logs / "host.log").open("ab") as log:
            process = self._daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True, env=os.environ,
            )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        answer = orjson.loads(line) if line.startswith(b"{") else {}
        if "ready" not in answer:
            raise ConfigError(answer.get("error", f"the daemon ended; see {log.name}"))

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(orjson.dumps(message) + b"\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand out places as they are granted; come back if the daemon is lost."""
        while True:
            line = b""
            with suppress(ConnectionError):
                line = await reader.readline()
            if not line:
                self.say("the host's daemon is gone; starting another")
                try:
                    reader = await self._connect()
                except (ConfigError, OSError) as error:
                    self._fail(str(error))
                    return
                self._held.clear()
                for _ in self._waiting:
                    self._send({"op": "take"})
                continue
            message = orjson.loads(line)
            if "fatal" in message:
                self._fail(message["fatal"])
            elif "lease" in message:
                self._granted(message)

    def _granted(self, message: dict[str, Any]) -> None:
        url = message["url"]
        if url not in self._engines:
            engine = SGLang(url, self.config.sampling, self.end_ids, self.http)
            self._engines[url] = engine
        self._engines[url].since = time.monotonic() - message["age_s"]
        place = Place(message["lease"], self._engines[url], message["context"])
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                self._held.add(place.rid)
                future.set_result(place)
                return
        self._send({"op": "free", "lease": place.rid, "tokens": 0, "fault": "unused"})

    def _fail(self, text: str) -> None:
        self._fatal = text
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(NoServer(text))

    async def take(self) -> Place:
        if self._fatal is not None:
            raise NoServer(self._fatal)
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._send({"op": "take"})
        return await future

    async def free(self, place: Place, tokens: int, error: EngineError | None) -> None:
        if place.rid in self._held:
            self._held.discard(place.rid)
            fault = error.reason if error else None
            self._send({"op": "free", "lease": place.rid, "tokens": tokens, "fault": fault})
        if error is not None and error.reason == "unreachable":
            await asyncio.sleep(0.5)  # until the daemon has noticed that the server is gone

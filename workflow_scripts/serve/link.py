"""A job's connection to the daemon that serves it, which the job starts where it does not run."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts.base.claims import peer
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import own_file, own_folder
from workflow_scripts.serve.address import CLUSTER_VARIABLE, logs_of, private_dir, runtime_dir

ANSWER_S = 60.0  # of a daemon to a hello
OTHER_GONE_S = 120.0  # for servers of an earlier configuration to stop
END_S = 25.0  # for a daemon of one's own; shorter than the 30 s that Slurm gives a cancelled job


class DaemonLink:
    """Lines of JSON to and from the host's daemon.

    Inside a cluster's job the daemon is the job's own: another job's would have other GPUs, and
    would end with that job.

    Args:
        output_dir: the run's folder.
        shard: the job's shard, as it stands in file names.
        hello: the first message of each connection.
        say: takes a line for the log.
    """

    def __init__(
        self, output_dir: str, shard: str, hello: dict[str, Any], say: Callable[[str], None]
    ):
        self.run = Path(output_dir) / "run.json"
        self.shard = shard if CLUSTER_VARIABLE in os.environ else None  # of a daemon of its own
        self.hello = hello
        self.say = say
        self.folder = private_dir() if self.shard else runtime_dir(output_dir)
        self.logs = logs_of(output_dir, self.shard)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._daemon: subprocess.Popen[bytes] | None = None

    def send(self, **message: Any) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(orjson.dumps(message) + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """The daemon's next message; None when it is gone."""
        assert self._reader is not None
        line = b""
        with suppress(ConnectionError):
            line = await self._reader.readline()
        return orjson.loads(line) if line else None

    async def connect(self) -> int:
        """Connect to the daemon, starting it if need be, and agree on the servers.

        Returns:
            Requests that its servers can take at once.

        Raises:
            ConfigError: the daemon cannot start, it says why; or is killed again and again.
        """
        until = time.monotonic() + OTHER_GONE_S
        while True:
            try:
                self._reader, self._writer = await self._reach()
            except OSError as error:  # it was killed while it started
                if time.monotonic() > until:
                    raise ConfigError(
                        f"the host's daemon cannot be kept running: {error}"
                    ) from None
                await asyncio.sleep(0.3)
                continue
            self.send(**self.hello)
            answer = await self._answer()
            if "capacity" in answer:
                return int(answer["capacity"])
            self._writer.close()
            if time.monotonic() > until:
                raise ConfigError(
                    f"{self.folder}: servers of another configuration are still in use; wait for "
                    "that run to end"
                )
            await asyncio.sleep(0.3)

    async def _answer(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self.receive() or {}
        except TimeoutError:
            raise ConfigError(
                f"{self.folder / 'socket'}: the host's daemon ({self._peer()}) does not answer; "
                "end it (kill -9), its servers end with it, and run again"
            ) from None

    def _peer(self) -> str:
        assert self._writer is not None
        return peer(self._writer.get_extra_info("socket"))

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        path = own_folder(self.folder) / "socket"
        with own_file(self.folder / "lock") as lock:
            # one job at a time looks and, if it must, starts the daemon
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
            with suppress(OSError):
                return await asyncio.open_unix_connection(path)
            path.unlink(missing_ok=True)
            await asyncio.to_thread(self._start)
            return await asyncio.open_unix_connection(path)

    def _start(self) -> None:
        command = [sys.executable, "-m", "workflow_scripts.serve.daemon", "--run", str(self.run)]
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
        if "ready" in answer:
            return
        if "error" not in answer and process.wait() < 0:
            raise ConnectionError(f"it was killed by signal {-process.returncode}")
        raise ConfigError(answer.get("error", f"the daemon ended; see {log.name}"))

    async def close(self) -> None:
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

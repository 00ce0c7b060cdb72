"""One SGLang server on one GPU: start, prove that it is the right one and sane, stop.

A server is a process group of its own. It ends with the process that started it, whatever ends
that one: the kernel sends it SIGTERM then.
"""

import asyncio
import ctypes
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.engine.protocol import Ask, EngineError, Facts
from workflow_scripts.engine.sglang import SGLang
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.errors import StartFailed
from workflow_scripts.serve.gpus import Gpu, all_gpus
from workflow_scripts.serve.ports import claim_port
from workflow_scripts.serve.proofs import ask_canaries, greedy, identified

PR_SET_PDEATHSIG = 1
TERM_S = 10.0  # from SIGTERM to SIGKILL
MEMORY_S = 60.0  # for a GPU's memory to be free again after its server ended
FREE_MIB = 2048  # a GPU with less in use than this is free
LOG_TAIL = 2000  # bytes of a server's log shown when it does not start
FIRST_TOKEN_S = 120.0
LIBC = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(frozen=True)
class Launch:
    """What the servers of a run have in common.

    Args:
        config: the run's configuration.
        prompts: the model's template and tokenizer, for the canary.
        model: folder that the server loads, perhaps a staged copy of `model.path`.
        flags: further words of the command line.
        logs: folder for server-<number>.log.
        environ: variables for these servers alone.
    """

    config: Config
    prompts: Prompts
    model: Path
    flags: list[str]
    logs: Path
    http: httpx.AsyncBaseTransport
    environ: Mapping[str, str] = field(default_factory=dict)


class Server:
    """One server and the GPU it runs on.

    Args:
        number: names the server in logs; its ports are searched from a block of its own.
        gpu: the leased GPU.
        event: takes (what, text) for the metrics file.
    """

    def __init__(self, number: int, gpu: Gpu, launch: Launch, event: Callable[[str, str], None]):
        self.number = number
        self.gpu = gpu
        self.launch = launch
        self.log = launch.logs / f"server-{number}.log"
        self.event = event
        self.process: asyncio.subprocess.Process | None = None
        self.engine: SGLang | None = None
        self.started = 0.0
        self.name = ""
        self._claims: list[socket.socket] = []
        self._log_start = 0

    # ---- start ----

    async def start(self) -> Facts:
        """Start the server and wait until it is proven ready.

        Raises:
            StartFailed: it ended, took too long, or is not the server that was started.
            CanaryFailed: it answers a canary wrongly.
            ConfigError: it computes with other numerics than the configuration says.
        """
        await self._wait_for_memory()
        ports: list[int] = []
        for _ in range(2):
            port, claim = claim_port(100 * self.number)
            ports.append(port)
            self._claims.append(claim)
        await self._execute(*ports)
        self.started = time.monotonic()
        url, launch = f"http://127.0.0.1:{ports[0]}", self.launch
        end_ids = sorted(launch.prompts.end_ids)
        engine = self.engine = SGLang(url, launch.config.sampling, end_ids, launch.http)
        await self._first_token(engine)
        facts = await identified(engine, self.name, launch.config)
        await ask_canaries(engine, self.name, launch.config, launch.prompts)
        return facts

    async def _execute(self, port: int, nccl_port: int) -> None:
        self.name = f"tracemill-{secrets.token_hex(8)}"
        command = [self.launch.config.engine.python, "-m", "sglang.launch_server"]
        command += ["--model-path", str(self.launch.model), "--served-model-name", self.name]
        command += ["--host", "127.0.0.1", "--port", str(port), "--nccl-port", str(nccl_port)]
        command += self.launch.flags
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.event("started", " ".join(command))
        self.log.parent.mkdir(parents=True, exist_ok=True)  # somebody may have cleared it away
        own = {**self.launch.environ, "CUDA_VISIBLE_DEVICES": self.gpu.uuid}
        with self.log.open("ab") as log:
            try:
                self.process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                    env=os.environ | own,
                )
            except OSError as error:
                message = f"engine.python: {command[0]} cannot be run: {error.strerror}"
                raise ConfigError(message) from None

    async def _wait_for_memory(self) -> None:
        until = time.monotonic() + MEMORY_S
        while True:
            now = await asyncio.to_thread(all_gpus)
            used = next((g.used_mib for g in now if g.uuid == self.gpu.uuid), None)
            if used is None or used < FREE_MIB:
                return
            if time.monotonic() > until:
                raise StartFailed(occupied(self.gpu.index, used))
            await asyncio.sleep(0.5)

    async def _first_token(self, engine: SGLang) -> None:
        """Wait for a generated token: health alone has been seen to lie both ways."""
        assert self.process is not None
        limit = self.launch.config.engine.start_timeout_s
        probe = Ask(f"{self.name}-first", self.launch.prompts.encode_text("Hello"), 0)
        while self.process.returncode is None:
            if time.monotonic() - self.started > limit:
                raise StartFailed(f"no first token within {limit:.0f} s; {self.told()}")
            try:
                async with asyncio.timeout(FIRST_TOKEN_S):
                    answer = await engine.ask(probe, greedy(1))
                if answer.output_ids:
                    return
            except EngineError as error:
                # it is there, and cannot be understood or refuses
                if error.reason == "bad_answer" or not error.retry:
                    raise StartFailed(str(error)) from None
            except TimeoutError:
                pass  # not there yet
            await asyncio.sleep(0.2)
        raise StartFailed(f"it ended with status {self.process.returncode}; {self.told()}")

    def told(self) -> str:
        """The end of its log."""
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, self.log.stat().st_size - LOG_TAIL))
            return f"{self.log} ends with:\n{log.read().decode(errors='replace').strip()}"

    # ---- stop ----

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def stop(self) -> None:
        """End the whole process group, by force where it does not end by itself."""
        try:
            await self._end_group()
        finally:
            while self._claims:
                self._claims.pop().close()

    async def _end_group(self) -> None:
        if self.process is None:
            return
        group = self.process.pid
        for number, seconds in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, 5.0)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.process.wait()
                    while _group_alive(group):
                        await asyncio.sleep(0.05)
                    break
        self.process = None


def occupied(index: int, used_mib: int | None) -> str:
    """That a GPU's memory is in use, and what to do."""
    return (
        f"GPU {index} has {used_mib} MiB in use by other processes (nvidia-smi names them); end "
        "them, or leave the GPU out of engine.gpus"
    )


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True

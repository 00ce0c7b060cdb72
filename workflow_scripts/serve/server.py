"""One SGLang server on one GPU: start, prove that it is the right one and sane, stop.

A server is a process group of its own. It ends with the process that started it, whatever ends
that one: the kernel sends it SIGTERM then.
"""

import asyncio
import ctypes
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import httpx

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config, Sampling
from workflow_scripts.engine.protocol import Ask, EngineError, Facts
from workflow_scripts.engine.sglang import SGLang
from workflow_scripts.model.answers import Answer, fault, texts
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.attached import check_numerics
from workflow_scripts.serve.errors import CanaryFailed, StartFailed
from workflow_scripts.serve.gpus import Gpu, all_gpus
from workflow_scripts.serve.ports import claim_port
from workflow_scripts.sglang.compare import compare
from workflow_scripts.sglang.memory import OWN_GIB, predict
from workflow_scripts.sglang.observed import from_server_info

PR_SET_PDEATHSIG = 1
TERM_S = 10.0  # from SIGTERM to SIGKILL
MEMORY_S = 60.0  # for a GPU's memory to be free again after its server ended
FREE_MIB = 2048  # a GPU with less in use than this is free
LOG_TAIL = 2000  # bytes of a server's log shown when it does not start
FIRST_TOKEN_S = 120.0
LIBC = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Server:
    """One server and the GPU it runs on.

    Args:
        number: names the server in logs; its ports are searched from a block of its own.
        gpu: the leased GPU.
        config: the run's configuration.
        prompts: the model's template and tokenizer, for the canary.
        model: folder that the server loads, perhaps a staged copy of `model.path`.
        flags: further words of the command line.
        logs: folder for server-<number>.log.
        event: takes (what, text) for the metrics file.
        environ: variables for this server alone.
    """

    def __init__(
        self,
        number: int,
        gpu: Gpu,
        config: Config,
        prompts: Prompts,
        model: Path,
        flags: list[str],
        logs: Path,
        http: httpx.AsyncBaseTransport,
        event: Callable[[str, str], None],
        environ: Mapping[str, str] | None = None,
    ):
        self.number = number
        self.gpu = gpu
        self.config = config
        self.prompts = prompts
        self.model = model
        self.flags = flags
        self.log = logs / f"server-{number}.log"
        self.http = http
        self.event = event
        self.environ = environ or {}
        self.process: asyncio.subprocess.Process | None = None
        self.engine: SGLang | None = None
        self.started = 0.0
        self._name = ""
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
        self._name = f"tracemill-{secrets.token_hex(8)}"
        command = [self.config.engine.python, "-m", "sglang.launch_server"]
        command += ["--model-path", str(self.model), "--served-model-name", self._name]
        command += ["--host", "127.0.0.1", "--port", str(ports[0]), "--nccl-port", str(ports[1])]
        command += self.flags
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.event("started", " ".join(command))
        with self.log.open("ab") as log:
            try:
                self.process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                    env=os.environ | self.environ | {"CUDA_VISIBLE_DEVICES": self.gpu.uuid},
                )
            except OSError as error:
                message = f"engine.python: {command[0]} cannot be run: {error.strerror}"
                raise ConfigError(message) from None
        self.started = time.monotonic()
        url = f"http://127.0.0.1:{ports[0]}"
        self.engine = SGLang(url, self.config.sampling, sorted(self.prompts.end_ids), self.http)
        await self._first_token()
        facts = await self._identified()
        await self._canary()
        return facts

    async def _wait_for_memory(self) -> None:
        until = time.monotonic() + MEMORY_S
        while True:
            now = await asyncio.to_thread(all_gpus)
            used = next((g.used_mib for g in now if g.uuid == self.gpu.uuid), None)
            if used is None or used < FREE_MIB:
                return
            if time.monotonic() > until:
                raise StartFailed(
                    f"GPU {self.gpu.index} has {used} MiB in use by other processes "
                    "(nvidia-smi names them); end them, or leave the GPU out of engine.gpus"
                )
            await asyncio.sleep(0.5)

    async def _first_token(self) -> None:
        """Wait for a generated token: health alone has been seen to lie both ways."""
        assert self.engine is not None and self.process is not None
        limit = self.config.engine.start_timeout_s
        probe = Ask(f"{self._name}-first", self.prompts.encode_text("Hello"), 0)
        while self.process.returncode is None:
            if time.monotonic() - self.started > limit:
                raise StartFailed(f"no first token within {limit:.0f} s; {self.told()}")
            try:
                async with asyncio.timeout(FIRST_TOKEN_S):
                    answer = await self.engine.ask(probe, greedy(1))
                if answer.output_ids:
                    return
            except (EngineError, TimeoutError):
                pass  # not there yet
            await asyncio.sleep(0.2)
        raise StartFailed(f"it ended with status {self.process.returncode}; {self.told()}")

    def told(self) -> str:
        """The end of its log."""
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, self.log.stat().st_size - LOG_TAIL))
            return f"{self.log} ends with:\n{log.read().decode(errors='replace').strip()}"

    async def _identified(self) -> Facts:
        assert self.engine is not None
        try:
            facts = await self.engine.describe()
        except EngineError as error:
            raise StartFailed(str(error)) from None
        said = facts.raw.get("served_model_name")
        if said != self._name:
            raise StartFailed(
                f"{self.engine.url} is another server (it serves {said!r}, not {self._name!r})"
            )
        check_numerics(self.engine.url, self.config, facts)
        return facts

    async def _canary(self) -> None:
        assert self.engine is not None
        if self.config.engine.rehearsal:
            return
        for number, canary in enumerate(self.config.engine.canary):
            prompt_ids = self.prompts.prompt_ids([{"role": "user", "content": canary.prompt}])
            ask = Ask(f"{self._name}-canary-{number}", prompt_ids, 0)
            try:
                async with asyncio.timeout(self.config.generate.stall_timeout_s):
                    answer = await self.engine.ask(ask, greedy(canary.max_new_tokens))
            except (EngineError, TimeoutError) as error:
                raise StartFailed(f"the canary got no answer: {error!r}") from None
            said = self._text(prompt_ids, answer)
            if not re.search(canary.expect, said):
                raise CanaryFailed(
                    f"engine.canary: asked {canary.prompt!r}, expected to find {canary.expect!r}, "
                    f"but {self.engine.url} (GPU {self.gpu.index}) answered {said!r}. The server "
                    "answers, but wrongly: check the model, SGLang's version and the attention "
                    "backend before any row is generated."
                )

    def _text(self, prompt_ids: list[int], answer: Answer) -> str:
        if what := fault(answer, 2**31 - 1):
            return f"[{what}]"
        ((reasoning, text),) = texts(self.prompts, [(prompt_ids, answer.output_ids)])
        return text or f"[only reasoning: {(reasoning or '')[-200:]}]"

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


def surprises(config: Config, version: str, gpu: Gpu, facts: Facts) -> list[str]:
    """Where a server that has started differs from what its memory plan said, or from what was
    asked for, with the remedy."""
    flags = config.engine.server if isinstance(config.engine.server, dict) else {}
    try:
        total = gpu.total_mib or 0
        plan = predict(
            Path(config.model.path), total / 1024 - OWN_GIB, version, flags, total_mib=total
        )
        return compare(plan, from_server_info(facts.raw))
    except ConfigError:  # a model or flag that the plan does not know
        names = ("max_running_requests", "max-running-requests")
        asked = next((flags[name] for name in names if name in flags), None)
        if isinstance(asked, int) and facts.max_running < asked:
            return [
                f"asked for {asked:,} requests at once, SGLang runs {facts.max_running:,}; its log "
                "says which memory is short"
            ]
        return []


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def greedy(max_new_tokens: int) -> Sampling:
    return Sampling(
        temperature=0, top_p=1, top_k=-1, min_p=0, max_new_tokens=max_new_tokens, seed=0
    )

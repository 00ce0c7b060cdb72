"""llama.cpp's API, and the embedded engine as a child process that speaks it."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson

from workflow_scripts.config.sections import Config, Sampling
from workflow_scripts.engine.http import PROBE_S, HttpEngine
from workflow_scripts.engine.protocol import Ask, Backend, EngineError, Facts
from workflow_scripts.model.answers import Answer

EMBEDDED_START_S = 120.0


class LlamaCpp(HttpEngine):
    """The embedded engine: llama.cpp's own API, one request per slot."""

    facts: Facts

    async def describe(self) -> Facts:
        return self.facts

    async def ask(self, ask: Ask, sampling: Sampling | None = None) -> Answer:
        s = sampling or self.sampling
        body = {
            "prompt": ask.prompt_ids,
            "n_predict": s.max_new_tokens,
            "seed": ask.seed,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "top_k": max(s.top_k, 0),
            "min_p": s.min_p,
            # SGLang's order: the cuts see the tempered probabilities
            "samplers": ["temperature", "top_k", "top_p", "min_p"],
            "return_tokens": True,
            "cache_prompt": False,  # a warm cache cuts the prompt into other batches: other ids
            "stream": True,  # only a streamed request ends when its connection is closed
            "response_fields": ["tokens", "stop", "stop_type"],
        }
        raw = await self._call("POST", "/completion", None, body)
        try:
            parts = [orjson.loads(line[6:]) for line in raw.split(b"\n") if line[:6] == b"data: "]
        except orjson.JSONDecodeError as error:
            raise EngineError("bad_answer", f"{self.url}: a line is no JSON ({error})") from None
        return self._understood(_read_llama, parts)

    async def abort(self, rid: str) -> None:
        """Nothing to send: giving a request up closes its connection, and that ends it."""

    async def progress(self) -> object:
        slots = await self._json("GET", "/slots", PROBE_S)
        return [[slot.get("id_task"), slot.get("next_token")] for slot in slots]

    async def load(self) -> tuple[int | None, float | None]:
        slots = await self._json("GET", "/slots", PROBE_S)
        return sum(bool(slot["is_processing"]) for slot in slots), None


def _read_llama(parts: Any) -> Answer:
    ids = [token for part in parts for token in part["tokens"]]
    stop = parts[-1]["stop_type"]  # the last line, which has no tokens
    return Answer(ids, "stop", ids[-1]) if stop == "eos" else Answer(ids, "length", None)


@asynccontextmanager
async def embedded_engine(
    config: Config, end_ids: list[int], http: httpx.AsyncBaseTransport
) -> AsyncIterator[Backend]:
    """Start the embedded engine as a child process and end it with the block."""
    command = [sys.executable, "-m", "workflow_scripts.embedded.server"]
    command += ["--model", str(Path(config.model.path) / "model.gguf")]
    command += ["--slots", str(config.engine.slots)]
    command += ["--context", str(config.engine.slot_context), "--parent-pid", str(os.getpid())]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(EMBEDDED_START_S):
            line = await process.stdout.readline()
        if not line:
            code = await process.wait()
            message = f"the embedded engine ended with status {code}; its reason stands above"
            raise EngineError("start_failed", message)
        ready = orjson.loads(line)
        engine = LlamaCpp(ready["url"], config.sampling, end_ids, http)
        engine.facts = Facts(ready["slots"], ready["context"], {})
        yield engine
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(5):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

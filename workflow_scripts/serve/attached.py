"""Servers that a job has to itself: attached ones, or the embedded engine.

An attached server is whatever listens at its URL. It is identified before the first row and again
after every lost connection, since another model can have been started there meanwhile.
"""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.log import say
from workflow_scripts.config.sections import VARIABLE, Config
from workflow_scripts.engine.http import http_transport
from workflow_scripts.engine.llamacpp import embedded_engine
from workflow_scripts.engine.protocol import Backend, EngineError, Facts
from workflow_scripts.engine.sglang import SGLang
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.errors import CanaryFailed, StartFailed
from workflow_scripts.serve.proofs import ask_canaries, check_model, check_numerics

AGAIN_S = 2.0  # between two looks for a server that answers


def with_secrets(url: str) -> str:
    """A URL with the environment variables that it names.

    Raises:
        ConfigError: one is not set.
    """
    unset = [name for name in VARIABLE.findall(url) if name[2:-1] not in os.environ]
    if unset:
        raise ConfigError(f"engine.urls: {', '.join(unset)} is not set in this job's environment")
    return VARIABLE.sub(lambda found: quote(os.environ[found[0][2:-1]], safe=""), url)


class Attached(SGLang):
    """A server at a URL that somebody else started.

    Args:
        prompts: to ask the canaries with.
    """

    def __init__(
        self,
        url: str,
        config: Config,
        end_ids: list[int],
        http: httpx.AsyncBaseTransport,
        prompts: Prompts,
    ):
        super().__init__(url, config.sampling, end_ids, http)
        self.config = config
        self.prompts = prompts

    async def describe(self) -> Facts:
        """What the server says of itself, once it has shown that it is the right one.

        Raises:
            ConfigError: it serves another model, computes with other numerics, or answers a canary
                wrongly.
            EngineError: it does not answer.
        """
        facts = await super().describe()
        check_numerics(self.url, self.config, facts)
        check_model(self.url, self.config, await self.model())
        try:
            name = f"tracemill-{uuid.uuid4().hex}"
            await ask_canaries(self, name, self.config, self.prompts)
        except StartFailed as error:
            raise EngineError("unreachable", f"{self.url}: {error}", sent=False) from None
        except CanaryFailed as error:
            raise ConfigError(str(error)) from None
        return facts


@asynccontextmanager
async def open_engines(
    config: Config, end_ids: list[int], prompts: Prompts, wait_s: float = 0
) -> AsyncIterator[list[tuple[Backend, Facts | None]]]:
    """The servers that the configuration names, each identified; started and stopped if ours.

    Args:
        wait_s: for one that answers, where none does.

    Yields:
        The servers with what each says of itself, None of one that does not answer while others do.

    Raises:
        ConfigError: a server is not the one that the configuration describes.
        EngineError: none answers.
    """
    async with http_transport() as http:
        if config.engine.kind == "embedded":
            async with embedded_engine(config, end_ids, http) as engine:
                yield [(engine, await engine.describe())]
        else:
            urls = map(with_secrets, config.engine.urls)
            engines = [Attached(url, config, end_ids, http, prompts) for url in urls]
            yield await _described(engines, time.monotonic() + wait_s)


async def _described(engines: list[Attached], until: float) -> list[tuple[Backend, Facts | None]]:
    while True:
        found: list[tuple[Backend, Facts | None]] = []
        why: EngineError | None = None
        for engine in engines:
            try:
                found.append((engine, await engine.describe()))
            except EngineError as error:
                if not error.retry:
                    raise
                found.append((engine, None))
                why = error
        if why is None:
            return found
        if any(facts for _, facts in found):
            away = ", ".join(engine.url for engine, facts in found if facts is None)
            say(f"no answer from {away} ({why}); until there is, the others are asked")
            return found
        if time.monotonic() >= until:
            raise why
        await asyncio.sleep(AGAIN_S)

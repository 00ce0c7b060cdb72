"""Servers that a job has to itself: attached ones, or the embedded engine."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.engine.http import http_transport
from workflow_scripts.engine.llamacpp import embedded_engine
from workflow_scripts.engine.protocol import Backend, Facts
from workflow_scripts.engine.sglang import SGLang
from workflow_scripts.sglang.numerics import numeric_flags


@asynccontextmanager
async def open_engines(
    config: Config, end_ids: list[int], say: Callable[[str], None]
) -> AsyncIterator[list[tuple[Backend, Facts]]]:
    """The servers that the configuration names, each checked; started and stopped if ours.

    Raises:
        ConfigError: a server computes with other numerics than the configuration says.
        EngineError: a server does not answer, or is not what it should be.
    """
    async with http_transport() as http:
        if config.engine.kind == "embedded":
            async with embedded_engine(config, end_ids, http) as engine:
                yield [(engine, await engine.describe())]
        else:
            yield [await _attached(url, config, end_ids, http) for url in config.engine.urls]


async def _attached(
    url: str, config: Config, end_ids: list[int], http: httpx.AsyncBaseTransport
) -> tuple[Backend, Facts]:
    engine = SGLang(url, config.sampling, end_ids, http)
    facts = await engine.describe()
    check_numerics(url, config, facts)
    return engine, facts


def check_numerics(url: str, config: Config, facts: Facts) -> None:
    """Raises ConfigError where a server computes with other numerics than the run's hash says."""
    wanted, found = numeric_flags(config.engine.server), numeric_flags(facts.raw)
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ConfigError(
                f"engine.server: {url} runs with {name}={found.get(name)!r}, the configuration "
                f"says {wanted.get(name)!r}; it changes the answers, so set `{name}` under "
                "engine.server to what the server has, or restart the server"
            )

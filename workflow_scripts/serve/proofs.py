"""What a server must show after its start, and how it differs from its plan."""

import asyncio
import re
from pathlib import Path
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Canary, Config, Sampling
from workflow_scripts.engine.protocol import Ask, EngineError, Facts
from workflow_scripts.engine.sglang import SGLang
from workflow_scripts.model.answers import Answer, fault, texts
from workflow_scripts.model.folder import read_json
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.errors import CanaryFailed, StartFailed
from workflow_scripts.serve.gpus import Gpu
from workflow_scripts.sglang.compare import compare
from workflow_scripts.sglang.memory import OWN_GIB, predict
from workflow_scripts.sglang.numerics import numeric_flags
from workflow_scripts.sglang.observed import from_server_info


async def identified(engine: SGLang, name: str, config: Config) -> Facts:
    """What the server says of itself.

    Raises:
        StartFailed: it is not the server that serves `name`.
        ConfigError: it computes with other numerics than the configuration says.
    """
    try:
        facts = await engine.describe()
    except EngineError as error:
        raise StartFailed(str(error)) from None
    said = facts.raw.get("served_model_name")
    if said != name:
        raise StartFailed(f"{engine.url} is another server (it serves {said!r}, not {name!r})")
    check_numerics(engine.url, config, facts)
    return facts


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


def check_model(url: str, config: Config, told: dict[str, Any]) -> None:
    """Raises ConfigError where a server's account of its model (`/model_info`) is not the
    configured one. What either side leaves out is not compared."""
    own = read_json(Path(config.model.path) / "config.json")
    for name in ("model_type", "architectures"):
        if own.get(name) and told.get(name) and own[name] != told[name]:
            raise ConfigError(
                f"engine.urls: {url} serves {told.get('model_path')!r} with {name} "
                f"{told[name]!r}; model.path {config.model.path} has {own[name]!r}. Name the "
                "server of this model, or the model of this server"
            )


async def ask_canaries(engine: SGLang, name: str, config: Config, prompts: Prompts) -> None:
    """Ask what has a known answer; nothing in a rehearsal.

    Args:
        name: begins the requests' ids.

    Raises:
        StartFailed: there is no answer.
        CanaryFailed: it is another one.
    """
    for number, canary in enumerate([] if config.engine.rehearsal else config.engine.canary):
        prompt_ids = prompts.prompt_ids([{"role": "user", "content": canary.prompt}])
        ask = Ask(f"{name}-canary-{number}", prompt_ids, 0)
        try:
            async with asyncio.timeout(config.generate.stall_timeout_s):
                answer = await engine.ask(ask, greedy(canary.max_new_tokens))
        except (EngineError, TimeoutError) as error:
            raise StartFailed(f"the canary got no answer: {error!r}") from None
        _judge(canary, _text(prompts, prompt_ids, answer), engine.url)


def _judge(canary: Canary, said: str, url: str) -> None:
    if not re.search(canary.expect, said):
        raise CanaryFailed(
            f"engine.canary: asked {canary.prompt!r}, expected to find {canary.expect!r}, but "
            f"{url} answered {said!r}. The server answers, but wrongly: check the model, SGLang's "
            "version and the attention backend before any row is generated."
        )


def _text(prompts: Prompts, prompt_ids: list[int], answer: Answer) -> str:
    if what := fault(answer, 2**31 - 1):
        return f"[{what}]"
    ((reasoning, text),) = texts(prompts, [(prompt_ids, answer.output_ids)])
    return text or f"[only reasoning: {(reasoning or '')[-200:]}]"


def greedy(max_new_tokens: int) -> Sampling:
    """Sampling that takes the likeliest token each time."""
    return Sampling(
        temperature=0, top_p=1, top_k=-1, min_p=0, max_new_tokens=max_new_tokens, seed=0
    )


def surprises(config: Config, version: str, gpu: Gpu, facts: Facts) -> list[str]:
    """Where a server that has started differs from what its memory plan said, or from what was
    asked for, with the remedy."""
    flags = config.engine.flags
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

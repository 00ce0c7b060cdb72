"""One candidate's server under the run's own load, until its speed is known or time is over.

Requests are kept in flight a little above what the server runs at once; as soon as one ends, the
next is sent. Every second the server's counters and the GPU are read. When the time is over the
requests under way are aborted, which tells how long their answers had become.
"""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workflow_scripts.config.sections import Config
from workflow_scripts.engine.http import PROBE_S
from workflow_scripts.engine.places import in_flight
from workflow_scripts.engine.protocol import Ask, EngineError, Facts
from workflow_scripts.engine.stall import StallClock
from workflow_scripts.identity import rehearsal_length, request_seed
from workflow_scripts.model.answers import fault
from workflow_scripts.model.folder import model_vocab_size
from workflow_scripts.serve.gpus import Gpu, all_gpus
from workflow_scripts.serve.metrics import counters
from workflow_scripts.serve.proofs import greedy
from workflow_scripts.serve.server import Server
from workflow_scripts.sglang.observed import from_log, from_server_info
from workflow_scripts.texts.loops import find, is_loop
from workflow_scripts.tune import judge
from workflow_scripts.tune.results import Answered, Result
from workflow_scripts.tune.sample import Prompt

GREEDY_PROMPTS, GREEDY_TOKENS = 16, 128
SETTLE_INTERVALS = 3  # without more running requests: it runs what it can
STUCK_S = 120.0  # without a token: the first kernels may be compiled meanwhile
ABORT_S = 10.0  # for aborted requests to come back


class Died(Exception):
    """The server is of no use any more; the message says why."""


@dataclass(frozen=True)
class Window:
    """How long to measure, in seconds.

    `fill_s` is the most that the server may take to be full, `window_s` the most from then on;
    speed is counted over intervals of `interval_s`.
    """

    window_s: float = 60.0
    fill_s: float = 180.0
    interval_s: float = 5.0

    @property
    def tick_s(self) -> float:
        return self.interval_s / 5


def loops(ids: list[int], config: Config) -> bool:
    """Whether an answer loops, as the filter of that name decides."""
    return is_loop(find(ids), config.dataset.filters.loop_threshold)


@dataclass(eq=False)
class Load:
    """The requests that keep one server busy.

    `under_way` holds each request's start and prompt by its rid.
    """

    server: Server
    facts: Facts
    config: Config
    prompts: list[Prompt]
    answers: list[Answered] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    closing: bool = False
    under_way: dict[str, tuple[float, Prompt]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.server.engine is not None
        self.engine = self.server.engine
        self.vocab = model_vocab_size(self.config) or self.server.launch.prompts.vocab_size
        self.name = f"tune-{id(self):x}"

    async def work(self) -> None:
        """One place in flight."""
        while not self.closing:
            await self.one()

    async def one(self) -> None:
        """Ask for the next prompt of the sample; when it is used up, again with other seeds."""
        number, self.sent = self.sent, self.sent + 1
        prompt, cycle = self.prompts[number % len(self.prompts)], number // len(self.prompts)
        sampling, spread = self.config.sampling, self.config.engine.rehearsal_tokens
        room = self.facts.context - len(prompt.ids)
        most = min(sampling.max_new_tokens, room)
        fixed = rehearsal_length(spread, prompt.row_id, cycle) if spread else None
        fixed = min(fixed, room) if fixed else None
        seed = request_seed(sampling.seed, prompt.row_id, cycle)
        ask = Ask(f"{self.name}-{number}", prompt.ids, seed, fixed)
        self.under_way[ask.rid] = (time.monotonic(), prompt)
        try:
            answer = await self.engine.ask(
                ask, sampling.model_copy(update={"max_new_tokens": most})
            )
        except EngineError as error:
            del self.under_way[ask.rid]
            if not self.closing:
                self.faults[error.reason] += 1
                await asyncio.sleep(0.2)
            return
        del self.under_way[ask.rid]
        cut = answer.finish == "abort" and self.closing
        if cut and not answer.output_ids:
            return  # it was still in the queue
        if not cut and fault(answer, self.vocab):
            self.faults["engine_error"] += 1
            return
        self.answers.append(
            Answered(
                tokens=len(answer.output_ids),
                ended=not cut,
                at_limit=answer.finish == "length" and fixed is None,
                loops=loops(answer.output_ids, self.config),
                prompt=len(prompt.ids),
                accept_length=answer.accept_length,
                retractions=answer.retractions,
            )
        )

    async def close(self, workers: list[asyncio.Task[None]], each: float) -> None:
        """Abort what is under way, and take what the answers had become.

        Args:
            each: tokens/s of one request, for those that do not come back: leaving them out would
                leave out long answers.
        """
        self.closing = True
        rids = list(self.under_way)
        await asyncio.gather(*(self._abort(rid) for rid in rids))
        if workers:
            await asyncio.wait(workers, timeout=ABORT_S)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        now = time.monotonic()
        for started, prompt in self.under_way.values():
            tokens = round((now - started) * each)
            self.answers.append(Answered(tokens, False, False, False, len(prompt.ids)))
        self.under_way.clear()

    async def _abort(self, rid: str) -> None:
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(ABORT_S):
                await self.engine.abort(rid)


async def sample_server(server: Server, gpu: Gpu, began: float) -> dict[str, Any] | None:
    """What the server and its GPU say of themselves now; None where it does not answer."""
    assert server.engine is not None
    gpus = asyncio.create_task(asyncio.to_thread(all_gpus))
    try:
        async with asyncio.timeout(PROBE_S):
            loads = await server.engine.loads()
            told = counters(await server.engine.prometheus())
            at = time.monotonic() - began
    except (EngineError, TimeoutError, KeyError, TypeError):
        await gpus
        return None
    now = next((found for found in await gpus if found.uuid == gpu.uuid), None)
    return {
        "t": round(at, 3),
        "decoded": told.get("decoded", 0.0),
        "running": sum(load["num_running_reqs"] for load in loads),
        "queued": sum(load["num_waiting_reqs"] for load in loads),
        "util": now.util if now else None,
        "watts": now.watts if now else None,
        **{k: told.get(k) for k in ("kv_use", "state_use", "accept_length", "retractions")},
    }


async def greedy_answers(server: Server, facts: Facts, prompts: list[Prompt]) -> list[list[int]]:
    """Greedy answers to the first prompts of the sample, to compare candidates by.

    Raises:
        Died: there is none.
    """
    assert server.engine is not None
    engine = server.engine

    async def one(number: int, prompt: Prompt) -> list[int]:
        room = min(GREEDY_TOKENS, facts.context - len(prompt.ids))
        answer = await engine.ask(Ask(f"tune-greedy-{number}", prompt.ids, 0), greedy(room))
        return answer.output_ids

    chosen = prompts[:GREEDY_PROMPTS]
    try:
        async with asyncio.timeout(2 * STUCK_S):
            return list(await asyncio.gather(*(one(i, p) for i, p in enumerate(chosen))))
    except (EngineError, TimeoutError) as error:
        raise Died(f"no greedy answers: {error!r}; {server.told()}") from None


async def measure(
    server: Server,
    facts: Facts,
    config: Config,
    prompts: list[Prompt],
    window: Window,
    best: float | None,
    result: Result,
) -> None:
    """Put the server under load and write what comes of it into `result`.

    Args:
        best: tokens/s of the fastest candidate so far; one that is clearly slower stops early.

    Raises:
        Died: the server ended or stands still; what was measured until then is in `result`.
    """
    least = config.sampling.min_new_tokens
    usable = [p for p in prompts if facts.context - len(p.ids) >= least]
    if not usable:
        raise Died(f"no prompt of the sample leaves {least} tokens of {facts.context} of context")
    result.greedy = await greedy_answers(server, facts, usable)
    load = Load(server, facts, config, usable)
    number = in_flight(config.generate, facts)
    workers = [asyncio.create_task(load.work()) for _ in range(number)]
    try:
        await _watch(server, facts, config, window, best, result, load)
    except asyncio.CancelledError:
        for worker in workers:
            worker.cancel()
        raise
    finally:
        each = 0.0
        if result.rates and (running := result.samples[-1]["running"]):
            each = judge.speed(result) / running
        await load.close(workers, each)
        result.answers = load.answers
        result.faults = dict(load.faults)
        result.cycles = -(-load.sent // len(usable))


async def _watch(
    server: Server,
    facts: Facts,
    config: Config,
    window: Window,
    best: float | None,
    result: Result,
    load: Load,
) -> None:
    began = time.monotonic()
    clock = StallClock(min(STUCK_S, config.generate.stall_timeout_s))
    settle = SETTLE_INTERVALS * window.interval_s
    while True:
        await asyncio.sleep(window.tick_s)
        if not server.running:
            code = server.process.returncode if server.process else None
            raise Died(f"the server ended under load with status {code}; {server.told()}")
        now = await sample_server(server, server.gpu, began)
        if now is not None:
            result.samples.append(now)
        if clock.look(now and now["decoded"]):
            raise Died(f"it stands still: no token for {clock.limit_s:.0f} s under load")
        elapsed = time.monotonic() - began
        if result.steady_s is None:
            at = judge.full_from(result.samples, facts.max_running, settle)
            if at is not None:  # the first interval still has the others' prompts in it
                result.steady_s = result.samples[at]["t"] + window.interval_s
            elif elapsed > window.fill_s:
                most = max((s["running"] for s in result.samples), default=0)
                result.status, result.reason = (
                    "not full",
                    (
                        f"the load never filled it: at most {most} of {facts.max_running} requests "
                        f"ran within {window.fill_s:.0f} s, {len(load.answers):,} answers came; no "
                        "speed can be told"
                    ),
                )
                return
            else:
                continue
        steady = [s for s in result.samples if s["t"] >= result.steady_s]
        result.rates = judge.interval_rates(steady, window.interval_s)
        over = elapsed - result.steady_s > window.window_s
        if result.rates and not result.rates[-1]:
            continue  # it stands still: for good, or a retraction; not to be taken for slow
        if judge.is_hopeless(result.rates, best):
            result.status = "stopped"
            result.reason = f"stopped early: clearly slower than {best:,.0f} tokens/s"
            return
        if judge.is_known(result.rates) or (over and result.rates):
            result.status = "measured"
            return


def reported(facts: Facts, log: Path) -> dict[str, Any]:
    """What the server says of its caches, and its log of their sizes, beside the prediction."""
    seen = from_server_info(facts.raw)
    text = log.read_text(errors="replace") if log.is_file() else ""
    told = from_log(text)
    gib = {
        "weights": told.weights,
        "state (SSM)": told.ssm,
        "intermediate state (SSM)": told.intermediate_ssm,
        "K": told.k,
        "V": told.v,
    }
    return {
        "max_running": facts.max_running,
        "tokens": seen.tokens,
        "slots": seen.slots,
        "context": facts.context,
        "gib": {name: round(size, 3) for name, size in gib.items() if size is not None},
    }

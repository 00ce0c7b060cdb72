"""A tune's work: each candidate predicted, started, measured and stopped, one after another."""

import asyncio
import time
from dataclasses import asdict, replace
from pathlib import Path

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.log import say
from workflow_scripts.engine.http import http_transport
from workflow_scripts.serve.errors import CanaryFailed, StartFailed
from workflow_scripts.serve.proofs import surprises
from workflow_scripts.serve.server import Launch, Server
from workflow_scripts.serve.staging import staged, unstage
from workflow_scripts.serve.tuned import with_flags
from workflow_scripts.sglang.flags import SIMULATIONS, translate
from workflow_scripts.tune import judge
from workflow_scripts.tune.candidates import Candidate
from workflow_scripts.tune.files import write_report
from workflow_scripts.tune.measure import Died, measure, reported
from workflow_scripts.tune.results import Result, append, read_results
from workflow_scripts.tune.setup import Setup

SIMULATED = SIMULATIONS[0]


class Tune:
    """The candidates of one tune and their results so far, which outlive it in candidates.jsonl."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self.keys = {candidate.name: setup.key(candidate) for candidate in setup.candidates}
        self.file = setup.out / "candidates.jsonl"
        once_more = {"wrong", "failed"} if setup.again else {"wrong"}
        read = read_results(self.file)
        self.done = {result.key: result for result in read if result.status not in once_more}

    def results(self) -> list[Result]:
        """Those of this tune's candidates that are there, in order."""
        found = [(c, self.done.get(self.keys[c.name])) for c in self.setup.candidates]
        return [replace(r, name=c.name, why=c.why) for c, r in found if r is not None]

    async def run(self) -> None:
        """Measure what is not measured yet.

        Raises:
            CanaryFailed: a server answers wrongly; nothing that comes after can be trusted.
        """
        engine, candidates = self.setup.config.engine, self.setup.candidates
        for candidate in candidates:
            say(f"{candidate.name}: {expected(candidate)}")
        folder = Path(self.setup.config.model.path)
        model, users = await asyncio.to_thread(staged, folder, engine.stage, say, engine.stage_keep)
        (self.setup.out / "logs").mkdir(parents=True, exist_ok=True)
        try:
            for number, candidate in enumerate(candidates):
                if self.keys[candidate.name] in self.done:
                    say(f"{candidate.name}: measured already")
                else:
                    await self._next(number, candidate, model)
        finally:
            if users is not None and not engine.stage_keep:
                unstage(model, users)

    async def _next(self, number: int, candidate: Candidate, model: Path) -> None:
        """Measure a candidate; its result is on the disk before anything else happens."""
        key, name = self.keys[candidate.name], candidate.name
        plan, problem = candidate.predicted(), candidate.problem
        foreseen = {"kind": "predicted", "key": key, "name": name, "predicted": plan}
        append(self.file, foreseen | {"problem": problem})
        result = Result(
            key=key,
            name=name,
            why=candidate.why,
            server=dict(candidate.server),
            changes=dict(candidate.changes),
            speculative=candidate.speculative,
            predicted=plan,
            problem=problem,
        )
        await self._measure(number, candidate, model, result)
        result.finished_at = time.time()
        append(self.file, {"kind": "result", **asdict(result)})
        self.done[key] = result
        write_report(self.setup, self.results())
        say(f"{name}: {found(result)}")
        if result.status == "wrong":
            raise CanaryFailed(result.reason)

    async def _measure(
        self, number: int, candidate: Candidate, model: Path, result: Result
    ) -> None:
        """Start, measure and stop one candidate's server; whatever happens to it is a result."""
        setup, name = self.setup, candidate.name
        config = with_flags(setup.config, dict(candidate.server))
        flags = translate({"enable_metrics": True, **candidate.server}, setup.version)
        environ = {}
        if setup.accept_length and candidate.speculative:
            environ[SIMULATED] = f"{setup.accept_length:g}"
        async with http_transport() as http:
            logs = setup.out / "logs"
            launch = Launch(config, setup.prompts, model, flags, logs, http, environ)
            server = Server(
                number, setup.gpu, launch, lambda what, text: say(f"{name}: {what} {text}")
            )
            began = time.monotonic()
            try:
                facts = await server.start()
                result.boot_s = round(time.monotonic() - began, 1)
                result.reported = reported(facts, server.log)
                result.notes = surprises(config, setup.version, setup.gpu, facts)
                say(f"{name}: ready after {result.boot_s:.0f} s")
                prompts, best = setup.sample.prompts, self._best()
                await measure(server, facts, config, prompts, setup.window, best, result)
            except CanaryFailed as error:
                result.status, result.reason = "wrong", str(error)
            except (StartFailed, ConfigError, Died) as error:
                result.status, result.reason = "failed", str(error)
            finally:
                await asyncio.shield(server.stop())

    def _best(self) -> float | None:
        able = [r for r in self.results() if r.status == "measured"]
        return max(map(judge.speed, able), default=None)


def expected(candidate: Candidate) -> str:
    plan = candidate.plan
    if plan is None:
        return f"no prediction: {candidate.problem}"
    return (
        f"predicted {plan.max_running:,} requests at once, {plan.tokens:,} KV tokens; bound by "
        f"{plan.binds}"
    )


def found(result: Result) -> str:
    """A finished candidate in a line."""
    if not result.measured:
        return f"{result.status}: {result.reason}"
    now = judge.figures(result)
    text = f"{now.tokens_s or 0:,.0f} tokens/s ± {now.spread:,.0f}, {now.running or 0:,.0f} running"
    return text + (f"; {result.reason}" if result.reason else "")

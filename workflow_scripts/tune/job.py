"""Measure on one GPU which server flags answer the run's own prompts fastest.

    python -m workflow_scripts.tune --configfile my-run.yaml

Every candidate is predicted, started, asked a greedy sample, loaded until its speed is known and
stopped. Each result is on the disk before the next candidate starts, and the same command goes on
where it was interrupted. What is chosen is in <output_dir>/tune/server.yaml, which
`engine.server: auto` uses.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import write_atomically
from workflow_scripts.base.log import say
from workflow_scripts.config.sections import Config
from workflow_scripts.engine.http import http_transport
from workflow_scripts.identity import canonical, digest
from workflow_scripts.model.folder import model_key
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.errors import CanaryFailed, StartFailed
from workflow_scripts.serve.gpus import Gpu, usable_gpus
from workflow_scripts.serve.server import Server, surprises
from workflow_scripts.serve.staging import staged, unstage
from workflow_scripts.serve.tuned import tuned_file, with_flags
from workflow_scripts.sglang.flags import SIMULATIONS, translate
from workflow_scripts.tune import judge
from workflow_scripts.tune.candidates import Candidate
from workflow_scripts.tune.measure import Died, Window, measure, reported
from workflow_scripts.tune.page import page
from workflow_scripts.tune.report import About, before_and_after, markdown, server_yaml
from workflow_scripts.tune.results import Result, append, read_results
from workflow_scripts.tune.sample import PromptSample

SIMULATED = SIMULATIONS[0]


class Tune:
    """One tune: its candidates, its results so far, and its files.

    Args:
        config: the run's; `engine.rehearsal` says whether this is a rehearsal.
        accept_length: simulated on candidates with speculation, in a rehearsal.
        again: measure candidates once more that failed.
    """

    def __init__(
        self,
        config: Config,
        prompts: Prompts,
        gpu: Gpu,
        version: str,
        sample: PromptSample,
        candidates: list[Candidate],
        window: Window,
        out: Path,
        accept_length: float | None,
        again: bool,
    ):
        self.config = config
        self.prompts = prompts
        self.gpu = gpu
        self.version = version
        self.sample = sample
        self.candidates = candidates
        self.window = window
        self.out = out
        self.accept_length = accept_length
        self.model_key = model_key(Path(config.model.path))
        self.keys = {candidate.name: self._key(candidate) for candidate in candidates}
        self.file = out / "candidates.jsonl"
        self.done = {
            result.key: result
            for result in read_results(self.file)
            if result.status not in ("wrong", "failed" if again else "wrong")
        }

    def _key(self, candidate: Candidate) -> str:
        """Identity of a measurement: with another one it is made again."""
        rehearsal = self.config.engine.rehearsal
        accept = self.accept_length if candidate.speculative else None
        window = (self.window.window_s, self.window.fill_s, self.window.interval_s)
        words = sorted(translate(candidate.server, self.version))
        parts: list[Any] = [
            words,
            self.version,
            self.model_key,
            self.gpu.name,
            self.gpu.total_mib,
            rehearsal,
        ]
        parts += [accept, self.sample.key, window, self.config.engine.rehearsal_tokens]
        parts += [self.config.generate.concurrency, self.config.dataset.filters.loop_threshold]
        return digest(canonical(parts), canonical(self.config.sampling))

    def results(self) -> list[Result]:
        """Those of this tune's candidates that are there, in order."""
        found = [(c, self.done.get(self.keys[c.name])) for c in self.candidates]
        return [replace(r, name=c.name, why=c.why) for c, r in found if r is not None]

    # ---- candidates ----

    async def run(self) -> None:
        """Measure what is not measured yet.

        Raises:
            CanaryFailed: a server answers wrongly; nothing that comes after can be trusted.
        """
        for candidate in self.candidates:
            say(f"{candidate.name}: {expected(candidate)}")
        stage = self.config.engine.stage
        model, users = await asyncio.to_thread(staged, Path(self.config.model.path), stage, say)
        logs = self.out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        try:
            for number, candidate in enumerate(self.candidates):
                key = self.keys[candidate.name]
                if key in self.done:
                    say(f"{candidate.name}: measured already")
                    continue
                foreseen = {"predicted": candidate.predicted(), "problem": candidate.problem}
                append(
                    self.file, {"kind": "predicted", "key": key, "name": candidate.name, **foreseen}
                )
                result = await self._one(number, candidate, key, model, logs)
                append(self.file, {"kind": "result", **asdict(result)})
                self.done[key] = result
                self.report(self.results())
                say(f"{candidate.name}: {found(result)}")
                if result.status == "wrong":
                    raise CanaryFailed(result.reason)
        finally:
            if users is not None and not self.config.engine.stage_keep:
                unstage(model, users)

    async def _one(
        self, number: int, candidate: Candidate, key: str, model: Path, logs: Path
    ) -> Result:
        """Start, measure and stop one candidate's server; whatever happens to it is a result."""
        config = with_flags(self.config, dict(candidate.server))
        flags = translate({"enable_metrics": True, **candidate.server}, self.version)
        environ = {}
        if self.accept_length and candidate.speculative:
            environ[SIMULATED] = f"{self.accept_length:g}"
        result = Result(
            key=key,
            name=candidate.name,
            why=candidate.why,
            server=dict(candidate.server),
            changes=dict(candidate.changes),
            speculative=candidate.speculative,
            predicted=candidate.predicted(),
            problem=candidate.problem,
        )

        def event(what: str, text: str) -> None:
            say(f"{candidate.name}: {what} {text}")

        async with http_transport() as http:
            server = Server(
                number, self.gpu, config, self.prompts, model, flags, logs, http, event, environ
            )
            began = time.monotonic()
            try:
                facts = await server.start()
                result.boot_s = round(time.monotonic() - began, 1)
                result.reported = reported(facts, server.log)
                result.notes = surprises(config, self.version, self.gpu, facts)
                say(f"{candidate.name}: ready after {result.boot_s:.0f} s")
                best = self._best()
                await measure(server, facts, config, self.sample.prompts, self.window, best, result)
            except CanaryFailed as error:
                result.status, result.reason = "wrong", str(error)
            except (StartFailed, ConfigError, Died) as error:
                result.status, result.reason = "failed", str(error)
            finally:
                await asyncio.shield(server.stop())
        result.finished_at = time.time()
        return result

    def _best(self) -> float | None:
        able = [r for r in self.results() if r.status == "measured"]
        return max(map(judge.speed, able), default=None)

    # ---- files ----

    def about(self) -> About:
        config, gpu, sampling = self.config, self.gpu, self.config.sampling
        spread = config.engine.rehearsal_tokens
        asked = f"temperature {sampling.temperature:g}, at most {sampling.max_new_tokens:,} tokens"
        if spread:
            asked = f"answers of fixed lengths, median {spread[0]}, 95 % up to {spread[1]} tokens"
        model, newest = Path(config.model.path), max(r.finished_at for r in self.results())
        described = orjson.loads((model / "config.json").read_bytes())
        try:
            gpus = len(usable_gpus(config.engine.gpus))
        except ConfigError:
            gpus = 1
        return About(
            model=model.name,
            model_path=str(model),
            model_key=self.model_key,
            architecture=str((described.get("architectures") or ["?"])[0]),
            sglang=self.version,
            gpu=gpu.name,
            gpu_mib=gpu.total_mib,
            rehearsal=config.engine.rehearsal,
            accept_length=self.accept_length,
            requests=self.sample.requests,
            gpus=max(gpus, 1),
            prompts=len(self.sample.prompts),
            prompt_tokens=self.sample.mean_tokens,
            source=self.sample.source,
            sampling=asked,
            window_s=self.window.window_s,
            interval_s=self.window.interval_s,
            made_at=datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%d %H:%M UTC"),
            planned=len(self.candidates),
        )

    def report(self, results: list[Result]) -> judge.Choice:
        """Write table.md and report.html."""
        about = self.about()
        choice = judge.choose(results, enforce=not about.rehearsal)
        write_atomically(self.out / "table.md", markdown(results, choice, about).encode())
        text = page(results, choice, about)
        write_atomically(self.out / "report.html", text.encode("utf-8", "replace"))
        return choice

    def finish(self) -> Iterator[str]:
        """Write the chosen flags, and say what came out."""
        results, about = self.results(), self.about()
        choice = self.report(results)
        if about.label:
            yield f"{about.label}."
        head, rows = before_and_after(results, choice, about)
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        for row in [head, *rows]:
            yield "  ".join(text.ljust(n) for text, n in zip(row, widths, strict=True)).rstrip()
        if choice.result is None:
            yield f"No choice: {choice.why}; {self.out / 'table.md'} says what befell each one."
            return
        yield f"Choice: {choice.result.name}, {choice.why}."
        path = self.out / "server.yaml"
        write_atomically(path, server_yaml(results, choice, about).encode())
        yield f"Tables: {self.out / 'table.md'}. Plots: {self.out / 'report.html'}."
        used = tuned_file(self.config.output_dir)
        hint = "" if path == used else f" once it is copied to {used}"
        yield f"Flags: {path}; engine.server: auto uses it{hint}."


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

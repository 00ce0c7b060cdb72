"""What a tune tries: the configuration's own flags, those a user names, those the plan proposes.

Each is predicted before any server starts, and of several that the plan predicts to run alike only
the first is tried.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.sglang.flags import plain, translate
from workflow_scripts.sglang.geometry import Geometry, read_model
from workflow_scripts.sglang.levers import Lever, largest, lever, levers
from workflow_scripts.sglang.memory import NEW, Plan, predict
from workflow_scripts.sglang.numerics import numeric_flags
from workflow_scripts.sglang.settings import read_flags

BASELINE = "baseline"
# Levers of the plan that can change speed. Others change the numbers of every answer (16-bit state,
# 8-bit KV), what a request may use, or nothing.
TRIED = {
    "radix cache and MTP off",
    "radix cache off",
    "more state slots",
    "scheduling strategy",
    "MTP off",
    "one draft token fewer",
    "replay in place of intermediate states",
}
HALVED = ("radix cache and MTP off", "radix cache off", "more requests")
LEAST_HALVED = 32  # half of fewer requests is not tried
DEFAULT_GRAPHS = 256  # SGLang's own cuda_graph_max_bs on a GPU of 60 to 160 GB
MTP = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
DUMMY = "speculative_draft_load_format"  # a draft of dummy weights must be dummy as well


@dataclass(frozen=True)
class Candidate:
    """Flags to try.

    `server` holds all of them as under engine.server, `changes` those that differ from the
    configuration's (None: taken away). `plan` is what the plan predicts; where there is none,
    `problem` says why.
    """

    name: str
    why: str
    server: Mapping[str, Any]
    changes: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    problem: str = ""

    @property
    def speculative(self) -> bool:
        return "speculative_algorithm" in numeric_flags(dict(self.server))

    def predicted(self) -> dict[str, Any] | None:
        """The prediction as it is written down."""
        if self.plan is None:
            return None
        names = ("max_running", "tokens", "slots", "per_request", "drafts", "radix", "binds")
        found = {name: getattr(self.plan, name) for name in names}
        found["gib"] = {name: round(size, 3) for name, size in self.plan.parts.items() if size}
        return found


def merged(server: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Flags with changes: None takes one away, however it is spelled."""
    touched = {plain(name) for name in changes}
    kept = {name: value for name, value in server.items() if plain(name) not in touched}
    return kept | {name: value for name, value in changes.items() if value is not None}


class Maker:
    """Makes candidates for one model, GPU and version.

    Args:
        server: the configuration's own flags.
        gpu_gib: free before the load; None where it is not known, and nothing is predicted.
        total_mib: the GPU's memory as its driver tells.
        request_tokens: of a usual request with its answer, for levers that look for the largest
            number of requests.
    """

    def __init__(
        self,
        model: Path,
        server: Mapping[str, Any],
        version: str,
        gpu_gib: float | None,
        total_mib: int | None,
        request_tokens: float | None = None,
    ):
        self.server = dict(server)
        self.version = version
        self.gpu_gib, self.total_mib = gpu_gib, total_mib
        self.request_tokens = request_tokens
        self.geometry: Geometry | None = None
        self.problem = "" if gpu_gib else "the driver does not tell how much memory the GPU has"
        try:
            flags = read_flags(server, version)
            dtype = str(flags.get("dtype", "auto"))
            self.geometry = read_model(model, dtype, flags.get("quantization"))
        except ConfigError as error:
            self.problem = str(error)

    def make(self, name: str, why: str, changes: Mapping[str, Any]) -> Candidate:
        """One candidate with its prediction.

        Raises:
            ConfigError: the version has no such flag or does not take its value.
        """
        server = merged(self.server, changes)
        translate(server, self.version)
        plan, problem = None, self.problem
        if self.geometry is not None and self.gpu_gib is not None:
            try:
                plan = predict(
                    self.geometry,
                    self.gpu_gib,
                    self.version,
                    server,
                    total_mib=self.total_mib,
                    request_tokens=self.request_tokens,
                )
            except ConfigError as error:
                problem = str(error)
        return Candidate(name, why, server, dict(changes), plan, problem)

    def all(self, named: Mapping[str, Mapping[str, Any]], most: int) -> list[Candidate]:
        """The baseline, the named ones, and as many of the plan's as make `most` in all."""
        base = self.make(BASELINE, "the configuration's own flags", {})
        found = [base]
        for name, changes in named.items():
            found.append(self.make(name, "named by the user", changes))
            self._refuse_same(found)
        del found[most:]  # all were checked; the same command with a larger number goes on
        seen = {_alike(c) for c in found if c.plan}
        for candidate in self._planned(base):
            if len(found) >= most:
                break
            if (likeness := _alike(candidate)) not in seen:
                seen.add(likeness)
                found.append(candidate)
        return found

    def _refuse_same(self, found: list[Candidate]) -> None:
        words = [sorted(translate(c.server, self.version)) for c in found]
        if words[-1] in words[:-1]:
            other = found[words.index(words[-1])].name
            raise ConfigError(f"--candidates: `{found[-1].name}` has the flags of `{other}`")

    def _planned(self, base: Candidate) -> Iterator[Candidate]:
        if base.plan is None:
            return
        found = [x for x in levers(base.plan) if x.name in TRIED and x.plan is not None]
        found = [*found, *_further(base.plan)]
        made = [(one, one.name, dict(one.flags)) for one in found]
        for one in found:
            half = one.max_running // 2
            if one.name in HALVED and half >= LEAST_HALVED:
                fewer = {**one.flags, "max_running_requests": half}
                made.append((one, f"{one.name}, {half} requests", fewer))
        candidates = [self._from_lever(base.plan, *one) for one in made]
        yield from sorted(candidates, key=_most_requests_first)

    def _from_lever(self, base: Plan, one: Lever, name: str, changes: dict[str, Any]) -> Candidate:
        most = changes.get("max_running_requests", one.max_running)
        # A step with more requests than the largest CUDA graph runs without one, much slower.
        if most > base.inputs.flags.get("cuda_graph_max_bs", DEFAULT_GRAPHS):
            changes["cuda_graph_max_bs"] = most
        if base.inputs.flags.get("load_format") == "dummy" and "speculative_algorithm" in changes:
            dummy = changes["speculative_algorithm"] is not None
            changes[DUMMY] = "dummy" if dummy else None
        return self.make(name, "by the plan", changes)


def _most_requests_first(candidate: Candidate) -> int:
    return -candidate.plan.max_running if candidate.plan else 0


def _further(plan: Plan) -> Iterator[Lever]:
    """Levers for a configuration that has already taken the plan's first ones."""
    if not plan.radix or not plan.inputs.model.gdn_layers:
        note = "as many as fit"
        found = largest(plan, "more requests", lambda n: {"max_running_requests": n}, note)
        if found.max_running > plan.max_running:
            yield found
    model, old = plan.inputs.model, plan.rules != NEW
    if model.mtp_layers and not plan.drafts:
        if model.gdn_layers and plan.radix and old:
            buffered = {**MTP, "mamba_scheduler_strategy": "extra_buffer"}
            yield lever(plan, "MTP on", buffered)
        else:
            yield largest(plan, "MTP on", lambda n: {**MTP, "max_running_requests": n}, "")


def _alike(candidate: Candidate) -> tuple[Any, ...]:
    """What makes two candidates run alike, by the plan."""
    plan = candidate.plan
    if plan is None:
        return (candidate.name,)
    numeric = sorted(numeric_flags(dict(candidate.server)).items())
    others = {"mamba_scheduler_strategy", "enable_linear_replayssm_spec"}
    flags = plan.inputs.flags
    strategy = tuple(flags.get(name) for name in sorted(others))
    return plan.max_running, plan.drafts, plan.radix, str(numeric), strategy


def read_named(path: Path) -> dict[str, dict[str, Any]]:
    """The candidates of a user's file: names, each with flags that are added to engine.server; a
    null takes one away.

    Raises:
        ConfigError: the file is something else.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--candidates: {path} cannot be read: {error}") from None
    if not (isinstance(found, dict) and all(isinstance(v, dict) for v in found.values())):
        raise ConfigError(
            f"--candidates: {path} must hold names, each with flags as under engine.server; they "
            "are added to the configuration's, and null takes one away"
        )
    if BASELINE in found:
        raise ConfigError(
            f"--candidates: {path}: `{BASELINE}` is the configuration's own engine.server; give "
            "it another name"
        )
    return {" ".join(str(name).split()): flags for name, flags in found.items()}

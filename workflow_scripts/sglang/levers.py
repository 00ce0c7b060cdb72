"""What each change of flags would give, by the plan."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.sglang.flags import RENAMED, known
from workflow_scripts.sglang.memory import NEW, Plan, change
from workflow_scripts.sglang.numerics import NUMERIC_FLAGS

REQUEST_TOKENS = 4096  # of a request, where nobody says how long they are
MOST_RUNNING = 512  # no lever proposes more requests at once
SPARE_GIB = 1.5  # a lever leaves at least this for CUDA graphs; an H200 took 0.2 to 2.1
SPECULATION = (
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "speculative_draft_load_format",
)  # fmt: skip
NO_RADIX = {
    "disable_radix_cache": True,
    "mamba_scheduler_strategy": None,
    "max_mamba_cache_size": None,
}


@dataclass(frozen=True)
class Lever:
    """One change and what it would give. `plan` is None where SGLang would not start with it."""

    name: str
    flags: Mapping[str, Any]  # by the version's names; None: to be left out
    plan: Plan | None
    freed_gib: float  # for KV tokens and whatever else can use it
    warning: str = ""
    note: str = ""

    @property
    def max_running(self) -> int:
        return self.plan.max_running if self.plan else 0

    @property
    def tokens(self) -> int:
        return self.plan.tokens if self.plan else 0


def levers(plan: Plan) -> list[Lever]:
    """What each single change would give, the most requests first; then what needs care, what has
    no effect and what SGLang would not start with."""
    found = list(_levers(plan))

    def rank(lever: Lever) -> tuple[bool, bool, int, int]:
        same = (lever.max_running, lever.tokens) == (plan.max_running, plan.tokens)
        return lever.plan is None, same, -lever.max_running, -lever.tokens

    return sorted(found, key=rank)


def _levers(plan: Plan) -> Iterator[Lever]:
    hybrid, new = plan.inputs.model.gdn_layers > 0, plan.rules == NEW
    length = plan.inputs.request_tokens or REQUEST_TOKENS
    room = f"as many as leave {length:,.0f} tokens a request"
    if hybrid and plan.requested and plan.slots // plan.per_request < plan.requested:
        exact = {"max_running_requests": plan.max_running}
        note = "reserves nothing for requests that cannot run" if not new else ""
        yield lever(plan, "ask for no more than the slots hold", exact, note)
    if hybrid and plan.radix:
        yield largest(plan, "more state slots", lambda n: _slots(n, plan.per_request), room)
    if hybrid and plan.radix:
        note = f"{room}; prompts that begin alike are computed each time"
        yield largest(plan, "radix cache off", lambda n: NO_RADIX | _limit(n), note)
    if hybrid and plan.radix and plan.drafts:
        note = f"{room}; two changes at once"
        off = dict.fromkeys(SPECULATION) | NO_RADIX
        yield largest(plan, "radix cache and MTP off", lambda n: off | _limit(n), note)
    if hybrid and new and plan.radix and plan.per_request == 5:
        lazy = {"mamba_scheduler_strategy": "extra_buffer_lazy"}
        yield lever(plan, "scheduling strategy", lazy, "4 slots a request; new, check answers")
    if hybrid and not new and plan.radix and plan.per_request > 3:
        plain = {"mamba_scheduler_strategy": "no_buffer"}
        yield lever(plan, "scheduling strategy", plain, "no overlap of scheduling and computing")
    if plan.drafts:
        note = "a step gives one token; measure which is faster at this many requests"
        yield lever(plan, "MTP off", dict.fromkeys(SPECULATION), note)
    if plan.drafts > 2:
        fewer = {"speculative_num_steps": plan.drafts - 2, "speculative_eagle_topk": 1}
        fewer |= {"speculative_num_draft_tokens": plan.drafts - 1}
        yield lever(plan, "one draft token fewer", fewer)
    if hybrid and new and plan.drafts and not plan.inputs.flags.get("enable_linear_replayssm_spec"):
        replay = {"enable_linear_replayssm_spec": True}
        yield lever(plan, "replay in place of intermediate states", replay, "new, check answers")
    state = plan.inputs.flags.get("mamba_ssm_dtype")
    if hybrid and state in (None, "float32") and plan.inputs.model.state_bytes == 4:
        yield lever(plan, "state in 16 bits", {"mamba_ssm_dtype": "bfloat16"})
    if plan.inputs.flags.get("kv_cache_dtype", "auto") in ("auto", "bf16", "bfloat16"):
        note = "of use only where KV tokens bind"
        yield lever(plan, "KV cache in 8 bits", {"kv_cache_dtype": "fp8_e4m3"}, note)
    if plan.context > 8192:
        half = {"context_length": plan.context // 2}
        note = "caps what a request may use; the caches keep their sizes"
        yield lever(plan, "half the context", half, note)
    if plan.fraction < 0.95:
        more = {"mem_fraction_static": round(min(plan.fraction + 0.05, 0.95), 3)}
        yield lever(plan, "a larger memory fraction", more, "out of what graphs and prefill need")
    if (
        new
        and plan.inputs.model.vision_weights
        and not plan.inputs.flags.get("language_model_only")
    ):
        yield lever(plan, "no vision tower", {"language_model_only": True})
    note = "no effect on memory: only how often the scheduler looks for new requests"
    yield lever(plan, "more decode steps at once", {"num_continuous_decode_steps": 4}, note)


def _limit(number: int) -> dict[str, Any]:
    return {"max_running_requests": number}


def _slots(number: int, each: int) -> dict[str, Any]:
    return _limit(number) | {"max_mamba_cache_size": number * each}


def _usable(plan: Plan) -> float:
    cached = plan.parts["K"] + plan.parts["V"] + plan.parts["draft KV"]
    return cached + plan.free - plan.unusable


def lever(plan: Plan, name: str, flags: Mapping[str, Any], note: str = "") -> Lever:
    """A lever that sets flags, given by 0.5.11's names."""
    own = known(plan.inputs.version)
    renamed = {old: new for old, new in RENAMED if old not in own}
    flags = {key: value for key, value in flags.items() if value != plan.inputs.flags.get(key)}
    written = {renamed.get(key, key): value for key, value in flags.items()}
    if numeric := sorted(flags.keys() & NUMERIC_FLAGS.keys()):
        what = "changes numerics" if flags[numeric[0]] else "may change single tokens"
        warning = f"{what}: {', '.join(numeric)} is part of the run's hash"
    else:
        warning = ""
    try:
        changed = change(plan, flags)
    except ConfigError as error:
        return Lever(name, written, None, 0.0, warning, str(error))
    return Lever(name, written, changed, _usable(changed) - _usable(plan), warning, note)


def largest(plan: Plan, name: str, flags: Callable[[int], Mapping[str, Any]], note: str) -> Lever:
    """The lever with the largest number of requests that still fits."""
    length = plan.inputs.request_tokens or REQUEST_TOKENS

    def fits(number: int) -> bool:
        try:
            changed = change(plan, flags(number))
        except ConfigError:
            return False
        enough = changed.tokens >= number * length and changed.lowest >= SPARE_GIB
        return changed.max_running >= number and enough

    low, high = 1, MOST_RUNNING + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return lever(plan, name, flags(low), note)

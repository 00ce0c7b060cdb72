"""What SGLang will make of a GPU's memory when it starts, computed as its sources compute it.

Two sets of rules: those of SGLang 0.5.11 (until 0.5.12) and of 0.5.23 (from 0.5.13 on). They differ
in what speculation reserves: the old one holds intermediate states for the requests that were asked
for, the new one for those that will run. Sizes are checked against logs of 0.5.11; those of 0.5.23
are read from its sources alone. GiB is what SGLang's logs call GB.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.sglang.geometry import Geometry, read_model
from workflow_scripts.sglang.observed import Observed
from workflow_scripts.sglang.settings import Inputs, NoRoom, Settings, read_flags, resolve
from workflow_scripts.sglang.units import GIB
from workflow_scripts.sglang.version import version_key

OWN_GIB = 1.27  # of nvidia-smi's total, gone before the load: driver and CUDA context, on one H200
OLD, NEW = "0.5.11", "0.5.23"
# SGLang takes its measure of the free memory a little before it logs it: found on the seven starts
# of tests/data, of which the one with the smallest memory fraction needs 0.06.
EARLIER_GIB = 0.06
CHANGED = (0, 5, 13)  # from here on the new rules, or all but a padding slot of them


@dataclass(frozen=True)
class Plan:
    """What the server will report, and where the GPU's memory goes (GiB)."""

    inputs: Inputs
    rules: str
    fraction: float
    requested: int | None
    radix: bool
    slots: int
    per_request: int  # slots that a running request holds
    drafts: int
    max_running: int
    tokens: int
    page: int
    context: int
    binds: str
    parts: Mapping[str, float]  # sums up to inputs.gpu_gib
    pool_end: float  # as "Memory pool end" says, before an old version loads its draft
    free: float  # for graphs, activations and what else comes
    lowest: float  # the same while an old version loads its draft
    unusable: float  # of `free`, reserved for requests that cannot run
    usual: float  # what SGLang's own rule keeps for graphs and activations
    warnings: tuple[str, ...] = ()

    @property
    def tokens_per_request(self) -> float:
        return self.tokens / self.max_running


def predict(
    model: Geometry | Path,
    gpu_gib: float,
    version: str,
    server: Mapping[str, Any],
    *,
    total_mib: int | None = None,
    request_tokens: float | None = None,
    observed: "Observed | None" = None,
) -> Plan:
    """The plan for a model on one GPU.

    Args:
        model: a folder in Hugging Face layout, or what `read_model` found there.
        gpu_gib: memory that is free before the load, as "Load weight begin" says.
        version: of SGLang.
        server: flags as the user writes them under engine.server, in any version's spelling.
        total_mib: the GPU's memory by nvidia-smi; decides SGLang's defaults. Else estimated.
        request_tokens: prompt and answer of a usual request, to say whether the KV cache binds.
        observed: of a log of this model on this GPU; its memory takes the place of the estimates.

    Raises:
        NoRoom: SGLang would not start.
        ConfigError: a flag, a version or a model that the plan does not understand.
    """
    if len(version_key(version)) < 3:
        raise ConfigError(f"{version!r} is not a version of SGLang; write it as 0.5.11")
    flags = read_flags(server, version)
    if isinstance(model, Path):
        model = read_model(model, str(flags.get("dtype", "auto")), flags.get("quantization"))
    if not 0 < gpu_gib < 2**20:
        raise ConfigError(f"{gpu_gib} GiB of GPU memory are not possible")
    total = total_mib or round((gpu_gib + OWN_GIB) * 1024)
    inputs = Inputs(model, gpu_gib, version, flags, total, request_tokens=request_tokens)
    return compute(inputs) if observed is None else compute(_fitted(inputs, observed))


def fit(plan: Plan, observed: "Observed") -> Plan:
    """The same plan with the memory that a log reports in place of the estimates."""
    return compute(_fitted(plan.inputs, observed))


def change(plan: Plan, flags: Mapping[str, Any]) -> Plan:
    """The plan with some flags (0.5.11's names) changed; None takes one away."""
    merged = {**plan.inputs.flags, **flags}
    kept = {name: value for name, value in merged.items() if value is not None}
    weights, text_only = plan.inputs.weights_gib, "language_model_only"
    if weights is not None and kept.get(text_only) and not plan.inputs.flags.get(text_only):
        weights -= plan.inputs.model.vision_weights / GIB
    return compute(replace(plan.inputs, flags=kept, weights_gib=weights))


def _fitted(inputs: Inputs, observed: "Observed") -> Inputs:
    free = inputs.gpu_gib if observed.free is None else observed.free
    earlier = 0.0 if observed.free is None else EARLIER_GIB
    return replace(inputs, gpu_gib=free, earlier_gib=earlier, weights_gib=observed.weights)


def compute(inputs: Inputs) -> Plan:
    """All sizes, in the order in which SGLang decides them (0.5.11: model_executor/
    model_runner_kv_cache_mixin.py, pool_configurator.py; 0.5.23: mem_cache/
    kv_cache_configurator.py, model_executor/pool_configurator.py)."""
    new = version_key(inputs.version)[:3] >= CHANGED
    model, s = inputs.model, resolve(inputs, new)
    gib = inputs.gpu_gib
    weights = _weights(inputs, new)
    own_draft = s.drafts > 0 and model.mtp_layers > 0
    draft = model.draft_weights / GIB if own_draft else 0.0
    # _profile_available_bytes; the old one is called before the draft is loaded
    rest = gib - weights - (draft if new else 0.0) - s.vision_gib
    rest -= (gib + inputs.earlier_gib) * (1 - s.fraction)
    slots = 0
    if model.gdn_layers:
        slots, rest = _new_slots(s, model, rest) if new else _old_slots(s, model, rest)
    tokens = _tokens(s, model, rest, new and own_draft)
    if tokens <= 0 or slots < 0:
        raise NoRoom(_no_room(inputs, s, weights, rest))
    running, binds = _running(s, new, slots, tokens, inputs)
    parts = _parts(s, new, model, slots, tokens, running)
    pools = sum(parts.values())
    draft_kv = 0.0
    if own_draft:
        draft_kv = (tokens + s.page) * model.token_bytes(s.kv_bytes, model.mtp_layers) / GIB
    pool_end = gib - weights - pools - (draft if new else 0.0)
    free = gib - weights - pools - draft - draft_kv
    lowest = free - (model.draft_transient / GIB if own_draft and not new else 0.0)
    if lowest < 0:
        raise NoRoom(
            f"SGLang would run out of memory: {gib - lowest:.2f} GiB are needed, {gib:.2f} are "
            "there; lower mem_fraction_static or max_running_requests"
        )
    return Plan(
        inputs=inputs,
        rules=NEW if new else OLD,
        fraction=s.fraction,
        requested=s.requested,
        radix=s.radix,
        slots=slots,
        per_request=s.per_request,
        drafts=s.drafts,
        max_running=running,
        tokens=tokens,
        page=s.page,
        context=s.context,
        binds=binds,
        parts={"weights": weights, **parts, "draft weights": draft, "draft KV": draft_kv}
        | {"free": free},
        pool_end=pool_end,
        free=free,
        lowest=lowest,
        unusable=min(_unusable(s, new, model, running), free),
        usual=s.usual,
        warnings=(*_version_warning(inputs.version, new), *s.warnings),
    )


def _tokens(s: Settings, model: Geometry, rest: float, with_draft: bool) -> int:
    """KV tokens that fit (DefaultPoolConfigurator; only 0.5.23 counts the draft's share)."""
    cell = model.token_bytes(s.kv_bytes)
    cell += int(cell * model.mtp_layers / model.full_layers) if with_draft else 0
    tokens = int(rest * GIB) // cell // s.page * s.page
    return tokens if s.most_tokens is None else min(tokens, s.most_tokens) // s.page * s.page


def _version_warning(version: str, new: bool) -> list[str]:
    if version.split("+")[0] in (OLD, NEW):
        return []
    rules = NEW if new else OLD
    return [f"SGLang {version} is planned by the rules of {rules}; a start may differ"]


def _weights(inputs: Inputs, new: bool) -> float:
    if inputs.weights_gib is not None:
        return inputs.weights_gib
    model = inputs.model
    text_only = new and inputs.flags.get("language_model_only")
    return (model.weights - (model.vision_weights if text_only else 0)) / GIB


def _no_room(inputs: Inputs, s: Settings, weights: float, rest: float) -> str:
    given = inputs.gpu_gib * s.fraction
    return (
        f"SGLang would not start: of {inputs.gpu_gib:.2f} GiB, mem_fraction_static "
        f"{s.fraction:.3f} gives {given:.2f} to weights and caches; the weights take "
        f"{weights:.2f}, and after the state cache {rest:.2f} are left for KV tokens. Raise "
        "mem_fraction_static, or lower max_mamba_cache_size or max_running_requests"
    )


def _old_slots(s: Settings, model: Geometry, rest: float) -> tuple[int, float]:
    """handle_max_mamba_cache of 0.5.11: speculation reserves for the requests asked for."""
    slot = model.slot(s.state_bytes) / GIB
    rest -= slot * (s.requested or 0) * s.drafts
    if s.slots is not None:
        slots = s.slots
    elif not s.radix and s.requested is not None:
        slots = s.requested
    else:
        slots = int(rest * s.ratio / (1 + s.ratio) // slot)
    return slots, rest - slots * slot


def _new_slots(s: Settings, model: Geometry, rest: float) -> tuple[int, float]:
    """_handle_max_mamba_cache of 0.5.23: reserves for what can run, and for padding slots."""
    slot, asked = model.slot(s.state_bytes) / GIB, s.requested or 0
    fixed = model.ring(s.replay) / GIB * (asked + 1)
    drafts = 0 if s.replay else s.drafts
    if s.slots is not None:
        slots = s.slots
    elif not s.radix and s.requested is not None:
        slots = s.requested
    else:
        budget = rest * s.ratio / (1 + s.ratio) - slot * (1 + drafts) - fixed
        slots = int(budget // (slot * (1 + drafts / s.per_request)))
    if drafts:
        rest -= slot * (min(asked, slots // s.per_request) + 1) * drafts
    return slots if slots > 0 else -1, rest - (slots + 1) * slot - fixed


def _running(s: Settings, new: bool, slots: int, tokens: int, inputs: Inputs) -> tuple[int, str]:
    """max_running_requests and what decides it (_resolve_max_num_reqs, resolve_max_num_reqs)."""
    estimate = max(min(int(tokens / s.context * 512), 4096), 2048)
    limits: dict[str, int] = {}
    if inputs.model.gdn_layers:
        limits["state"] = slots // s.per_request
    if new or s.requested is None:
        limits["tokens"] = tokens // 2
    if s.requested is not None:
        limits["requested"] = s.requested
    if s.requested is None or not new:
        limits["estimate"] = estimate
    running = min(limits.values())
    if running <= 0:
        raise NoRoom(
            f"SGLang would not start: {slots} state slots are too few for a request, which takes "
            f"{s.per_request}; raise max_mamba_cache_size"
        )
    asked = "" if s.requested in (None, running) else f"; {s.requested} were asked for"
    fits = inputs.request_tokens and tokens / inputs.request_tokens
    if fits and fits < running:
        return running, (
            f"KV tokens: {tokens:,} hold {int(fits):,} requests of {inputs.request_tokens:,.0f} "
            f"tokens, though {running:,} are let in"
        )
    if running == limits.get("requested"):
        more = ""
        if s.slots is not None and limits.get("state", 0) > running:
            more = f"; the state slots would let in {limits['state']:,}"
        elif s.slots is not None and limits.get("state") == running:
            more = f", which is what {slots:,} state slots hold at {s.per_request} a request"
        return running, f"the requested limit, {running:,} requests{more}"
    if running == limits.get("state"):
        return running, (
            f"state slots: {slots:,} slots, {s.per_request} a request, make {running:,} "
            f"requests{asked}"
        )
    if running == limits.get("tokens"):
        return running, f"KV tokens: {tokens:,} tokens, at least two a request{asked}"
    return running, f"SGLang's own estimate of requests, {running:,}{asked}"


def _parts(
    s: Settings, new: bool, model: Geometry, slots: int, tokens: int, running: int
) -> dict[str, float]:
    """What is allocated for the model (mem_cache/memory_pool.py: MambaPool, MHATokenToKVPool,
    ReqToTokenPool): a padding slot and a padding page come on top."""
    half = (tokens + s.page) * model.token_bytes(s.kv_bytes) / 2
    held = (running + 1) * s.drafts
    conv = held * model.conv()
    if new and s.linear and s.drafts:  # windows that overlap are stored once
        conv = (running + 1) * model.conv(s.drafts + model.conv_kernel - 2)
    padded = slots + 1 if model.gdn_layers else 0
    found = {
        "state (SSM)": padded * model.ssm(s.state_bytes),
        "state (conv)": padded * model.conv() if padded else 0,
        "intermediate state (SSM)": 0 if s.replay else held * model.ssm(s.state_bytes),
        "intermediate state (conv)": conv if padded else 0,
        "replay ring": (running + 1) * model.ring(s.replay),
        "K": half,
        "V": half,
        "request table": running * (s.context + 4 + s.drafts) * 4,
    }
    return {name: size / GIB for name, size in found.items()}


def _unusable(s: Settings, new: bool, model: Geometry, running: int) -> float:
    idle = max((s.requested or 0) - running, 0)
    if new:
        return idle * model.ring(s.replay) / GIB
    return idle * s.drafts * model.slot(s.state_bytes) / GIB

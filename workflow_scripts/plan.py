"""Say before a start what SGLang will make of a GPU's memory, what binds, and what would help.

    python -m workflow_scripts.plan --configfile my-run.yaml --gpu-gib 139.13

Needs no GPU and no SGLang. With --log, a server's log of an earlier start, its weights and memory
take the place of the estimates, and what it reports is held against the plan.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from workflow_scripts.config import ConfigError, load
from workflow_scripts.gpus import all_gpus
from workflow_scripts.identity import NUMERIC_FLAGS
from workflow_scripts.plan_settings import NoRoom
from workflow_scripts.plan_sizes import (
    NEW,
    OLD,
    OWN_GIB,
    Observed,
    Plan,
    change,
    fit,
    from_log,
    from_server_info,
    predict,
)
from workflow_scripts.sglang_flags import RENAMED, known
from workflow_scripts.tuned import read_tuned, tuned_file

__all__ = [
    "Lever", "NoRoom", "Observed", "Plan", "change", "compare", "fit", "from_log",
    "from_server_info", "levers", "predict",
]  # fmt: skip

REQUEST_TOKENS = 4096  # of a request, where nobody says how long they are
MOST_RUNNING = 512  # no lever proposes more requests at once
SPARE_GIB = 1.5  # a lever leaves at least this for CUDA graphs; an H200 took 0.2 to 2.1
GRAPHS_SHARE = 0.5  # of SGLang's own reserve: less than this left is called tight
TOLERANCE = 0.01  # of KV tokens, between a plan and a server
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


# ---- levers -------------------------------------------------------------------------------------


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


# ---- a plan against a server --------------------------------------------------------------------


def compare(plan: Plan, observed: Observed) -> list[str]:
    """Warnings: what the server did not do as it was told, with the remedy, and where the plan was
    wrong. Empty where all is well."""
    lines = []
    got = observed.max_running
    if got is not None and plan.requested is not None and got < plan.requested:
        lines.append(_clamped(plan, got, observed.slots or plan.slots))
    elif got is not None and got != plan.max_running:
        lines.append(f"SGLang runs {got:,} requests at once, the plan said {plan.max_running:,}")
    if plan.slots and observed.slots is not None and observed.slots != plan.slots:
        lines.append(f"SGLang has {observed.slots:,} state slots, the plan said {plan.slots:,}")
    wanted = plan.inputs.flags.get("max_total_tokens")
    if observed.tokens is not None:
        if wanted is not None and observed.tokens < wanted // plan.page * plan.page:
            lines.append(
                f"asked for {wanted:,} KV tokens, SGLang has {observed.tokens:,}: the memory holds "
                "no more; raise mem_fraction_static, or leave max_total_tokens out"
            )
        off = observed.tokens / plan.tokens - 1
        if abs(off) > TOLERANCE:
            lines.append(
                f"SGLang has {observed.tokens:,} KV tokens, the plan said {plan.tokens:,} "
                f"({off:+.1%}); something else may hold memory of the GPU"
            )
    if observed.context is not None and observed.context != plan.context:
        lines.append(f"SGLang's context is {observed.context:,}, the plan said {plan.context:,}")
    return lines


def _clamped(plan: Plan, got: int, slots: int) -> str:
    asked = "max_running_requests" in plan.inputs.flags
    who = "asked for" if asked else "SGLang's limit with speculation is"
    text = f"{who} {plan.requested:,} requests at once, SGLang runs {got:,}"
    if not plan.slots or slots // plan.per_request > got:
        return f"{text}: the KV cache holds no more; raise mem_fraction_static, or ask for {got:,}"
    need = (plan.requested or 0) * plan.per_request
    text += f": it has {slots:,} state slots and a request takes {plan.per_request}"
    text += f"; set max_mamba_cache_size to {need:,}, or max_running_requests to {got:,}"
    if plan.unusable > 0.05:
        text += f", which frees {plan.unusable:.1f} GiB that wait for requests that cannot run"
    return text


# ---- the page -----------------------------------------------------------------------------------


def show(plan: Plan, observed: Observed | None = None) -> Iterator[str]:
    """The plan as lines of text."""
    model = plan.inputs.model
    yield (
        f"{model.architecture}, SGLang {plan.inputs.version}, {plan.inputs.gpu_gib:.2f} GiB free "
        f"before the load, mem_fraction_static {plan.fraction:.3f}"
    )
    yield ""
    source = "by the log" if plan.inputs.weights_gib is not None else model.weights_from
    notes = {"weights": source, "state (SSM)": f"{plan.slots:,} slots and a spare one"}
    notes["intermediate state (SSM)"] = f"{plan.drafts} a running request, for speculation"
    notes["free"] = f"for graphs and activations; SGLang's own rule keeps {plan.usual:.1f}"
    for name, size in plan.parts.items():
        if size or name in ("weights", "free"):
            yield f"  {name:26}{size:8.2f} GiB  {notes.get(name, '')}".rstrip()
    yield f"  {'together':26}{sum(plan.parts.values()):8.2f} GiB"
    yield ""
    yield f"  {plan.max_running:,} requests at once, {plan.tokens:,} KV tokens " + (
        f"({plan.tokens_per_request:,.0f} a request), context {plan.context:,}"
    )
    yield f"  bound by {plan.binds}"
    if plan.unusable > 0.05:
        yield f"  {plan.unusable:.1f} GiB of what is free are reserved for requests that cannot run"
    for line in warnings(plan):
        yield f"  WARN  {line}"
    yield ""
    yield "  requests   KV tokens  GiB freed  change"
    for lever in levers(plan):
        flags = ", ".join(
            f"{name}: {str(value).lower() if isinstance(value, bool) else value}"
            for name, value in lever.flags.items()
            if value is not None
        )
        gone = ", ".join(name for name, value in lever.flags.items() if value is None)
        what = "; ".join(filter(None, (flags, gone and f"without {gone}")))
        numbers = f"  {lever.max_running:8,} {lever.tokens:11,} {lever.freed_gib:+10.2f}"
        start = numbers if lever.plan else f"  {'does not start':>31}"
        yield f"{start}  {lever.name}: {what}"
        if said := "; ".join(filter(None, (lever.warning, lever.note))):
            yield f"{'':37}{said}"
    if observed is not None:
        yield ""
        yield from _table(plan, observed)


def warnings(plan: Plan) -> list[str]:
    """What to know before a start with this plan."""
    lines = list(plan.warnings)
    asked = plan.inputs.flags.get("max_running_requests")
    if plan.max_running < (asked or 0) or plan.unusable > 0.05:
        lines.append(_clamped(plan, plan.max_running, plan.slots))
    if plan.lowest < SPARE_GIB:
        lines.append(
            f"only {plan.lowest:.1f} GiB are left at the narrowest point of the start; lower "
            "mem_fraction_static"
        )
    elif plan.free < plan.usual * GRAPHS_SHARE:
        lines.append(
            f"{plan.free:.1f} GiB are little for graphs and activations; lower "
            "mem_fraction_static or chunked_prefill_size"
        )
    return lines


def _table(plan: Plan, observed: Observed) -> Iterator[str]:
    parts = plan.parts
    rows: list[tuple[str, float, float | None]] = [
        ("weights, GiB", parts["weights"], observed.weights),
        ("slots", plan.slots, observed.slots),
        ("state (SSM), GiB", parts["state (SSM)"], observed.ssm),
        ("state (conv), GiB", parts["state (conv)"], observed.conv),
        ("intermediate (SSM), GiB", parts["intermediate state (SSM)"], observed.intermediate_ssm),
        (
            "intermediate (conv), GiB",
            parts["intermediate state (conv)"],
            observed.intermediate_conv,
        ),
        ("KV tokens", plan.tokens, observed.tokens),
        ("K, GiB", parts["K"], observed.k),
        ("V, GiB", parts["V"], observed.v),
        ("draft KV, GiB", parts["draft KV"], _sum(observed.draft_k, observed.draft_v)),
        ("free after the caches, GiB", plan.pool_end, observed.pool_end),
        ("requests at once", plan.max_running, observed.max_running),
    ]
    yield f"  {'':28}{'predicted':>12}{'reported':>12}"
    for name, ours, theirs in rows:
        if theirs is not None:
            form = "12,.2f" if "GiB" in name else "12,.0f"
            yield f"  {name:28}{ours:{form}}{theirs:{form}}"
    for line in compare(plan, observed):
        yield f"  WARN  {line}"


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--configfile", type=Path, default=Path("config/config.yaml"))
    parser.add_argument("--gpu-gib", type=float, help="free before the load; else the GPU found")
    parser.add_argument("--sglang", default=OLD, help=f"version, {OLD} unless given")
    parser.add_argument("--log", type=Path, help="a server's log of an earlier start")
    parser.add_argument("--request-tokens", type=float, help="prompt and answer of a usual request")
    args = parser.parse_args(argv)
    try:
        for line in _plan(args):
            print(line)
    except (ConfigError, OSError, ValueError, yaml.YAMLError) as error:
        print(f"FAIL  {error}")
        return 1
    return 0


def _plan(args: argparse.Namespace) -> Iterator[str]:
    config = load(yaml.safe_load(args.configfile.read_text(encoding="utf-8")) or {})
    observed = from_log(args.log.read_text(errors="replace")) if args.log else None
    gib, total = args.gpu_gib, None
    if gib is None and (sizes := [gpu.total_mib for gpu in all_gpus() if gpu.total_mib]):
        total = min(sizes)
        gib = total / 1024 - OWN_GIB
    if gib is None and observed is not None:
        gib = observed.free
    if gib is None:
        raise ConfigError("no GPU was found; give its memory with --gpu-gib, e.g. 139.13 (H200)")
    server, auto = config.engine.server, ""
    if server == "auto":
        if tuned_file(config.output_dir).exists():
            found = read_tuned(config)
            server, auto = found["server"], f"engine.server is auto: `{found.get('chosen')}`"
        else:
            server, auto = {}, "engine.server is auto and there is no tune yet: SGLang's defaults"
    if auto:
        yield auto
        yield ""
    plan = predict(
        Path(config.model.path),
        gib,
        args.sglang,
        server,
        total_mib=total,
        request_tokens=args.request_tokens,
        observed=observed,
    )
    yield from show(plan, observed)


if __name__ == "__main__":
    raise SystemExit(main())

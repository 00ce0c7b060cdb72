"""A plan held against the server that was started by it."""

from workflow_scripts.sglang.memory import Plan
from workflow_scripts.sglang.observed import Observed

TOLERANCE = 0.01  # of KV tokens, between a plan and a server


def compare(plan: Plan, observed: Observed) -> list[str]:
    """Warnings: what the server did not do as it was told, with the remedy, and where the plan was
    wrong. Empty where all is well."""
    lines = []
    got = observed.max_running
    if got is not None and plan.requested is not None and got < plan.requested:
        lines.append(clamped(plan, got, observed.slots or plan.slots))
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


def clamped(plan: Plan, got: int, slots: int) -> str:
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

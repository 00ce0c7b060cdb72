"""Say before a start what SGLang will make of a GPU's memory, what binds, and what would help.

    python -m workflow_scripts.plan --configfile my-run.yaml --gpu-gib 139.13

Needs no GPU and no SGLang. With --log, a server's log of an earlier start, its weights and memory
take the place of the estimates, and what it reports is held against the plan.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import yaml

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.load import load
from workflow_scripts.serve.gpus import all_gpus
from workflow_scripts.serve.tuned import read_tuned, tuned_file
from workflow_scripts.sglang.compare import clamped, compare
from workflow_scripts.sglang.levers import SPARE_GIB, levers
from workflow_scripts.sglang.memory import OLD, OWN_GIB, Plan, predict
from workflow_scripts.sglang.observed import Observed, from_log

GRAPHS_SHARE = 0.5  # of SGLang's own reserve: less than this left is called tight


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
        lines.append(clamped(plan, plan.max_running, plan.slots))
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

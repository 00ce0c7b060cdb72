"""The audit's verdict, and its ten lines for the terminal."""

from typing import Any

from workflow_scripts.base.log import printable

SHOWN = 5  # findings that the terminal shows


def verdict(found: dict[str, Any]) -> tuple[str, list[str]]:
    """The verdict on the responses, and the numbers that led to it."""
    share, limits, rows = found["trivial_share"], found["thresholds"], found["accepted"]
    if not rows:
        return "worthless", ["no line of the input can be used"]
    if found["response_classes"].get("missing") == rows:
        return "worthless", [f"none of the {rows:,} rows has a response: a set of prompts to ask"]
    said = f"{found['flagged']:,} of {rows:,} responses ({100 * share:.1f} %) are trivial"
    worst = [f["text"] for f in found["findings"] if _counts(f, limits["suspicious"])]
    if share >= limits["worthless"]:
        return "worthless", [f"{said}; worthless from {100 * limits['worthless']:g} % on", *worst]
    if share >= limits["suspicious"]:
        return "suspicious", [
            f"{said}; suspicious from {100 * limits['suspicious']:g} % on",
            *worst,
        ]
    return ("suspicious" if worst else "ok"), [said, *worst]


# Findings that make a set suspicious whatever its responses are worth: the first always, the others
# where they are of as many rows as trivial responses must be.
ALWAYS = ("bad_source", "bad_stretch", "missing_columns")
OF_MANY = ("template_refused", "left_out_by_template")


def _counts(finding: dict[str, Any], share: float) -> bool:
    name = finding["name"]
    return name in ALWAYS or (name in OF_MANY and finding["share"] >= share)


def _price(cost: dict[str, Any]) -> str:
    hours = cost["gpu_hours"]
    time = f"{hours:,.1f} GPU hours" if hours >= 1 else f"{60 * hours:,.1f} GPU minutes"
    money = f", cost {cost['cost']:,.2f}" if cost["cost"] is not None else ""
    return f"{cost['output_tokens']:,} tokens, {time}{money}"


def summary(found: dict[str, Any]) -> list[str]:
    """The report in ten lines."""
    tokens = found["response_tokens"]
    cost, part = found["estimate"], found["estimate_trivial"]
    lines = [
        f"audit: {found['verdict'].upper()}: {found['reasons'][0]}",
        f"  responses  median {tokens['median']:,.0f} tokens, mean {tokens['mean']:,.0f}, "
        f"p95 {tokens['p95']:,.0f}, {tokens['total']:,} in all",
        f"  input      {found['lines']:,} lines: {found['accepted']:,} accepted, "
        f"{found['rejected']:,} rejected, {found['blank_lines']:,} blank",
        f"  to ask     all {cost['rows']:,} rows: {_price(cost)}; "
        f"the {part['rows']:,} trivial ones: {_price(part)}",
    ]
    told = found["findings"]
    lines += [f"  {f['level']:10} {f['text']}" for f in told[:SHOWN]]
    more = f"  {len(told) - SHOWN} more findings, and" if len(told) > SHOWN else " "
    return [printable(line[:200]) for line in lines] + [f"{more} all of it is in audit/report.html"]

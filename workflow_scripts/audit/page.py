"""The audit's page: one self-contained file that says what the responses are worth, and why.

Made from the audit's report.json alone. The texts in it are the user's and may hold anything: on
the page they are cut, escaped, and what would be invisible in them is made visible.
"""

import argparse
from bisect import bisect_right
from itertools import islice
from pathlib import Path
from typing import Any

from markupsafe import Markup

from workflow_scripts.base import sums
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import write_atomically
from workflow_scripts.base.log import say
from workflow_scripts.pages.svg import NEW, SPIKE, WARN, share_axes, svg
from workflow_scripts.pages.text import (
    Json,
    environment,
    marked,
    number,
    one_line,
    percent,
    time,
    visible,
)

TEMPLATE = Path(__file__).with_name("page.html.j2")
SOURCES = 50  # input files shown
SHAPES = 20  # groups of files with the same columns shown
NAMED = 4  # spikes named in the histogram
EDGES = [*range(10)]  # first tokens of the histograms' bins: one a number, from 10 up ten a decade
STEPS = (100, 125, 160, 200, 250, 315, 400, 500, 630, 800)
EDGES += [step * 10**k // 100 for k in range(1, 8) for step in STEPS]


def tone(share: float, thresholds: dict[str, float]) -> str:
    """The page's class for a trivial share."""
    if share >= thresholds["worthless"]:
        return "bad"
    return "warn" if share >= thresholds["suspicious"] else "good"


# ---- charts -------------------------------------------------------------------------------------


def histogram(
    name: str, counts: dict[str, int], spikes: list[Json], limit: int | None = None
) -> Markup | None:
    """Token counts as SVG, spikes in a colour of their own; None where there is nothing.

    Args:
        name: what the counts are of; begins the ids in the SVG.
        counts: rows by exact number of tokens.
        spikes: of the report, the most frequent first.
        limit: the context limit, a line.
    """
    total = sum(counts.values())
    if not total:
        return None
    longest = max(map(int, counts))
    bins = max(12, bisect_right(EDGES, max(longest, limit or 0)))
    special = {spike["tokens"] for spike in spikes}
    shares, peaks = [0.0] * bins, [0.0] * bins  # per cent
    for size, rows in counts.items():
        share = 100 * rows / total
        shares[bisect_right(EDGES, int(size)) - 1] += share
        peaks[bisect_right(EDGES, int(size)) - 1] += share * (int(size) in special)
    figure, axes = share_axes(max(shares) * 1.28)
    axes.bar(range(bins), shares, width=0.86, color=NEW, zorder=2)
    axes.bar(range(bins), peaks, width=0.86, color=SPIKE, zorder=3)
    named: list[int] = []
    for spike in spikes:
        at = bisect_right(EDGES, spike["tokens"]) - 1
        if len(named) < NAMED and all(abs(at - other) > bins // 8 for other in named):
            named.append(at)
            note = f"{spike['tokens']:,} tokens\n{percent(spike['share'])}"
            side = "left" if at < bins // 12 else "right" if at > bins * 11 // 12 else "center"
            shift = {"left": -0.43, "center": 0, "right": 0.43}[side]
            place = (at + shift, shares[at] + axes.get_ylim()[1] * 0.02)
            axes.text(*place, note, ha=side, va="bottom", color=SPIKE, fontsize=9.5)
    ticks = [i for i in range(bins) if str(EDGES[i]).rstrip("0") in ("", "1", "2", "5")]
    if bins > 36:
        ticks = [i for i in ticks if i != 1 and (bins < 50 or str(EDGES[i])[0] in "01")]
    names = [f"{EDGES[i] // 1000}k" if EDGES[i] >= 1000 else str(EDGES[i]) for i in ticks]
    axes.set_xticks([i if i < 10 else i - 0.5 for i in ticks], names)
    axes.set(xlim=(-0.6, bins - 0.4), xlabel="tokens, log scale")
    label = f"Histogram of {name} lengths in tokens, {total:,} rows, longest {longest:,}"
    for spike in spikes[:NAMED]:
        label += f"; spike at {spike['tokens']:,} tokens: {percent(spike['share'])}"
    if limit:
        at_limit = bisect_right(EDGES, limit) - 1
        axes.axvline(at_limit + 0.5, color=SPIKE, linewidth=1.2, linestyle=(0, (4, 3)), zorder=4)
        place = (at_limit + 0.1, axes.get_ylim()[1] * 0.97)
        axes.text(*place, f"context limit\n{limit:,}", ha="right", va="top", color=SPIKE)
        label += f"; context limit {limit:,}"
    return svg(figure, name, label)


def along(positions: list[Json], thresholds: dict[str, float]) -> Markup | None:
    """The trivial share of each part of the input as SVG; None where there are no rows."""
    parts = [part for part in positions if part["rows"]]
    if not parts:
        return None
    shares = [part["flagged"] / part["rows"] for part in parts]
    colours = {"good": NEW, "warn": WARN, "bad": SPIKE}
    figure, axes = share_axes(105)
    chosen = [colours[tone(share, thresholds)] for share in shares]
    axes.bar(range(len(shares)), [100 * s for s in shares], width=0.86, color=chosen, zorder=2)
    at = range(0, len(parts), 5)
    axes.set_xticks(at, [f"{parts[i]['first']:,}" for i in at])
    axes.set(xlim=(-0.6, len(parts) - 0.4), xlabel="the part's first row")
    label = f"Trivial share of {len(parts)} equal parts of the input, in its order: "
    return svg(figure, "positions", label + ", ".join(map(percent, shares)))


# ---- the page -----------------------------------------------------------------------------------


def worst_sources(sources: dict[str, Json]) -> list[Json]:
    """The input files, those first that hold the most bad rows beyond the average share."""
    bad = sum(s["flagged"] + s["rejected"] for s in sources.values())
    usual = bad / max(1, sum(s["accepted"] + s["rejected"] for s in sources.values()))

    def beyond(source: Json) -> float:
        rows = source["accepted"] + source["rejected"]
        return float(source["flagged"] + source["rejected"] - usual * rows)

    named = [{"name": name, **source} for name, source in sources.items()]
    return sorted(named, key=beyond, reverse=True)


def shapes(columns: dict[str, dict[str, dict[str, int]]]) -> list[Json]:
    """Files with the same columns and types together, the rarest shape first, its rows added."""
    found: dict[tuple[Any, ...], Json] = {}
    for source, keys in columns.items():
        shape = tuple(sorted((key, tuple(sorted(types))) for key, types in keys.items()))
        group = found.setdefault(shape, {"sources": [], "columns": {}})
        group["sources"].append(source)
        for key, types in keys.items():
            rows = group["columns"].setdefault(key, {})
            for kind, count in types.items():
                rows[kind] = rows.get(kind, 0) + count
    return sorted(found.values(), key=lambda group: len(group["sources"]))


def page(report: Json) -> str:
    """The audit's page; whatever is not marked as safe is made visible, cut and escaped.

    Args:
        report: the object in audit/report.json.
    """
    made = environment(finalize=lambda value: visible(value) if type(value) is str else value)
    made.filters |= {
        "n": number,
        "money": lambda amount: f"{amount:,.2f}",
        "time": time,
        "line": one_line,
        "marked": marked,
        "tone": lambda share: tone(share, report["thresholds"]),
        "first": lambda values, count: list(islice(values, count)),
    }
    context = report["context"] or {"limit": None}
    parts = [part for part in report["positions"] if part["rows"]]
    special = {str(spike["tokens"]) for spike in report["spikes"]}
    rest = {k: n for k, n in report["response_token_counts"].items() if k not in special}
    parts.sort(key=lambda part: part["flagged"] / part["rows"])
    found = {
        "audit": report,
        "sources": worst_sources(report["sources"]),
        "shapes": shapes(report["columns"]),
        "best_part": parts[0] if parts else None,
        "worst_part": parts[-1] if parts else None,
        "shown_sources": SOURCES,
        "shown_shapes": SHAPES,
        "plots": {
            "responses": histogram("response", report["response_token_counts"], report["spikes"]),
            "rest": histogram("remaining", rest, []),
            "prompts": histogram("prompt", report["prompt_token_counts"], [], context["limit"]),
            "positions": along(report["positions"], report["thresholds"]),
        },
    }
    return made.from_string(TEMPLATE.read_text(encoding="utf-8")).render(found)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--report", type=Path, required=True, help="audit/report.json")
    parser.add_argument("--output", type=Path, required=True, help="the page")
    args = parser.parse_args(argv)
    try:
        report = sums.checked_json(args.report)
    except ConfigError as error:
        say(f"audit: {error}")
        return 1
    write_atomically(args.output, page(report).encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

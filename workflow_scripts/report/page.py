"""The report's page: one self-contained file, with the lengths before and after."""

import json
from pathlib import Path

import jinja2
from markupsafe import Markup

from workflow_scripts.base.log import duration
from workflow_scripts.pages.svg import NEW, OLD, share_axes, svg
from workflow_scripts.pages.text import Json, environment

TEMPLATE = Path(__file__).with_name("page.html.j2")
TRIVIAL_TOKENS = 6  # a response this short cannot say much
EDGES = [0, 1, 2, 3, 5, 7]  # first tokens of a plot's bins; 7 ends the trivial ones
EDGES += [x * 10**k for k in range(7) for x in (10, 15, 20, 30, 50, 70)]


def plots(old: Json, new: Json) -> dict[str, Markup | None]:
    """The lengths before and after, as SVG on the same axes; None where there is nothing."""
    longest = max(old["max"], new["max"])
    count = max(6, sum(edge <= longest for edge in EDGES))
    edges = EDGES[: count + 1]
    sides = {"old": old, "new": new}
    shares = {name: [0.0] * count for name in sides}  # per cent
    for name, side in sides.items():
        for size, n in side["counts"].items():
            shares[name][sum(edge <= size for edge in edges[1:-1])] += 100 * n / side["total"]
    top = max(shares["old"] + shares["new"]) * 1.22
    return {
        name: plot(name, shares[name], edges, top, side) if side["total"] else None
        for name, side in sides.items()
    }


def plot(name: str, shares: list[float], edges: list[int], top: float, side: Json) -> Markup:
    """One histogram as SVG; its bins are equally wide on the page, its ids start with `name`."""
    leading = "13" if len(edges) > 20 else "125"
    ticks = [i for i, edge in enumerate(edges) if not edge or str(edge).rstrip("0") in leading]
    names = [f"{edges[i] // 1000}k" if edges[i] >= 1000 else str(edges[i]) for i in ticks]
    ends = edges.index(TRIVIAL_TOKENS + 1)
    colour = OLD if name == "old" else NEW
    figure, axes = share_axes(top)
    axes.axvspan(0, ends, color="#f1f3f5", zorder=0)
    axes.bar(range(len(shares)), shares, width=0.9, align="edge", color=colour, zorder=2)
    note = f"≤ {TRIVIAL_TOKENS} tokens\n{100 * side['trivial_share']:.1f} %"
    axes.text(ends / 2, top * 0.97, note, ha="center", va="top", fontsize=10.5)
    axes.set(xlim=(0, len(shares)))
    axes.set_xlabel("tokens", fontsize=10.5)
    axes.set_xticks(ticks, names)
    label = (
        f"Tokens of the {name} responses, {side['total']:,} in all: median {side['median']:,}, "
        f"95 % at most {side['p95']:,}, longest {side['max']:,}; "
        f"{100 * side['trivial_share']:.1f} % have {TRIVIAL_TOKENS} tokens or fewer"
    )
    return svg(figure, name, label, {})


def render(found: Json) -> str:
    """The page; whatever is not marked as safe is escaped."""
    made = environment(loader=jinja2.FileSystemLoader(TEMPLATE.parent))
    made.filters |= {
        "duration": duration,
        "json": lambda value: json.dumps(value, indent=2, sort_keys=True),
    }
    return made.get_template(TEMPLATE.name).render(found)

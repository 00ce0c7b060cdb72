"""The tune's page: the tables of table.md, with plots; one self-contained file."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow_scripts.pages.svg import AXIS, GRID, NEW, OLD, svg
from workflow_scripts.pages.text import environment
from workflow_scripts.tune import judge, report
from workflow_scripts.tune.judge import Choice
from workflow_scripts.tune.report import About
from workflow_scripts.tune.results import Result

TEMPLATE = Path(__file__).with_name("page.html.j2")
COLOURS = (OLD, NEW, "#1d4ed8", "#9333ea", "#be123c", "#4d7c0f", "#0e7490", "#a16207")


def _axes(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    with matplotlib.rc_context({"font.size": 10.5}):
        figure = Figure(figsize=(7.4, 3.6))
        axes = figure.add_subplot()
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.grid(color=GRID, linewidth=0.7, zorder=1)
        axes.tick_params(length=3, color=AXIS)
        axes.spines[["bottom", "left"]].set_color(AXIS)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _finish(figure: Figure, axes: Axes, name: str, label: str) -> Markup:
    """As SVG, the legend below: candidates' names are long and their points anywhere."""
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    legend = 0.23 * len(axes.get_legend_handles_labels()[0])  # inches
    figure.set_figheight(height := 3.7 + legend)
    axes.set_position((0.11, (0.65 + legend) / height, 0.87, 2.95 / height))
    with matplotlib.rc_context({"font.size": 10.5}):
        figure.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.09, 0))
    return svg(figure, name, label)


def plots(results: Sequence[Result]) -> dict[str, Markup]:
    """Tokens/s over time, and against running requests, as SVG."""
    seen = [(r, judge.steps(r.samples), COLOURS[i % len(COLOURS)]) for i, r in enumerate(results)]
    seen = [one for one in seen if one[1]]
    if not seen:
        return {}
    over_time = _axes("seconds under load", "tokens/s")
    against = _axes("requests running", "tokens/s")
    for result, found, colour in seen:
        t, n, rate = zip(*found, strict=True)
        over_time[1].plot(t, rate, color=colour, label=result.name, linewidth=1.2, zorder=2)
        if result.steady_s is not None:
            steady = [(x, y) for at, x, y in found if at >= result.steady_s]
            over_time[1].axvline(result.steady_s, color=colour, linewidth=0.6, linestyle=":")
        else:
            steady = list(zip(n, rate, strict=True))
        if steady:
            x, y = zip(*steady, strict=True)
            against[1].plot(x, y, "o", color=colour, label=result.name, markersize=4, zorder=2)
    speeds = ", ".join(f"{r.name}: {report.speed(judge.figures(r))}" for r, _, _ in seen)
    return {
        "time": _finish(*over_time, "time", f"Tokens a second over time; {speeds}"),
        "running": _finish(*against, "running", f"Tokens a second by running requests; {speeds}"),
    }


def page(results: Sequence[Result], choice: Choice, about: About) -> str:
    """report.html, self-contained."""
    found = {
        "headline": report.headline(results, choice, about),
        "about": asdict(about) | {"label": about.label, "machine": about.machine},
        "done": len(results),
        "choice": report.chosen(choice).replace("`", ""),
        "tables": [
            ("Before and after", report.before_and_after(results, choice, about)),
            ("All candidates", report.all_candidates(results, choice, about)),
            ("Predicted before the start, and reported", report.predictions(results)),
        ],
        "plots": plots(results),
        "remarks": [text.replace("`", "") for text in report.remarks(results, choice, about)],
        "flags": [(r.name, r.why, report.flags(r.changes or r.server)) for r in results],
        "method": report.method(results, about),
    }
    return environment().from_string(TEMPLATE.read_text(encoding="utf-8")).render(found)

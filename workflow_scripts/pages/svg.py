"""Figures as SVG inside a page, in its light or dark colours."""

import io
import re
from collections.abc import Mapping

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

OLD, NEW = "#b45309", "#0f766e"  # what stands before and after regeneration
SPIKE, GRID, AXIS, WARN = "#a61b1b", "#e1e5ea", "#9aa4b0", "#b7791f"
# names of a page's own variables for them
COLOURS = {NEW: "bar", SPIKE: "spike", GRID: "line", AXIS: "axis", WARN: "amber"}


def share_axes(top: float) -> tuple[Figure, Axes]:
    """Axes for shares in per cent, up to `top`."""
    with matplotlib.rc_context({"font.size": 10.5}):
        figure = Figure(figsize=(5.4, 2.9))
        axes = figure.add_axes((0.115, 0.17, 0.87, 0.8))
        axes.set_ylim(0, top)
        axes.locator_params(axis="y", nbins=5)
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:g} %")
        axes.grid(axis="y", color=GRID, linewidth=0.7, zorder=1)
        axes.tick_params(length=3, color=AXIS)
        axes.spines["bottom"].set_color(AXIS)
        axes.spines[["top", "right", "left"]].set_visible(False)
    return figure, axes


def svg(figure: Figure, name: str, label: str, colours: Mapping[str, str] = COLOURS) -> Markup:
    """The figure for a page.

    Args:
        name: begins the ids in the SVG, so that figures of one page do not share any.
        label: what it shows, for who cannot see it.
        colours: variables of the page that take the place of colours, by its scheme.
    """
    out = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    settings = {"svg.fonttype": "none", "svg.hashsalt": f"tracemill-{name}", "font.size": 10.5}
    with matplotlib.rc_context(settings):
        figure.savefig(out, format="svg", transparent=True, metadata=no_metadata)
    text = out.getvalue()
    text = re.sub(r'\bid="', f'id="{name}-', text[text.index("<svg") :])
    text = text.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    for colour, variable in colours.items():
        text = text.replace(colour, f"var(--{variable})")
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))

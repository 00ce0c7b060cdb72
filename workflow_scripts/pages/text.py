"""Texts of anybody's as a page shows them, and the environment that pages are rendered in."""

import re
from typing import Any

import jinja2
from markupsafe import Markup, escape

Json = dict[str, Any]
CAP = 900  # characters of a text shown
LINE = 240  # characters of a text shown in a table's cell
# control characters as their symbols; tabs and line breaks stay
CONTROL = {c: 0x2400 + c for c in range(32) if c not in (9, 10, 13)} | {127: 0x2421}
# C1 controls, soft hyphen, zero width, line ends and direction marks of Unicode, tags, surrogates;
# not the joiners, which emoji and Persian need
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)


def environment(html: bool = True, **options: Any) -> jinja2.Environment:
    """What templates are rendered in: a name that is missing is an error, and in HTML whatever is
    not marked as safe is escaped. `options` are jinja2's further ones."""
    made = jinja2.Environment(
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    made.filters["n"] = lambda number: f"{number:,}"
    made.filters["percent"] = percent
    made.filters["shown"] = visible
    return made


def visible(text: str, cap: int = CAP) -> str:
    """A text cut after `cap` characters, with a sign for every character that cannot be seen."""
    more = len(text) - cap
    text = HIDDEN.sub(_sign, text[:cap])
    return f"{text} … ({more:,} more characters)" if more > 0 else text


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "␍" if code == 13 else chr(CONTROL[code]) if code in CONTROL else f"⟨U+{code:04X}⟩"


def one_line(text: object, cap: int = LINE) -> Markup:
    """A text for a table's cell: its line ends are signs too."""
    return Markup(escape(visible(str(text), cap).replace("\n", "↵ ")))


def marked(text: str) -> Markup:
    """A text whose line ends are both seen and kept."""
    return Markup(escape(visible(text).replace("\n", "↵\n")))


def number(value: float | None) -> str:
    """A number with thousands separators; small ones keep the digits that matter."""
    if value is None:
        return "–"
    if isinstance(value, int) or value >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def percent(share: float | None) -> str:
    """A share that is never rounded to nothing or to all."""
    if share is None:
        return "–"
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return "> 99.9 %" if 0.9995 <= share < 1 else f"{100 * share:.1f} %"


def time(hours: float) -> str:
    """How long something takes, as one says it."""
    minutes = round(60 * hours)
    if minutes < 1:
        return "less than a minute"
    if minutes < 120:
        return f"{minutes} minute{'' if minutes == 1 else 's'}"
    return f"{number(round(hours, 1))} hours" if hours < 48 else f"{hours / 24:,.1f} days"

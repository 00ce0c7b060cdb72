"""Texts of anybody's as a page shows them, and the environment that pages are rendered in."""

from typing import Any

import jinja2

CAP = 900  # characters of a text shown
# control characters as their symbols; tabs and line breaks stay
CONTROL = {c: 0x2400 + c for c in range(32) if c not in (9, 10, 13)} | {127: 0x2421}


def shown(text: str) -> str:
    """A text as a page shows it: capped, its control characters visible."""
    more = len(text) - CAP
    text = text[:CAP].translate(CONTROL)
    return f"{text} … ({more:,} more characters)" if more > 0 else text


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
    made.filters["percent"] = lambda share: f"{100 * share:.1f} %"
    return made

"""Texts of anybody's as a page shows them: cut, and with signs for what cannot be seen."""

CAP = 900  # characters of a text shown
# control characters as their symbols; tabs and line breaks stay
CONTROL = {c: 0x2400 + c for c in range(32) if c not in (9, 10, 13)} | {127: 0x2421}


def shown(text: str) -> str:
    """A text as a page shows it: capped, its control characters visible."""
    more = len(text) - CAP
    text = text[:CAP].translate(CONTROL)
    return f"{text} … ({more:,} more characters)" if more > 0 else text

"""How the report shows texts and rows: by their beginnings, and by where they stand."""

import polars as pl

NAMED = 5  # rows named for a finding


def beginning(text: str, limit: int = 200) -> str:
    """The beginning of a text as it is; who shows it makes visible what cannot be seen."""
    return text[:limit] + ("…" if len(text) > limit else "")


def named_rows(frame: pl.DataFrame) -> list[str]:
    """Where the first few rows stand."""
    return [f"{source}:{line}" for source, line in frame.head(NAMED)["source", "line"].iter_rows()]

"""The audit's looks at the prompts themselves: languages, near-duplicates, held-out sets.

Languages are those of a random sample; the other two read every prompt and are made on request.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from workflow_scripts.audit.examples import beginning
from workflow_scripts.config.audit import Audit
from workflow_scripts.input.conversation import asked
from workflow_scripts.tables.parquet import read_batches
from workflow_scripts.texts.held_out import held_out_sets
from workflow_scripts.texts.near_duplicates import clusters

SAMPLED = 2000  # prompts whose language is looked at
LANGUAGE_CHARS = 500
LARGEST = 5  # clusters shown
EXAMPLES = 5


def prompts(rows: Path) -> Iterator[tuple[str, str]]:
    """Where each accepted row stands, and what its user asks."""
    for batch in read_batches(rows, 1024):
        columns = (batch.column(name).to_pylist() for name in ("source", "line", "messages"))
        for source, line, messages in zip(*columns, strict=True):
            yield f"{source}:{line}", asked(orjson.loads(messages))


def languages(rows: Path) -> dict[str, Any]:
    """Languages of up to SAMPLED prompts; row ids are hashes, so the lowest are a random sample."""
    import py3langid  # loads its model

    ids = pl.scan_parquet(rows).select("row_id").collect()["row_id"]
    last = ids.sort()[min(SAMPLED, len(ids)) - 1] if len(ids) else ""
    found = pl.scan_parquet(rows).filter(pl.col("row_id") <= last).select("messages").collect()
    texts = (asked(orjson.loads(messages)) for messages in found["messages"])
    counts = Counter(py3langid.classify(text[:LANGUAGE_CHARS])[0] for text in texts)
    return {"sampled": found.height, "counts": dict(counts.most_common())}


def near_duplicates(rows: Path, threshold: float) -> dict[str, Any]:
    """Clusters of prompts that are nearly or exactly the same."""
    first_of = clusters((text for _, text in prompts(rows)), threshold)
    sizes = Counter(first_of)
    many = {first: size for first, size in sizes.items() if size > 1}
    shown = dict(sorted(many.items(), key=lambda item: (-item[1], item[0]))[:LARGEST])
    found: dict[int, tuple[str, str]] = {}
    if shown:
        for index, entry in enumerate(prompts(rows)):
            if index in shown:
                found[index] = entry
    return {
        "threshold": threshold,
        "clusters": len(many),
        "rows": sum(many.values()),
        "largest": [
            {"rows": size, "text": beginning(found[first][1]), "examples": [found[first][0]]}
            for first, size in shown.items()
        ],
    }


def contamination(rows: Path, settings: Audit) -> dict[str, Any]:
    """Prompts that share words with held-out sets.

    Raises:
        ConfigError: a pattern of `audit.held_out` matches nothing.
    """
    held_out = held_out_sets(settings)
    count = 0
    examples: list[str] = []
    for where, text in prompts(rows):
        if hits := held_out.hits(text):
            count += 1
            if len(examples) < EXAMPLES:
                name, shared = hits[0]
                examples.append(f"{where}: {shared[:120]} ({name})")
    told = {name: {"rows": c["rows"], "hits": c["hit"]} for name, c in held_out.counts().items()}
    ngram = settings.contamination_ngram
    return {"ngram": ngram, "held_out": told, "rows": count, "examples": examples}

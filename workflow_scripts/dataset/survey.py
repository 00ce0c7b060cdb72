"""What shows only over all rows: near-duplicates, the sides of the split, repeated answers.

The merged rows are read once before any training row is written. What is kept of a row is a few
numbers; the shingles of near-duplicates are the largest part (see near_duplicates).
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from workflow_scripts.config.sections import Config
from workflow_scripts.dataset.samples import answered
from workflow_scripts.identity import digest, key64
from workflow_scripts.input.conversation import asked, prompt_hash
from workflow_scripts.model.given import NAMES, Given
from workflow_scripts.model.prompts import Message
from workflow_scripts.tables.parquet import read_batches
from workflow_scripts.texts.classes import folded
from workflow_scripts.texts.near_duplicates import clusters

BATCH = 2048


@dataclass(frozen=True)
class Survey:
    """What is known of all rows of merged/completions.parquet, each by its number.

    Args:
        prompts: for each row the first row whose prompt is equal or nearly equal.
        conversations: the same of the whole conversation, answers included; None if not asked for.
        held_out: whether the row belongs to the validation side.
        repeated: keys (`answer_key`) of short answers that many different prompts got.
        ids: row ids.
    """

    prompts: np.ndarray[Any, Any]
    conversations: np.ndarray[Any, Any] | None
    held_out: np.ndarray[Any, Any]
    repeated: frozenset[int]
    ids: pa.ChunkedArray

    def cluster(self, row: int) -> str:
        """The row id that names the row's prompt cluster."""
        return str(self.ids[int(self.prompts[row])].as_py())


def survey(completions: Path, config: Config) -> Survey:
    """Read all merged rows once (twice where near-duplicate conversations are to be found)."""
    settings = config.dataset
    threshold = settings.near_duplicate_threshold
    seen = _Seen(config.audit.repeated_max_chars, config.audit.rules.asks_calls)
    prompts = np.array(clusters(seen.questions(completions), threshold), dtype=np.int64)
    conversations = None
    if settings.filters.duplicates == "near":
        texts = (whole(messages) for _, messages, _ in _read(completions))
        conversations = np.array(clusters(texts, threshold), dtype=np.int64)
    return Survey(
        prompts,
        conversations,
        split_sides(prompts, seen.hashes, settings.validation_fraction),
        seen.repeated(config.audit.repeated_min_prompts, config.audit.repeated_min_share),
        pa.chunked_array(seen.ids, pa.string()),
    )


def split_sides(
    prompts: np.ndarray[Any, Any], hashes: list[str], fraction: float
) -> np.ndarray[Any, Any]:
    """Which rows are held out: a cluster's side is decided by the lowest prompt hash in it, so it
    does not depend on the order of the rows.

    Args:
        prompts: for each row the first row of its cluster.
        hashes: each row's prompt hash.
        fraction: share of clusters to hold out.
    """
    lowest: dict[int, str] = {}
    for first, value in zip(prompts.tolist(), hashes, strict=True):
        if value < lowest.get(first, "~"):
            lowest[first] = value
    # hashed again: the lowest of many is no random number
    out = {first: int(digest(value)[:8], 16) / 2**32 < fraction for first, value in lowest.items()}
    return np.array([out[first] for first in prompts.tolist()], dtype=bool)


def answer_key(message: Message, most: int) -> int | None:
    """Equal for short answers that count as equal; None for a long one, an empty one, one that
    was reasoned, since the same last line can end many different thoughts, and one that calls."""
    text = message["content"] or ""
    reasoned = (message.get("reasoning_content") or "").strip()
    if len(text) > most or reasoned or message.get("tool_calls"):
        return None
    return key64(same) if (same := folded(text)) else None


def whole(messages: list[Message]) -> str:
    """The texts and calls of a conversation without system prompts and reasoning."""
    told = []
    for message in messages:
        if message["role"] != "system":
            calls = message.get("tool_calls")
            told += [message["content"], calls and orjson.dumps(calls).decode()]
    return "\n".join(filter(None, told))


def _read(completions: Path) -> Iterator[tuple[str, list[Message], Given]]:
    for batch in read_batches(completions, BATCH, ["row_id", "messages", *NAMES]):
        for row in batch.to_pylist():
            yield row["row_id"], orjson.loads(row["messages"]), Given.read(row)


class _Seen:
    """What is kept of the rows while their questions go by."""

    def __init__(self, most: int, calls_too: bool):
        self.most, self.calls_too = most, calls_too
        self.ids: list[pa.Array] = []
        self.hashes: list[str] = []
        self._answers, self._askers = array("Q"), array("Q")

    def questions(self, completions: Path) -> Iterator[str]:
        batch: list[str] = []
        for row_id, messages, given in _read(completions):
            batch.append(row_id)
            if len(batch) == BATCH:
                self.ids.append(pa.array(batch))
                batch = []
            prompt = prompt_hash(messages, given)
            self.hashes.append(prompt)
            for message in (messages[at] for at in answered(messages, self.calls_too)):
                if (key := answer_key(message, self.most)) is not None:
                    self._answers.append(key)
                    self._askers.append(int(prompt[:16], 16))
            yield asked(messages)
        self.ids.append(pa.array(batch, pa.string()))

    def repeated(self, prompts: int, share: float) -> frozenset[int]:
        """Keys of answers given to at least `prompts` different prompts and that share of rows."""
        frame = pl.DataFrame(
            {
                "answer": np.frombuffer(self._answers, dtype=np.uint64),
                "asker": np.frombuffer(self._askers, dtype=np.uint64),
            }
        )
        least = max(prompts, share * len(self.hashes))
        found = frame.group_by("answer").agg(pl.col("asker").n_unique().alias("prompts"))
        return frozenset(found.filter(pl.col("prompts") >= least)["answer"])

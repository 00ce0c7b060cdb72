"""A shard's rows while they are generated, and the way they are written out at the end.

Answers are not held in memory: a row keeps where its answers lie in the journal.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from workflow_scripts.base.files import file_sha256, write_atomically
from workflow_scripts.generate.journal import Journal, Span
from workflow_scripts.model.answers import texts
from workflow_scripts.model.given import NAMES, NOTHING, Given
from workflow_scripts.model.prompts import Prompts, is_asked
from workflow_scripts.tables.columns import FAILURE, GENERATED
from workflow_scripts.tables.parquet import table_writer

BATCH = 256  # rows put together at a time


@dataclass(slots=True)
class GeneratedTurn:
    """One generated turn: its prompt (int32 ids), its request and where the answer lies."""

    prompt: bytes
    request: str
    place: Span


@dataclass(slots=True)
class Row:
    """A row on its way.

    `conversation` is as read, with the new answers in place of the old ones up to `at`, the index
    of the assistant turn to come; it is emptied when the row is over.
    """

    row_id: str
    conversation: list[dict[str, Any]]
    given: Given = NOTHING
    at: int = 0
    turns: list[GeneratedTurn] = field(default_factory=list)
    next_prompt: list[int] | None = None
    next_seed: int = 0
    next_request: str = ""
    failure: dict[str, Any] | None = None
    fresh: bool = False
    tokens: int = 0

    @property
    def last(self) -> bool:
        """Whether the turn to come ends the conversation."""
        return self.at == len(self.conversation) - 1

    @property
    def over(self) -> bool:
        return self.failure is not None or self.at >= len(self.conversation)


def write_shard(
    target: Path, table: pa.Table, rows: list[Row], journal: Journal, prompts: Prompts, run: str
) -> dict[str, Any]:
    """Write `target`.parquet, then `target`.json with its counts and checksum.

    Args:
        table: the shard as the shard stage wrote it.
        rows: the same rows in the same order, all over.
        run: the run's hash.
    """
    path = target.with_suffix(".parquet")
    counts: dict[str, Any] = {"rows": len(rows), "completed": 0, "failed": 0, "tokens": 0}
    classes: dict[str, int] = {}
    with table_writer(path, GENERATED) as writer:
        for record in _records(table, rows, journal, prompts, run):
            writer.add([record])
            counts[record["status"]] += 1
            counts["tokens"] += sum(len(turn["output_ids"]) for turn in record["turns"])
            if record["class"]:
                classes[record["class"]] = classes.get(record["class"], 0) + 1
    counts |= {"classes": classes, "run_hash": run, "sha256": file_sha256(path)}
    write_atomically(target.with_suffix(".json"), orjson.dumps(counts, option=orjson.OPT_INDENT_2))
    return counts


def _records(
    table: pa.Table, rows: list[Row], journal: Journal, prompts: Prompts, run: str
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        told = iter(_turns([turn for row in batch for turn in row.turns], journal, prompts))
        for given, row in zip(table.slice(start, BATCH).to_pylist(), batch, strict=True):
            turns = [{"turn": index, **next(told)} for index in range(len(row.turns))]
            messages = _with_answers(orjson.loads(given["messages"]), turns)
            failure = row.failure or {}
            yield {
                **{name: given[name] for name in ("row_id", "content_hash", "source", "line")},
                "id": given["id"],
                "run_hash": run,
                "status": "failed" if row.failure else "completed",
                "class": None if row.failure else turns[-1]["class"],
                "messages": orjson.dumps(messages).decode(),
                **{name: given[name] for name in NAMES},
                "turns": turns,
                "old_response_tokens": given["response_tokens"],
                **{name: failure.get(name) for name, _, _ in FAILURE},
            }


def _turns(turns: list[GeneratedTurn], journal: Journal, prompts: Prompts) -> list[dict[str, Any]]:
    """Turns as they stand in the table, without their number."""
    records = [journal.read(turn.place) for turn in turns]
    prompt_ids = [array("i", turn.prompt) for turn in turns]
    outputs = [record["output_ids"] for record in records]
    decoded = texts(prompts, list(zip(prompt_ids, outputs, strict=True)))
    return [
        {
            "prompt_ids": np.frombuffer(turn.prompt, np.int32),
            "output_ids": np.frombuffer(array("i", output_ids), np.int32),
            "reasoning": reasoning,
            "answer": answer,
            "class": record["class"],
            "finish_reason": record["finish"],
            "attempts": record["attempts"],
            "retractions": record["retractions"],
            "accept_length": record["accept_length"],
            "request": turn.request,
        }
        for turn, record, output_ids, (reasoning, answer) in zip(
            turns, records, outputs, decoded, strict=True
        )
    ]


def _with_answers(
    messages: list[dict[str, Any]], turns: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation up to the last answer, the new responses in place of the old ones; up to
    the first question where nothing was answered."""
    found: list[dict[str, Any]] = []
    answers = iter(turns)
    for message in messages:
        if not is_asked(message):
            found.append(message)
            continue
        turn = next(answers, None)
        if turn is None:
            return _to_last_answer(found) if turns else found
        new = {"role": "assistant", "content": turn["answer"]}
        if turn["reasoning"] is not None:
            new["reasoning_content"] = turn["reasoning"]
        found.append(new)
    return found


def _to_last_answer(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what asked for an answer that never came: a question, or calls and their results."""
    while found and not is_asked(found[-1]):
        found = found[:-1]
    return found

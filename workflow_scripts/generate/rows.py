"""A shard's rows while they are generated, and the way they are written out at the end.

Answers are not held in memory: a row keeps where its answers lie in the journal.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from workflow_scripts.base.files import file_sha256, write_atomically
from workflow_scripts.generate.course import Course, tools_of
from workflow_scripts.generate.journal import Journal, Span
from workflow_scripts.model.answers import texts
from workflow_scripts.model.given import NAMES, NOTHING, Given
from workflow_scripts.model.prompts import Message, Prompts
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
    of the assistant turn to come; it is emptied when the row is over. `tools` are those that it has
    to do with, see `tools_of`.
    """

    row_id: str
    conversation: list[dict[str, Any]]
    given: Given = NOTHING
    tools: list[Any] | None = field(init=False)
    at: int = 0
    turns: list[GeneratedTurn] = field(default_factory=list)
    next_prompt: list[int] | None = None
    next_seed: int = 0
    next_request: str = ""
    failure: dict[str, Any] | None = None
    fresh: bool = False
    tokens: int = 0

    def __post_init__(self) -> None:
        self.tools = tools_of(self.conversation, self.given)

    @property
    def last(self) -> bool:
        """Whether the turn to come ends the conversation."""
        return self.at == len(self.conversation) - 1

    @property
    def over(self) -> bool:
        return self.failure is not None or self.at >= len(self.conversation)


def write_shard(
    target: Path, table: pa.Table, rows: list[Row], journal: Journal, course: Course, run: str
) -> dict[str, Any]:
    """Write `target`.parquet, then `target`.json with its counts and checksum.

    Args:
        table: the shard as the shard stage wrote it.
        rows: the same rows in the same order, all over.
        run: the run's hash.
    """
    return write_records(target, _records(table, rows, journal, course, run), run)


def write_records(target: Path, records: Iterable[dict[str, Any]], run: str) -> dict[str, Any]:
    """The same of rows as they stand in the table; none for an empty shard."""
    path = target.with_suffix(".parquet")
    counts: dict[str, Any] = {"rows": 0, "completed": 0, "failed": 0, "tokens": 0}
    classes: dict[str, int] = {}
    with table_writer(path, GENERATED) as writer:
        for record in records:
            writer.add([record])
            counts["rows"] += 1
            counts[record["status"]] += 1
            counts["tokens"] += sum(len(turn["output_ids"]) for turn in record["turns"])
            if record["class"]:
                classes[record["class"]] = classes.get(record["class"], 0) + 1
    counts |= {"classes": classes, "run_hash": run, "sha256": file_sha256(path)}
    write_atomically(target.with_suffix(".json"), orjson.dumps(counts, option=orjson.OPT_INDENT_2))
    return counts


def _records(
    table: pa.Table, rows: list[Row], journal: Journal, course: Course, run: str
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        told = iter(_turns([turn for row in batch for turn in row.turns], journal, course.prompts))
        for given, row in zip(table.slice(start, BATCH).to_pylist(), batch, strict=True):
            turns = [{"turn": index, **next(told)} for index in range(len(row.turns))]
            messages = _with_answers(orjson.loads(given["messages"]), turns, row.tools, course)
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
    messages: list[Message], turns: list[dict[str, Any]], tools: list[Any] | None, course: Course
) -> list[Message]:
    """The conversation up to the last answer, the new responses in place of the old ones; up to
    the first question where nothing was answered. The turns get their `calls` and `ended`."""
    found: list[Message] = []
    answered = 0  # messages up to the last answer
    answers = iter(turns)
    for number, old in enumerate(messages, 1):
        if not course.asks(old):
            found.append(old)
            continue
        turn = next(answers, None)
        if turn is None:
            break
        texts = (turn["reasoning"], turn["answer"], turn["class"])
        step = course.step(old, *texts, number == len(messages), tools)
        turn["calls"] = None if step.calls is None else orjson.dumps(step.calls).decode()
        turn["ended"] = step.ended
        found.append(step.message)
        answered = len(found)
    # what asked for an answer that never came, a question or results of calls, is left out
    return found[:answered] if turns else found

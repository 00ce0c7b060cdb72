"""A sample of the run's own prompts, spread over the inputs and the same each time."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import digest
from workflow_scripts.input.conversation import read_conversation
from workflow_scripts.input.files import input_files
from workflow_scripts.input.lines import Line, read_lines
from workflow_scripts.input.reject import Reject
from workflow_scripts.model.folder import model_vocab_size
from workflow_scripts.model.given import NAMES, Given
from workflow_scripts.model.prompts import PromptError, Prompts, is_asked

Row = tuple[str, list[dict[str, Any]], Given]
SPARE = 1.25  # rows drawn for each one that is wanted: some cannot be rendered


@dataclass(frozen=True)
class Prompt:
    row_id: str
    ids: list[int]


@dataclass(frozen=True)
class PromptSample:
    """Prompts, how many requests the whole run makes, and where both are from."""

    prompts: list[Prompt]
    requests: int
    source: str

    @property
    def key(self) -> str:
        return digest(*(prompt.row_id for prompt in self.prompts))

    @property
    def mean_tokens(self) -> float:
        return sum(len(prompt.ids) for prompt in self.prompts) / len(self.prompts)


def draw(config: Config, prompts: Prompts, rows: int) -> PromptSample:
    """The first prompt of `rows` conversations, those with the lowest row ids: ids are hashes, so
    this is a random choice.

    Of the rows that the run would ask where the audit has said which; else of all.

    Raises:
        ConfigError: there is no usable prompt.
    """
    table = Path(config.output_dir) / "audit/rows.parquet"
    number = int(rows * SPARE) + 8
    if table.is_file():
        found, requests = _audited(table, config.regenerate, number)
        source = f"rows to ask of {table}"
    else:
        found, requests = _read(config, number)
        source = "rows of the input, which was not audited yet"
    made = list(_rendered(config, prompts, found))[:rows]
    if not made:
        raise ConfigError(f"input: no prompt can be made of the {source}; run the audit first")
    return PromptSample(made, requests, source)


def _audited(table: Path, regenerate: str, number: int) -> tuple[list[Row], int]:
    scan = pl.scan_parquet(table)
    if regenerate == "trivial":
        scan = scan.filter(pl.col("flagged"))
    requests = scan.select(pl.col("turns").sum()).collect(engine="streaming").item()
    ids = scan.select(pl.col("row_id").bottom_k(number)).collect(engine="streaming")["row_id"]
    rows = scan.filter(pl.col("row_id").is_in(ids.to_list())).select("row_id", "messages", *NAMES)
    chosen = rows.collect(engine="streaming").sort("row_id").iter_rows(named=True)
    found = [(row["row_id"], orjson.loads(row["messages"]), Given.read(row)) for row in chosen]
    return found, int(requests or 0)


def _read(config: Config, number: int) -> tuple[list[Row], int]:
    lines = [0]

    def usable() -> Iterator[tuple[str, Line]]:
        for path in input_files(config.input):
            for line in read_lines(path, input_format=config.input_format):
                if line.record is not None:
                    lines[0] += 1
                    yield line.row_id, line

    lowest = heapq.nsmallest(number, usable(), key=lambda pair: pair[0])
    found = []
    for row_id, line in lowest:
        assert line.record is not None
        try:
            read = read_conversation(line.record, config.audit.rules, config.audit.columns)
        except Reject:
            continue
        found.append((row_id, [turn.as_dict() for turn in read.turns], read.given))
    return found, lines[0]


def _rendered(config: Config, prompts: Prompts, rows: list[Row]) -> Iterator[Prompt]:
    vocab = model_vocab_size(config) or prompts.vocab_size
    for row_id, messages, given in rows:
        calls_too = config.audit.rules.asks_calls
        asked = (i for i, message in enumerate(messages) if is_asked(message, calls_too))
        at = next(asked, len(messages))
        try:
            ids = prompts.prompt_ids(messages[:at], given)
        except PromptError:
            continue
        if ids and max(ids) < vocab:  # one id outside ends an SGLang server
            yield Prompt(row_id, ids)

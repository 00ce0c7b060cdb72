"""Audit a dataset: what is in it, what its responses are worth, and what cannot be used.

Always ends with 0 once it has written its evidence; the audit gate judges it.
"""

import gc
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from workflow_scripts.audit.checks import contamination, languages, near_duplicates
from workflow_scripts.audit.examples import beginning
from workflow_scripts.audit.report import Evidence, Repeated, build
from workflow_scripts.audit.rows import PART, PartReader
from workflow_scripts.audit.tally import Tally
from workflow_scripts.base.log import say
from workflow_scripts.config.audit import Audit
from workflow_scripts.config.sections import Config
from workflow_scripts.input.files import input_files
from workflow_scripts.input.parts import Part, parts
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.tables.columns import AUDIT
from workflow_scripts.tables.parquet import table_writer
from workflow_scripts.texts.classes import TRIVIAL

HASTEN_BYTES = 32 << 20  # inputs from this size on are worth the fast encoder's preparation
SHOWN = 3  # examples of a class
REPORT_S = 10.0  # between two progress lines
# Columns of a row that the report counts; numbers, so that ten million rows fit into memory.
COUNTED = (
    "source", "line", "response_class", "flagged", "response_tokens", "prompt_tokens", "turns",
    "response_key", "prompt_key", "id_key", "script",
)  # fmt: skip

_reader: PartReader | None = None  # of this process; inherited by the reading processes


def _read(part: Part) -> tuple[Path, Tally]:
    assert _reader is not None
    return _reader.read(part)


def read_all(reader: PartReader, work: list[Part], processes: int) -> Iterator[tuple[Path, Tally]]:
    """The parts' rows and findings in the input's order, read by so many processes.

    Raises:
        OSError: a reading process was ended from outside, as for want of memory.
    """
    global _reader
    _reader = reader
    if processes < 2 or len(work) < 2:
        yield from map(_read, work)
        return
    gc.freeze()  # what the processes share stays shared
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(processes, len(work)), context) as pool:
        try:
            yield from pool.map(_read, work)
        except BrokenProcessPool:
            raise OSError(
                "a reading process was ended from outside, most likely for want of memory; "
                "run with fewer --cores, or give the job more memory"
            ) from None


def repeated_texts(files: list[Path], column: str, least: int) -> pl.DataFrame:
    """Texts of a column that at least so many different prompts got: text, prompts, rows, and the
    index of the first row (from 0)."""
    return (
        pl.scan_ipc(files)
        .with_row_index("first")
        .filter(pl.col(column).is_not_null())
        .group_by(pl.col(column).alias("text"))
        .agg(
            pl.col("prompt_hash").n_unique().alias("prompts"),
            pl.len().alias("rows"),
            pl.col("first").min(),
        )
        .filter(pl.col("prompts") >= least)
        .sort(["rows", "text"], descending=[True, False])
        .collect(engine="streaming")
    )


def flag(
    files: list[Path], target: Path, repeated: pl.DataFrame, sources: list[str]
) -> tuple[pl.DataFrame, dict[str, list[dict[str, Any]]]]:
    """Write the final rows: those of a repeated response get their class, and all a flag.

    Returns:
        The columns that are counted, and examples of each class.
    """
    frames: list[pl.DataFrame] = []
    examples: dict[str, list[dict[str, Any]]] = {}
    texts = repeated["text"].implode() if len(repeated) else None
    names = pl.Enum([*TRIVIAL, "reasoning_only", "normal"])
    with table_writer(target, AUDIT) as writer:
        for path in files:
            frame = pl.read_ipc(path)
            if texts is not None:
                found = (pl.col("response_class") == "normal") & pl.col("short_text").is_in(texts)
                frame = frame.with_columns(
                    response_class=pl.when(found)
                    .then(pl.lit("repeated"))
                    .otherwise(pl.col("response_class"))
                )
            frame = frame.with_columns(flagged=pl.col("response_class").is_in(list(TRIVIAL)))
            writer.add_table(frame.select(AUDIT.names).to_arrow())
            for name in frame["response_class"].unique(maintain_order=True):
                known = examples.setdefault(name, [])
                if len(known) < SHOWN:
                    rows = frame.filter(pl.col("response_class") == name)
                    rows = rows.head(SHOWN - len(known))
                    known += [example(row) for row in rows.iter_rows(named=True)]
            frames.append(
                frame.with_columns(
                    prompt_key=pl.col("prompt_hash").hash(),
                    id_key=pl.when(pl.col("id").is_not_null()).then(pl.col("id").hash()),
                )
                .select(COUNTED)
                .with_columns(
                    pl.col("source").cast(pl.Enum(sources)),
                    pl.col("response_class").cast(names),
                    pl.col("script").cast(pl.Categorical),
                )
            )
            path.unlink()
    if not frames:
        empty = pl.from_arrow(PART.empty_table())
        assert isinstance(empty, pl.DataFrame)
        keys = [pl.lit(0, pl.UInt64).alias(name) for name in ("prompt_key", "id_key")]
        frames = [empty.with_columns(keys).select(COUNTED)]
    return pl.concat(frames), examples


def example(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the report shows it: the beginnings of its last prompt and response."""
    messages = orjson.loads(row["messages"])
    asked = [m["content"] for m in messages if m["role"] == "user"]
    return {
        "source": row["source"],
        "line": row["line"],
        "prompt": beginning(asked[-1] if asked else ""),
        "response": beginning(messages[-1]["content"] or ""),
    }


def audit(config: Config, out: Path, rejected: Path, rows: Path, processes: int) -> dict[str, Any]:
    """Read everything, write rows and rejects, return the report.

    Raises:
        ConfigError: the input names nothing.
        OSError: a file cannot be read or written.
    """
    files = input_files(config.input)
    work = [part for path in files for part in parts(path, config.input_format)]
    prompts = Prompts.from_config(config)
    large = sum(Path(path).stat().st_size for path in files) >= HASTEN_BYTES
    if large and not prompts.hasten():
        say("audit: this tokenizer has no fast path; counting tokens takes several times as long")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    folder = out / ".parts"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found = Tally()
    per_source: dict[str, Tally] = {path: Tally() for path in files}
    part_files: list[Path] = []
    try:
        reader = PartReader(config, prompts, folder, large)
        told = time.monotonic()
        with rejected.open("wb") as log:
            for part, (path, part_found) in zip(
                work, read_all(reader, work, processes), strict=True
            ):
                log.write(part_found.rejected)
                found.add(part_found)
                if time.monotonic() - told > REPORT_S:
                    told = time.monotonic()
                    say(f"audit: {len(part_files) + 1} of {len(work)} parts read")
                per_source[part.path].add(part_found)
                part_files.append(path)
        accepted = found.lines.lines - found.lines.blank - sum(found.rejects.values())
        repeated = _repeated(part_files, config.audit, accepted)
        counted, examples = flag(part_files, rows, repeated.texts, files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    settings = config.audit
    checks = {
        "languages": languages(rows),
        "near_duplicates": near_duplicates(rows, settings.near_duplicate_threshold)
        if settings.near_duplicates
        else None,
        "contamination": contamination(rows, settings) if settings.held_out else None,
    }
    evidence = Evidence(found, per_source, counted, repeated, examples, rows, checks)
    return build(config, prompts, reader.turns, evidence)


def _repeated(files: list[Path], settings: Audit, accepted: int) -> Repeated:
    least = max(settings.repeated_min_prompts, int(settings.repeated_min_share * accepted))
    if not files:
        none = pl.DataFrame(
            schema={"text": pl.String, "prompts": pl.UInt32, "rows": pl.UInt32, "first": pl.UInt32}
        )
        return Repeated(none, none)
    texts, patterns = (repeated_texts(files, c, least) for c in ("short_text", "pattern"))
    return Repeated(texts, patterns)

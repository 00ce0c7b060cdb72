"""What the report tells: what went in, what came out and what fell out.

Counts come from the stages' JSON files. Of the tables only the rows that are shown are read whole,
so memory stays flat whatever the number of rows. The same run gives the same bytes.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from workflow_scripts.base import sums
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.pages.text import Json
from workflow_scripts.report.page import TRIVIAL_TOKENS, plots
from workflow_scripts.tables.parquet import side_files

SAMPLES = 6


def existing(path: Path, stage: str) -> Path:
    """The path of what a stage wrote.

    Raises:
        ConfigError: it is missing.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; run the stage `{stage}` first")
    return path


def read_json(path: Path, stage: str) -> Json:
    """A stage's JSON object.

    Raises:
        ConfigError: it is missing or not what the stage writes.
    """
    return sums.checked_json(existing(path, stage))


def scan(path: Path, stage: str) -> pl.LazyFrame:
    """A stage's table, unread but for its checksum.

    Raises:
        ConfigError: it is missing or damaged.
    """
    sums.check(existing(path, stage))
    return pl.scan_parquet(path)


def rows_of(table: pl.LazyFrame, ids: Sequence[str], *columns: str) -> list[Json]:
    """The rows with the given row ids, in the table's order."""
    chosen = table.filter(pl.col("row_id").is_in(list(ids))).select("row_id", *columns)
    return chosen.collect(engine="streaming").to_dicts()


def made_at(paths: Sequence[Path]) -> str:
    """When the newest of the files was written, to the minute, in UTC."""
    newest = max(path.stat().st_mtime for path in paths)
    return datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%d %H:%M UTC")


# ---- counts -------------------------------------------------------------------------------------


def reasons(table: pl.LazyFrame, *columns: str) -> list[Json]:
    """Rows by reason, the most frequent first, each with the row of the lowest id as example."""
    found: list[Json] = (
        table.group_by("reason")
        .agg(pl.len().alias("rows"), pl.col("row_id").min())
        .sort(["rows", "reason"], descending=[True, False])
        .collect(engine="streaming")
        .to_dicts()
    )
    examples: dict[Any, Json] = {}
    for row in rows_of(table, [f["row_id"] for f in found], "reason", *columns):
        examples.setdefault((row["row_id"], row["reason"]), row)
    return [f | examples[f["row_id"], f["reason"]] for f in found]


def lengths(counts: dict[str, int]) -> Json:
    """Numbers that describe token counts, by nearest rank; 0 where there are none."""
    sizes = {int(k): n for k, n in counts.items()}
    total = sum(sizes.values())

    def rank(share: float) -> int:
        seen = 0
        for size in sorted(sizes):
            seen += sizes[size]
            if seen >= share * total:
                return size
        return 0

    trivial = sum(n for size, n in sizes.items() if size <= TRIVIAL_TOKENS)
    return {
        "counts": sizes,
        "total": total,
        "median": rank(0.5),
        "p95": rank(0.95),
        "max": max(sizes, default=0),
        "trivial": trivial,
        "trivial_share": trivial / total if total else 0.0,
    }


# ---- samples ------------------------------------------------------------------------------------


def samples(rows: pl.LazyFrame, completions: pl.LazyFrame, turns: pl.LazyFrame) -> list[Json]:
    """A few rows, each class in turn, lowest row ids first (they are hashes: a random choice).

    Args:
        rows: the audit's rows.
        completions: the merged rows.
        turns: row_id, turn, completion_length, place of each response.
    """
    lowest = (
        completions.group_by("class")
        .agg(pl.col("row_id").bottom_k(SAMPLES))
        .sort("class")
        .collect(engine="streaming")
    )
    classes = [sorted(ids) for ids in lowest["row_id"]]
    ids = [c[k] for k in range(SAMPLES) for c in classes if k < len(c)][:SAMPLES]
    columns = ("source", "line", "messages", "response_class", "response_tokens")
    before = {row["row_id"]: row for row in rows_of(rows, ids, *columns)}
    after = {row["row_id"]: row for row in rows_of(completions, ids, "class", "messages")}
    last: dict[str, Json] = {}
    for turn in rows_of(turns, ids, "turn", "completion_length", "place"):
        if turn["turn"] >= last.get(turn["row_id"], turn)["turn"]:
            last[turn["row_id"]] = turn
    known = before.keys() & last.keys()  # a row that is not in both is for verify to name
    found = []
    for i in (i for i in ids if i in known):
        messages = orjson.loads(after[i]["messages"])
        prompt = next((m["content"] for m in reversed(messages) if m["role"] == "user"), None)
        old = orjson.loads(before[i]["messages"])[-1]
        texts = {"prompt": prompt, "old": old, "new": messages[-1], "class": after[i]["class"]}
        found.append(before[i] | last[i] | texts)
    return found


# ---- the page -----------------------------------------------------------------------------------


def turns_of(folder: Path) -> pl.LazyFrame:
    """Each response of the dataset with its place: its side, or why it was dropped."""
    parts = [(path, pl.lit(side)) for side, files in side_files(folder).items() for path in files]
    parts.append((folder / "rejected.parquet", pl.lit("dropped: ") + pl.col("reason")))
    return pl.concat(
        scan(path, "dataset").select("row_id", "turn", "completion_length", place=place)
        for path, place in parts
    )


def collect(config: Config, identity: Json) -> Json:
    """Everything the page shows.

    Raises:
        ConfigError: a file of the run is missing or broken.
    """
    out, run_hash = Path(config.output_dir), identity["run_hash"]
    generated = [out / f"generate/{run_hash}/shard-{k:04d}.json" for k in range(config.shards)]
    shards = [read_json(path, "generate") for path in generated]
    made = {key: sum(s[key] for s in shards) for key in ("rows", "completed", "failed", "tokens")}
    audit = read_json(out / "audit/report.json", "audit")
    manifest = read_json(out / "shards/manifest.json", "shard")
    stats = read_json(out / "dataset/stats.json", "dataset")
    verify = read_json(out / "verify.json", "verify")
    completions = scan(out / "merged/completions.parquet", "merge")
    failed = scan(out / "merged/failed.parquet", "merge")
    dropped = scan(out / "dataset/rejected.parquet", "dataset")
    turns = turns_of(out / "dataset")
    further = turns.filter(pl.col("turn") > 0).select(pl.len()).collect(engine="streaming").item()
    old = lengths(audit["response_token_counts"])
    new = lengths(stats["completion_token_counts"])
    names = ["audit/report.json", "shards/manifest.json", "dataset/stats.json", "verify.json"]
    names += ["merged/completions.parquet", "merged/failed.parquet"]
    columns = ("message", "attempts", "server", "server_age_s", "running_requests", "cache_use")
    return {
        "config": config,
        "identity": identity,
        "made_at": made_at([*generated, *map(out.joinpath, names)]),
        "audit": audit,
        "manifest": manifest,
        "shards": shards,
        "made": made,
        "stats": stats,
        "verify": verify,
        "further": further,
        "old": old,
        "new": new,
        "plots": plots(old, new),
        "failures": reasons(failed, "source", "line", *columns),
        "drops": reasons(dropped, "source", "line", "turn", "message"),
        "samples": samples(scan(out / "audit/rows.parquet", "audit"), completions, turns),
        "trivial_tokens": TRIVIAL_TOKENS,
    }

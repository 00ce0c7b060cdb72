"""Rounds in which failed rows are asked again."""

from pathlib import Path

from workflow_scripts.base.files import write_atomically

RETRY_TARGET = "retry_failed"
RETRY_VARIABLE = "TRACEMILL_RETRY_FAILED"  # set where jobs, on other machines too, are to ask again


def round_path(journals: Path, shard: str, shards: int) -> Path:
    return journals / f"shard-{shard}.n{shards}.round"


def read_round(journals: Path, shard: str, shards: int) -> int:
    try:
        return int(round_path(journals, shard, shards).read_text())
    except (OSError, ValueError):
        return 0


def next_round(journals: Path, shard: int, shards: int) -> None:
    """Count a retry of the shard's failed rows, as `Run.retry_round` expects it."""
    name = f"{shard:04d}"
    count = read_round(journals, name, shards) + 1
    write_atomically(round_path(journals, name, shards), str(count).encode())

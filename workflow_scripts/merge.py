"""Merge the shards, each checked against its recorded checksum, and the kept rows.

A shard that does not fit its checksum is moved aside and named; the next run rebuilds it from its
journal.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from workflow_scripts.base import sums
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.locks import sole
from workflow_scripts.base.log import say
from workflow_scripts.config.load import read_run
from workflow_scripts.tables.columns import COMPLETIONS, FAILED
from workflow_scripts.tables.parquet import read_batches, table_writer

BATCH = 1024


def completed(batch: pa.Table) -> pa.Table:
    """The completed rows of a generated batch in the merged form."""
    rows = batch.filter(pc.equal(batch["status"], "completed"))
    return rows.append_column("origin", pa.array(["generated"] * len(rows))).select(
        COMPLETIONS.names
    )


def kept_rows(path: Path, run_hash: str) -> Iterator[pa.Table]:
    """The kept rows in the merged form: no turn was generated for them."""
    for batch in read_batches(path, BATCH):
        rows = pa.Table.from_batches([batch])
        columns = {name: rows[name] for name in rows.column_names}
        columns["old_response_tokens"] = columns.pop("response_tokens")
        columns["run_hash"] = pa.array([run_hash] * len(rows))
        columns["origin"] = columns["class"] = pa.array(["kept"] * len(rows))
        columns["turns"] = pa.array([[]] * len(rows), COMPLETIONS.field("turns").type)
        yield pa.table({name: columns[name] for name in COMPLETIONS.names}).cast(COMPLETIONS)


def merge(
    shards: list[Path], kept: Path, run_hash: str, completions: Path, failed: Path
) -> tuple[int, int]:
    """Write both merged tables, holding one batch at a time.

    Returns:
        The numbers of completed or kept rows and of failed rows.

    Raises:
        Damaged: a shard does not fit its checksum.
    """
    for path in shards:
        if why := sums.fault_beside(path):
            raise sums.Damaged(
                f"{path} {why}; moved to {sums.aside(path)}. Run again: the shard is rebuilt from "
                "its journal without asking the engine."
            )
    with table_writer(completions, COMPLETIONS) as good, table_writer(failed, FAILED) as bad:
        for path in shards:
            for record_batch in read_batches(path, BATCH):
                batch = pa.Table.from_batches([record_batch])
                good.add_table(completed(batch))
                bad.add_table(
                    batch.filter(pc.equal(batch["status"], "failed")).select(FAILED.names)
                )
        for batch in kept_rows(kept, run_hash):
            good.add_table(batch)
    return good.written, bad.written


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--completions", type=Path, required=True)
    parser.add_argument("--failed", type=Path, required=True)
    args = parser.parse_args(argv)
    config, identity = read_run(args.run)
    folder = Path(config.output_dir) / "generate" / identity["run_hash"]
    shards = [folder / f"shard-{k:04d}.parquet" for k in range(config.shards)]
    try:
        with sole(args.run.parent, "merge"):
            sums.check(args.kept)
            good, bad = merge(
                shards, args.kept, identity["run_hash"], args.completions, args.failed
            )
            sums.record(args.completions.parent, [args.completions, args.failed])
    except (ConfigError, OSError) as error:
        say(f"merge: {error}")
        return 1
    say(f"merge: {good} completed or kept, {bad} failed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

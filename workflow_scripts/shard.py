"""Split the accepted rows: those to ask into shards by row id, those to keep into one file.

Rows are sorted by row id, so shards in order are row ids in order whatever their number.
"""

import argparse
from pathlib import Path

import orjson
import polars as pl
import pyarrow.parquet as pq

from workflow_scripts.base import sums
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import appearing, file_sha256, write_atomically
from workflow_scripts.base.locks import sole
from workflow_scripts.base.log import say
from workflow_scripts.config.load import read_run
from workflow_scripts.identity import shard_of
from workflow_scripts.tables.columns import SHARD
from workflow_scripts.tables.parquet import table_writer

PASS_BYTES = 512 << 20  # of conversations held in memory at a time


def split(rows: Path, out: Path, regenerate: str, shards: int) -> dict[str, object]:
    """Write `out`/shard-<k>.parquet, kept.parquet and manifest.json.

    Reads `rows` as often as needed to hold at most about PASS_BYTES of it at a time; row ids are
    hashes, so equal ranges of them hold about equally many rows.

    Returns:
        The manifest: number of shards, rows asked and kept, and each shard's rows and the first
        half of its SHA-256. Generation depends on the manifest alone, which therefore has to
        change with any shard.
    """
    scan = pl.scan_parquet(rows)
    size = scan.select(pl.col("messages").str.len_bytes().sum()).collect(engine="streaming").item()
    passes = min(max(1, -(-(size or 0) // PASS_BYTES)), shards)
    counts, digests = [0] * shards, [""] * shards
    kept = 0
    asked = pl.lit(True) if regenerate == "all" else pl.col("flagged")
    with table_writer(out / "kept.parquet", SHARD) as keep:
        for number in range(passes):
            # whole shards per pass: the ones whose first to last row ids it reads
            first, last = number * shards // passes, (number + 1) * shards // passes
            low, high = (f"{-(-(k << 64) // shards):016x}" for k in (first, last))
            in_range = pl.col("row_id") >= low
            if last < shards:
                in_range &= pl.col("row_id") < high
            frame = scan.filter(in_range).with_columns(asked=asked).sort("row_id").collect()
            table = frame.select(SHARD.names).to_arrow().cast(SHARD)
            mask = frame["asked"].to_list()
            keep.add(table.filter([not a for a in mask]).to_pylist())
            keep.flush()
            kept += len(mask) - sum(mask)
            table = table.filter(mask)
            owner = [shard_of(row_id, shards) for row_id in table["row_id"].to_pylist()]
            start = 0
            for shard in range(first, last):
                end = start
                while end < len(owner) and owner[end] == shard:
                    end += 1
                path = out / f"shard-{shard:04d}.parquet"
                with appearing(path) as f:
                    pq.write_table(table.slice(start, end - start), f, compression="zstd")
                counts[shard], digests[shard] = end - start, file_sha256(path)[:32]
                start = end
    manifest: dict[str, object] = {"shards": shards, "asked": sum(counts), "kept": kept}
    manifest |= {"rows": counts, "sha256": digests}
    write_atomically(out / "manifest.json", orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    return manifest


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--rows", type=Path, required=True, help="audit/rows.parquet")
    parser.add_argument("--output", type=Path, required=True, help="folder for the shards")
    args = parser.parse_args(argv)
    config, _ = read_run(args.run)
    try:
        with sole(args.run.parent, "shard"):
            sums.check(args.rows)
            made = split(args.rows, args.output, config.regenerate, config.shards)
            written = [args.output / name for name in ("manifest.json", "kept.parquet")]
            sums.record(args.output, written)
    except (ConfigError, OSError) as error:
        say(f"shard: {error}")
        return 1
    say(f"shard: {made['asked']} rows to ask in {config.shards} shards, {made['kept']} kept")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

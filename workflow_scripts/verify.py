"""Prove by identity that no row was lost or doubled between the input and the dataset.

The input is read again, line by line; each line must stand in exactly one place at every stage.
Always ends with 0 once it has written its evidence; the verify gate judges it.
"""

import argparse
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from workflow_scripts.base import sums
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import read_json, write_atomically
from workflow_scripts.base.locks import sole
from workflow_scripts.base.log import say
from workflow_scripts.config.load import read_run
from workflow_scripts.input.files import input_files
from workflow_scripts.input.lines import read_lines
from workflow_scripts.tables.parquet import side_files

EXAMPLES = 5
ID = pl.Schema({"row_id": pl.String})
Check = dict[str, Any]


def ids(frame: pl.LazyFrame) -> pl.DataFrame:
    return frame.select("row_id").collect(engine="streaming")


def same_rows(name: str, what: str, expected: pl.DataFrame, found: pl.DataFrame) -> list[Check]:
    """Each expected row id exactly once among the found ones, and no other.

    Args:
        name: name of the check.
        what: where the found ones stand, for messages.
        expected, found: frames with a column row_id.
    """
    doubled = found.filter(pl.col("row_id").is_duplicated()).unique(maintain_order=True)
    missing = expected.join(found, on="row_id", how="anti")
    foreign = found.join(expected, on="row_id", how="anti")
    return [
        check(f"{name}: none missing", f"rows missing from {what}", missing),
        check(f"{name}: none double", f"rows more than once in {what}", doubled),
        check(f"{name}: none foreign", f"rows in {what} that nobody asked for", foreign),
    ]


def check(name: str, fault: str, bad: pl.DataFrame) -> Check:
    """A check that passes if no row is bad."""
    return {
        "check": name,
        "ok": bad.is_empty(),
        "count": bad.height,
        "fault": None if bad.is_empty() else fault,
        "examples": [list(row) for row in bad.head(EXAMPLES).iter_rows()],
    }


def input_ids(files: list[str], input_format: str) -> pl.DataFrame:
    """Row ids of all lines of the input as it is now."""
    found = [line.row_id for path in files for line in read_lines(path, None, input_format)]
    return pl.DataFrame({"row_id": found}, schema=ID)


def read_rejected(path: Path) -> pl.DataFrame:
    lines = path.read_bytes().splitlines()
    return pl.DataFrame({"row_id": [orjson.loads(line)["row_id"] for line in lines]}, schema=ID)


def verify(
    out: Path, files: list[str], run_hash: str, shards: int, input_format: str = "auto"
) -> list[Check]:
    """All checks of a run whose files are under `out`."""
    rows = pl.scan_parquet(out / "audit/rows.parquet")
    accepted = ids(rows)
    lines = pl.concat([accepted, read_rejected(out / "audit/rejected.jsonl")])
    found = input_ids(files, input_format)
    checks = same_rows("input", "audit/ (accepted and rejected)", found, lines)

    asked = [
        ids(pl.scan_parquet(out / f"shards/shard-{shard:04d}.parquet")) for shard in range(shards)
    ]
    kept = ids(pl.scan_parquet(out / "shards/kept.parquet"))
    checks += same_rows("shards", "shards/", accepted, pl.concat([*asked, kept]))

    generated = pl.scan_parquet(
        [out / f"generate/{run_hash}/shard-{shard:04d}.parquet" for shard in range(shards)]
    )
    checks += same_rows("generate", f"generate/{run_hash}/", pl.concat(asked), ids(generated))
    checks.append(count_check(out / f"generate/{run_hash}", generated, shards))

    completions = pl.scan_parquet(out / "merged/completions.parquet")
    failed = pl.scan_parquet(out / "merged/failed.parquet")
    checks += same_rows("merge", "merged/", accepted, pl.concat([ids(completions), ids(failed)]))
    unexplained = failed.filter(pl.col("reason").is_null()).select("row_id").collect()
    checks.append(check("merge: failures explained", "failed without a reason", unexplained))

    checks += turn_checks(out, completions)
    hashed = {"generate": generated, "merge": completions, "failed": failed}
    for name, table in (hashed | {"dataset": dataset(out)}).items():
        foreign = table.filter(pl.col("run_hash").ne_missing(run_hash))
        fault = f"rows of another run than {run_hash}"
        checks.append(
            check(f"{name}: run hash", fault, foreign.select("row_id", "run_hash").collect())
        )
    return checks


def count_check(folder: Path, generated: pl.LazyFrame, shards: int) -> Check:
    """The counts beside the shards, which summary and report add up, are those of their rows."""
    told = [read_json(folder / f"shard-{shard:04d}.json") for shard in range(shards)]
    said = {status: sum(one[status] for one in told) for status in ("completed", "failed")}
    rows = dict(generated.group_by("status").len().collect(engine="streaming").iter_rows())
    wrong = [
        [name, rows.get(name, 0), said[name]] for name in said if rows.get(name, 0) != said[name]
    ]
    frame = pl.DataFrame(wrong, schema=["status", "rows", "told"], orient="row")
    fault = f"counts in {folder}/shard-*.json that are not those of the rows; delete them, and run"
    return check("generate: counts", f"{fault} again", frame)


def file_checks(out: Path, run_hash: str, shards: int) -> list[Check]:
    """The files of each stage are those that were written, byte for byte."""
    checks = []
    for name in ("audit", "shards", "merged", "dataset"):
        bad = wrong_files(out / name)
        remedy = (
            "delete the folder" if name == "dataset" else "delete them, of shards/ the manifest"
        )
        fault = f"files of {name}/ that are gone, foreign or not what was written; {remedy}, and"
        checks.append(check(f"{name}: files", f"{fault} run again", files_frame(bad)))
    generated = [out / f"generate/{run_hash}/shard-{shard:04d}.parquet" for shard in range(shards)]
    bad = [path.name for path in generated if sums.fault_beside(path)]
    fault = f"files of generate/{run_hash}/ that are gone or not what was written; delete them, and"
    checks.append(check("generate: files", f"{fault} run again", files_frame(bad)))
    return checks


def files_frame(names: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"file": sorted(names)}, schema={"file": pl.String})


def wrong_files(folder: Path) -> list[str]:
    """Files of a stage's folder that differ from its list of checksums; for a dataset, where a
    trainer takes what it finds, also tables that are not on the list."""
    try:
        bad, told = sums.changed(folder, thorough=True), sums.recorded(folder)
    except ValueError:
        return [sums.NAME]
    if told and folder.name == "dataset":  # an earlier version recorded none
        bad += [p.name for p in folder.glob("*.parquet") if p.name not in told]
    return bad


def dataset(out: Path) -> pl.LazyFrame:
    """All training rows, all sides."""
    files = [path for of_side in side_files(out / "dataset").values() for path in of_side]
    return pl.scan_parquet(files)


def turn_checks(out: Path, completions: pl.LazyFrame) -> list[Check]:
    """Each generated or kept turn exactly once in the dataset, trained on or dropped; masks."""
    key = ["row_id", "turn"]
    generated = (
        completions.filter(pl.col("origin") == "generated")
        .select("row_id", pl.int_ranges(pl.col("turns").list.len()).alias("turn"))
        .explode("turn", empty_as_null=False)
    )
    rows = pl.scan_parquet(out / "audit/rows.parquet").select("row_id", "turns")
    kept = (
        completions.filter(pl.col("origin") == "kept")
        .select("row_id")
        .join(rows, on="row_id")
        .select("row_id", pl.int_ranges(pl.col("turns")).alias("turn"))
        .explode("turn", empty_as_null=False)
    )
    expected = pl.concat([generated, kept]).with_columns(pl.col("turn").cast(pl.Int32)).collect()
    dropped = pl.scan_parquet(out / "dataset/rejected.parquet").select(key)
    found = pl.concat([dataset(out).select(key), dropped]).collect(engine="streaming")
    missing = expected.join(found, on=key, how="anti")
    foreign = found.join(expected, on=key, how="anti")
    doubled = found.filter(pl.struct(key).is_duplicated()).unique(maintain_order=True)
    wrong_mask = dataset(out).filter(
        (pl.col("loss_mask").list.sum() != pl.col("completion_length"))
        | (pl.col("loss_mask").list.len() != pl.col("input_ids").list.len())
        | (pl.col("completion_length") < 1)
    )
    return [
        check("dataset: none missing", "turns neither in dataset/ nor its rejects", missing),
        check("dataset: none double", "turns more than once in dataset/", doubled),
        check("dataset: none foreign", "turns in dataset/ that were not generated", foreign),
        check(
            "dataset: ids", "turns whose ids are not those of merged/", other_ids(out, completions)
        ),
        check(
            "dataset: masks",
            "loss masks that do not cover the completion",
            wrong_mask.select(key).collect(engine="streaming"),
        ),
    ]


def other_ids(out: Path, completions: pl.LazyFrame) -> pl.DataFrame:
    """Generated turns of the dataset whose ids are not the prompt's that was sent and those that
    came back. Hashes of the ids are compared, so that no more than those is held."""
    merged = (
        completions.filter(pl.col("origin") == "generated")
        .select("row_id", "turns")
        .explode("turns", empty_as_null=False)
        .unnest("turns")
        .select("row_id", "turn", pl.concat_list("prompt_ids", "output_ids").hash().alias("right"))
    )
    trained = (
        dataset(out)
        .filter(pl.col("origin") == "generated")
        .select("row_id", "turn", pl.col("input_ids").hash().alias("ids"))
    )
    both = trained.join(merged, on=["row_id", "turn"])
    wrong = both.filter(pl.col("ids") != pl.col("right")).select("row_id", "turn")
    return wrong.collect(engine="streaming")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--output", type=Path, required=True, help="the evidence, JSON")
    args = parser.parse_args(argv)
    config, identity = read_run(args.run)
    run_hash = identity["run_hash"]
    files = input_files(config.input)
    out = Path(config.output_dir)
    with sole(args.run.parent, "verify"):
        checks: list[Check] = []
        try:
            checks += file_checks(out, run_hash, config.shards)
            checks += verify(out, files, run_hash, config.shards, config.input_format)
        except (pl.exceptions.PolarsError, ConfigError, OSError, ValueError, KeyError) as error:
            # what cannot be read is evidence, too
            told = str(error).splitlines()[0][:300]
            fault = f"files that cannot be read ({told}); delete the file, of dataset/ the folder,"
            found = {"check": "files", "ok": False, "count": 1, "fault": f"{fault} and run again"}
            checks.append({**found, "examples": [[str(error)[:300]]]})
        ok = all(c["ok"] for c in checks)
        evidence = {"ok": ok, "run_hash": run_hash, "checks": checks}
        write_atomically(args.output, orjson.dumps(evidence, option=orjson.OPT_INDENT_2))
    for c in checks:
        if not c["ok"]:
            say(f"verify: {c['check']}: {c['count']} {c['fault']}, e.g. {c['examples'][0]}")
    say(f"verify: {'every row is accounted for' if ok else 'FAILED'} ({len(checks)} checks)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

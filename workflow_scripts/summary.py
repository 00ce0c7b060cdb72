"""Say in ten lines where a run's results are and what happened."""

import argparse
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts.config.load import read_run


def read(path: Path) -> Any:
    return orjson.loads(path.read_bytes()) if path.is_file() else None


def lines(run: Path) -> list[str]:
    """The summary of the run whose run.json is given; stages that have not run are said so."""
    config, identity = read_run(run)
    out = Path(config.output_dir)
    audit = read(out / "audit/report.json")
    if audit is None:
        return [f"{out}: nothing has run yet; start it with `snakemake --cores 7`"]
    said = [
        f"input      {audit['lines']} lines: {audit['accepted']} accepted, "
        f"{audit['rejected']} rejected, {audit['blank_lines']} blank",
        f"audit      {audit['verdict']}: {100 * audit['trivial_share']:.1f} % of the old responses "
        f"are trivial, see {out}/audit/report.html",
    ]
    folder = out / "generate" / identity["run_hash"]
    shards = [read(folder / f"shard-{k:04d}.json") for k in range(config.shards)]
    done = [shard for shard in shards if shard]
    completed, failed = (sum(shard[name] for shard in done) for name in ("completed", "failed"))
    said.append(f"generated  {completed} rows completed, {failed} failed ({len(done)} shards)")
    classes: dict[str, int] = {}
    for shard in done:
        for name, count in shard["classes"].items():
            classes[name] = classes.get(name, 0) + count
    said.append("           " + (", ".join(f"{n} {c}" for c, n in sorted(classes.items())) or "-"))
    if stats := read(out / "dataset/stats.json"):
        rows = stats["rows"]
        also = f" (and {rows['drafter']} for drafters)" if rows["drafter"] else ""
        said.append(
            f"dataset    {rows['train']} training and {rows['validation']} validation rows"
            f"{also}, "
            f"{stats['supervised_tokens']} supervised tokens, {rows['dropped']} dropped"
        )
        if ended := stats.get("ended"):
            told = ", ".join(f"{count} {reason}" for reason, count in ended.items())
            said.append(f"           conversations that ended early: {told}")
    if verify := read(out / "verify.json"):
        word = "every row is accounted for" if verify["ok"] else "FAILED, see verify.json"
        said.append(f"verify     {word} ({len(verify['checks'])} checks)")
    if config.engine.kind == "embedded":
        said.append("engine     a 135M-parameter model on the CPU: poor answers, real workflow")
    said += [
        f"run hash   {identity['run_hash']}",
        f"dataset in {out}/dataset",
        f"report in  {out}/report.html",
    ]
    return said


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    args = parser.parse_args(argv)
    print("\n".join(lines(args.run)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

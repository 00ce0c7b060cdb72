"""Damage to a run's files, which Snakemake does not look for, mended before its jobs are planned.

Whatever is not what its stage wrote is moved aside and made again in the same run: each stage from
the one before, a shard's result from its journal. No answered row is asked again.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts.base import sums
from workflow_scripts.base.locks import is_held
from workflow_scripts.base.log import say

# what a stage records the checksums of, and pages, which only have to be there
FILES = {
    "audit": ("report.json", "rejected.jsonl", "rows.parquet"),
    "shards": ("manifest.json", "kept.parquet"),
    "merged": ("completions.parquet", "failed.parquet"),
}
PAGES = ("report.html", "audit/report.html")


def mend(workflow: Any, out: Path, generated: Path) -> None:
    """Move aside what is damaged; in a dry run only say what.

    Args:
        workflow: Snakemake's own object.
        out: the run's folder.
        generated: its folder of the shards' results.
    """
    if not workflow.is_main_process or is_held(out / ".lock"):  # another run writes there
        return
    for path in broken(Path(".snakemake/metadata")):  # it would end in a traceback, dry or not
        say(f"{path}: Snakemake cannot read this record of its own; removed")
        path.unlink()
    for path, why in damaged(out, generated).items():
        if workflow.output_settings.dryrun:  # workflow.dryrun is not known yet
            say(f"{path}: {why}; it would be moved aside and made again")
        else:
            say(f"{path}: {why}; moved to {sums.aside(path)}, and made again")


def damaged(out: Path, generated: Path) -> dict[Path, str]:
    """What is to be made again, and why."""
    bad: list[Path] = []
    for name, files in FILES.items():
        bad += changed(out / name, files)
    dataset = out / "dataset"
    # a card may be edited, so it has no checksum, but it is written last
    no_card = (dataset / sums.NAME).exists() and not (dataset / "README.md").exists()
    if dataset.is_dir() and (no_card or changed(dataset, ("stats.json", "README.md"))):
        bad.append(dataset)
    # the manifest is what makes shards' rows again
    bad = [p.with_name("manifest.json") if p.match("shards/shard-*") else p for p in bad]
    found = {path: "not what was written" for path in bad if path.exists()}
    for path in sorted(generated.glob("shard-*.parquet")):
        record = path.with_suffix(".json")
        if not _is_object(record) or sums.newer(path, record):
            if fault := sums.fault_beside(path):
                found[path] = fault
            else:
                record.touch()
    pages = [out / name for name in PAGES]
    found |= {path: "empty" for path in pages if path.exists() and not path.stat().st_size}
    if (verify := out / "verify.json").exists() and not _is_object(verify):
        found[verify] = "no JSON object"
    return found


def changed(folder: Path, files: Iterable[str]) -> list[Path]:
    """Files of a stage that are gone or not what was written; in a run of an earlier version, which
    has no checksums, those that are empty or no JSON."""
    try:
        bad = sums.changed(folder)
    except (OSError, ValueError):  # the list itself: then nothing there can be trusted
        return [folder / name for name in (*files, sums.NAME)]
    there = [path for path in map(folder.joinpath, files) if path.exists()]
    bad += [path.name for path in there if not path.stat().st_size and path.suffix != ".jsonl"]
    bad += [path.name for path in there if path.suffix == ".json" and not _is_object(path)]
    return [folder / name for name in bad]


def broken(records: Path) -> Iterator[Path]:
    """Snakemake's records that it cannot read; without one it goes by the files' times."""
    for path in records.rglob("*"):
        if path.is_file() and not _is_object(path):
            yield path


def _is_object(path: Path) -> bool:
    try:
        return isinstance(orjson.loads(path.read_bytes()), dict)
    except (OSError, ValueError):
        return False

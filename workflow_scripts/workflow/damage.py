"""Damage that Snakemake cannot see, since it looks at a folder's name and time alone."""

import json
import shutil
from pathlib import Path
from typing import Any

from workflow_scripts.base.log import say


def mend(workflow: Any, out: str) -> None:
    """Before the jobs of a run are planned, and only where they will be carried out.

    Args:
        workflow: Snakemake's own object.
        out: the run's folder.
    """
    if workflow.is_main_process and not workflow.dryrun:
        set_aside(Path(out) / "dataset")


def set_aside(folder: Path) -> None:
    """Move a dataset aside that lacks a file or has one of another size, by its stats.json, so that
    it is made again; its answers are in merged/. One without a stats.json is being made."""
    stats = folder / "stats.json"
    if not stats.is_file():
        return
    try:
        told = json.loads(stats.read_bytes()).get("files", {})
        sizes = {name: (folder / name).stat().st_size for name in told}
        if sizes == {name: one["bytes"] for name, one in told.items()}:
            return
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        pass
    aside = folder.with_name(f"{folder.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    say(f"{folder} lacks files, or has them cut; moved to {aside}, and made again")

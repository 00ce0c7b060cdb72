"""Whether a run will ask servers, told before its first job."""

import os
from pathlib import Path
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import read_json
from workflow_scripts.config.sections import Config


def asks_here(workflow: Any, config: Config, run_hash: str) -> bool:
    """Whether this run will surely ask servers from this host: some shard that is to be generated
    has rows, and nothing in the journals. What may be in journals needs no server; if it is not
    there, the first shard that misses it says so.

    Args:
        workflow: Snakemake's own object, with its jobs planned.
    """
    here = workflow.local_exec and not (workflow.touch or workflow.remote_exec)
    if config.engine.kind == "embedded" or not here:
        return False
    jobs = (job for job in workflow.dag.needrun_jobs() if job.rule.name == "generate")
    shards = [int(job.wildcards.shard) for job in jobs]
    if not shards:
        return False
    folder, end = Path(config.output_dir) / "generate" / run_hash / "journal", f".n{config.shards}"
    names = os.listdir(folder) if folder.is_dir() else []
    journals = {name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl")}
    if any(not name.endswith(end) for name in journals):  # of another number of shards
        return False
    rows = _rows(config)
    return any(rows[shard] and f"shard-{shard:04d}{end}" not in journals for shard in shards)


def _rows(config: Config) -> list[int]:
    """Rows by shard, as the run's last shards have them; without any a guess, of none where it
    depends on the audit."""
    try:
        rows = read_json(Path(config.output_dir) / "shards/manifest.json")["rows"]
        if len(rows) == config.shards:
            return list(map(int, rows))
    except (ConfigError, KeyError, TypeError, ValueError):
        pass
    return [int(config.regenerate == "all")] * config.shards

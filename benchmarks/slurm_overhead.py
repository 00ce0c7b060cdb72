"""Where the time goes between the submission of shards and their last rows, on the tests' Slurm.

    python -m benchmarks.slurm_overhead [--shards 12] [--start 20] [--batch 4]

The stand-in engine takes `--start` seconds until it listens and then answers ten rows a shard
within a second, so that nearly all of the time is overhead. Three ways: one Slurm job a shard (the
profile), batches of `--batch` shards in a job (Snakemake's groups), and the local executor with as
many GPUs. Slurm's own times have a resolution of a second.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.runs.test_slurm import Site
from tests.stand_ins.slurm import Cluster

ROWS = 10  # of a shard


def site_in(folder: Path, cluster: Cluster, patch: pytest.MonkeyPatch, args: Any) -> Site:
    folder.mkdir()
    site = Site(cluster, folder, patch)
    site.make(args.shards, ROWS * args.shards)
    site.answer(start={str(i): args.start for i in range(4 * args.shards)})
    done = site.run("shard")
    assert done.code == 0, done.output
    return site


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def parts(site: Site, since: float) -> dict[str, float]:
    """Medians over the jobs that started since then, in seconds."""
    jobs = [j for j in site.cluster.ended() if seconds(j["SubmitTime"]) >= since - 1]
    first: dict[str, list[float]] = {"started": [], "ready": [], "stopped": []}
    for path in (site.out / "logs/servers").glob("*/metrics.jsonl"):
        for line in lines(path):
            if line.get("event") in first:
                first[line["event"]].append(line["t"])
    rows = [entry["t"] for entry in site.log.entries()]
    begun = [seconds(j["StartTime"]) for j in jobs]
    queue = statistics.median(seconds(j["StartTime"]) - seconds(j["SubmitTime"]) for j in jobs)
    return {
        "jobs": len(jobs),
        "queue": round(queue, 1),
        "until the engine is started": round(
            statistics.median(first["started"]) - statistics.median(begun), 1
        ),
        "engine start": round(
            statistics.median(first["ready"]) - statistics.median(first["started"]), 1
        ),
        "rows": round(statistics.median(first["stopped"]) - statistics.median(first["ready"]), 1),
        "end of the job": round(
            statistics.median(seconds(j["EndTime"]) for j in jobs)
            - statistics.median(first["stopped"]),
            1,
        ),
        "Snakemake until the submission": round(
            min(seconds(j["SubmitTime"]) for j in jobs) - since, 1
        ),
        "until the last row": round(max(rows) - since, 1),
    }


def generate(site: Site, *words: str) -> tuple[float, float]:
    """Run what is left; when it began (unix time) and how long it took."""
    began, clock = time.time(), time.monotonic()
    done = site.run(*words)
    assert done.code == 0, done.output
    return began, round(time.monotonic() - clock, 1)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--start", type=float, default=20.0, help="seconds until an engine listens")
    parser.add_argument("--batch", type=int, default=4, help="shards in a job")
    args = parser.parse_args(argv)
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="slurm-")))
    base = Path(tempfile.mkdtemp(prefix="overhead-"))
    groups = ["--groups", "generate=batch", "--group-components", f"batch={args.batch}"]
    groups += ["--set-resource-scopes", "gpu=local", "--resources", "gpu=1"]
    try:
        cluster.start()
        for name, words in {"one job a shard": [], "batches": groups}.items():
            with pytest.MonkeyPatch.context() as patch:
                site = site_in(base / name.replace(" ", "-"), cluster, patch, args)
                began, whole = generate(site, *words)
                found = {"way": name, "load": os.getloadavg()[0], "whole run": whole}
                told = parts(site, began)
                if words:  # the medians of jobs that do one shard after another say nothing
                    told = {key: told[key] for key in ("jobs", "queue", "until the last row")}
                print(json.dumps(found | told), flush=True)
        with pytest.MonkeyPatch.context() as patch:
            site = site_in(base / "local", cluster, patch, args)
            patch.delenv("FAKE_DEVICES")
            patch.setenv("FAKE_GPUS", str(args.shards))
            clock = time.time()
            done = site.work.run("--resources", f"place={args.shards}")
            assert done.code == 0, done.output
            last = max(entry["t"] for entry in site.log.entries())
            found = {"way": "local", "load": os.getloadavg()[0]}
            found |= {"whole run": round(time.time() - clock, 1)}
            print(json.dumps(found | {"until the last row": round(last - clock, 1)}))
    finally:
        cluster.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Rows a second of a whole generate job beside a bare client of the same HTTP library.

    python -m benchmarks.generate [--rows 10000] [--in-flight 64 256] [--answer-tokens 16 64]

Both ask the same stand-in server, which answers at once, for the same prompts, in turn within one
run; the machine's own speed drifts, so the ratio is what counts. The bare client sends ready-made
bodies and parses the answers, nothing else. The job is the workflow's own program: it reads the
shard, renders and encodes prompts, asks, classifies, journals, decodes and writes the table.

    python -m benchmarks.generate --memory [--shards 8 800]

Peak memory of a job and of the stages that read all shards, with equally large shards.
"""

import argparse
import asyncio
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.made.model import make_model
from tests.made.workspace import stand_in
from workflow_scripts.config.load import load
from workflow_scripts.config.sections import Config
from workflow_scripts.engine.http import http_transport
from workflow_scripts.generate.job import generate
from workflow_scripts.identity import digest, request_seed
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.progress.shard import Progress
from workflow_scripts.tables.columns import SHARD
from workflow_scripts.workflow.run_identity import run_identity

QUESTION = (
    "Question {}: a train leaves at nine and drives ninety kilometres an hour; when is it there?"
)
LONG_ANSWERS = (900, 1100)  # tokens; about 4 KB of JSON


def write_rows(path: Path, rows: int, start: int = 0) -> None:
    records = []
    for number in range(start, start + rows):
        messages = [
            {"role": "user", "content": QUESTION.format(number)},
            {"role": "assistant", "content": ""},
        ]
        records.append(
            {
                "row_id": digest("bench", str(number)),
                "content_hash": digest(str(number)),
                "source": "bench",
                "line": number + 1,
                "id": None,
                "messages": json.dumps(messages),
                "response_tokens": 0,
            }
        )
    records.sort(key=lambda r: str(r["row_id"]))
    pq.write_table(pa.Table.from_pylist(records, SHARD), path)


def configuration(folder: Path, url: str, in_flight: int, shards: int = 1) -> Config:
    return load(
        {
            "output_dir": str(folder),
            "input": "x",
            "shards": shards,
            "model": {"path": str(folder / "model")},
            "engine": {"kind": "attach", "urls": [url], "canary": []},
            "sampling": {"max_new_tokens": 2048},
            "generate": {"concurrency": in_flight},
        }
    )


async def bare_client(url: str, bodies: list[bytes], in_flight: int) -> None:
    """Ask for all bodies, parsing each answer; nothing is kept."""
    todo = iter(bodies)
    async with httpx.AsyncClient(transport=http_transport(), timeout=None) as http:

        async def work() -> None:
            for body in todo:
                response = await http.post(
                    url, content=body, headers={"content-type": "application/json"}
                )
                orjson.loads(response.content)

        await asyncio.gather(*(work() for _ in range(in_flight)))


def bodies(rows: Path, config: Config) -> list[bytes]:
    prompts = Prompts.from_config(config)
    s = config.sampling
    found = []
    for row in pq.read_table(rows).to_pylist():
        ids = prompts.prompt_ids(json.loads(row["messages"])[:1])
        sampling = {
            "temperature": s.temperature,
            "top_p": s.top_p,
            "top_k": s.top_k,
            "min_p": s.min_p,
            "max_new_tokens": s.max_new_tokens,
            "sampling_seed": request_seed(s.seed, row["row_id"], 0),
            "stop_token_ids": sorted(prompts.end_ids),
        }
        found.append(
            orjson.dumps({"rid": row["row_id"], "input_ids": ids, "sampling_params": sampling})
        )
    return found


class Clock:
    """Wall and own CPU seconds of a block."""

    def __enter__(self) -> "Clock":
        self.start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self.start[0]
        self.cpu = time.process_time() - self.start[1]


def speed(
    rows: int, levels: list[int], repeats: int, answer_tokens: tuple[int, int]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        make_model(folder / "model")
        write_rows(folder / "rows.parquet", rows)
        with stand_in(answer_tokens=answer_tokens, max_running=512) as server:
            for in_flight in levels:
                config = configuration(folder, server.url, in_flight)
                ready = bodies(folder / "rows.parquet", config)
                pairs = []
                for number in range(repeats):
                    with Clock() as bare:
                        asyncio.run(bare_client(f"{server.url}/generate", ready, in_flight))
                    out = folder / f"out-{in_flight}-{number}"
                    with Clock() as job:
                        counts = generate(config, "bench", folder / "rows.parquet", 0, rows, out)
                    assert counts["completed"] == rows, counts
                    pairs.append((bare, job))
                    print(
                        f"{in_flight} in flight: bare {rows / bare.wall:,.0f} rows/s "
                        f"({1e3 * bare.cpu / rows:.2f} ms CPU a request), job "
                        f"{rows / job.wall:,.0f} rows/s ({1e3 * job.cpu / rows:.2f} ms), ratio "
                        f"{bare.wall / job.wall:.2f}",
                        flush=True,
                    )
                result[f"in_flight_{in_flight}"] = {
                    "bare_rows_per_s": [round(rows / b.wall) for b, _ in pairs],
                    "job_rows_per_s": [round(rows / j.wall) for _, j in pairs],
                    "bare_cpu_ms_per_request": [round(1e3 * b.cpu / rows, 3) for b, _ in pairs],
                    "job_cpu_ms_per_request": [round(1e3 * j.cpu / rows, 3) for _, j in pairs],
                    "ratio_median": round(statistics.median(b.wall / j.wall for b, j in pairs), 3),
                }
    return result


def memory(shard_counts: list[int], rows_per_shard: int) -> dict[str, Any]:
    """Peak resident memory, MiB, of each stage that grows with the run, in a process of its own."""
    result: dict[str, Any] = {}
    for shards in shard_counts:
        with tempfile.TemporaryDirectory() as tmp:
            folder = Path(tmp)
            make_model(folder / "model")
            generated = folder / "generate/bench"
            with stand_in(answer_tokens=LONG_ANSWERS, max_running=512) as server:
                config = configuration(folder, server.url, 64, shards)
                identity = run_identity(config) | {"run_hash": "bench"}
                run = {"config": config.model_dump(mode="json"), "identity": identity}
                (folder / "run.json").write_text(json.dumps(run))
                (folder / "shards").mkdir()
                write_rows(folder / "shard-0000.parquet", rows_per_shard)
                written = [_sha256(folder / "shard-0000.parquet")[:32]]
                manifest = {"asked": shards * rows_per_shard, "sha256": written}
                (folder / "manifest.json").write_text(json.dumps(manifest))
                job = peak(
                    f"generate --run {folder}/run.json --shard 0 --manifest {folder}/manifest.json "
                    f"--output {generated}/shard-0000.parquet"
                )
            # the other shards are copies with row ids of their own: merging is what is measured
            first = pq.read_table(generated / "shard-0000.parquet")
            counts = json.loads((generated / "shard-0000.json").read_text())
            for shard in range(shards):
                ids = [digest(str(shard), row) for row in first["row_id"].to_pylist()]
                path = generated / f"shard-{shard:04d}.parquet"
                pq.write_table(first.set_column(0, "row_id", pa.array(ids)), path)
                counts["sha256"] = _sha256(path)
                path.with_suffix(".json").write_text(json.dumps(counts))
                progress = Progress(generated / "journal", shard, shards, rows_per_shard, 1)
                progress.save(running=False)
            pq.write_table(pa.Table.from_pylist([], SHARD), folder / "shards/kept.parquet")
            (folder / "merged").mkdir()
            merge = peak(
                f"merge --run {folder}/run.json --kept {folder}/shards/kept.parquet --completions "
                f"{folder}/merged/completions.parquet --failed {folder}/merged/failed.parquet"
            )
            dataset = peak(
                f"dataset --run {folder}/run.json --output {folder}/dataset "
                f"--completions {folder}/merged/completions.parquet"
            )
            found = {"generate": job, "merge": merge, "dataset": dataset}
            result[f"shards_{shards}"] = found
            print(f"{shards} shards of {rows_per_shard} rows: {found} MiB", flush=True)
    return result


def _sha256(path: Path) -> str:
    from workflow_scripts.base.files import file_sha256

    return file_sha256(path)


def peak(command: str) -> int:
    """Run a stage and return its peak resident memory in MiB."""
    code = (
        "import resource, runpy, sys\n"
        "try: runpy.run_module('workflow_scripts.' + sys.argv[1], run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    name, *rest = command.split()
    program = [sys.executable, "-c", code.replace("sys.argv[1]", repr(name)), *rest]
    done = subprocess.run(program, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stderr[-2000:]}")
    return int(done.stdout.split()[-1])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--answer-tokens", type=int, nargs=2, default=[16, 64])
    parser.add_argument("--memory", action="store_true", help="measure memory in place of speed")
    parser.add_argument("--shards", type=int, nargs="+", default=[8, 800])
    parser.add_argument("--rows-per-shard", type=int, default=250)
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    args = parser.parse_args(argv)
    if args.memory:
        result = memory(args.shards, args.rows_per_shard)
    else:
        low, high = args.answer_tokens
        result = speed(args.rows, args.in_flight, args.repeats, (low, high))
        result["answer_tokens"] = [low, high]
        result["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    result["machine"] = f"{platform.machine()}, Python {platform.python_version()}"
    if args.output:
        args.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

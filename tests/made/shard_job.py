"""A shard's job: its rows, its folder, and ways to run it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tests.made.model import make_model
from workflow_scripts.base.files import file_sha256
from workflow_scripts.config.load import load
from workflow_scripts.config.sections import Config
from workflow_scripts.generate.job import generate
from workflow_scripts.identity import digest
from workflow_scripts.tables.columns import SHARD

RUN = "feedfacefeedface"


class Job:
    """A shard of rows, and the configuration to generate it."""

    def __init__(self, folder: Path, conversations: list[list[str]]):
        self.folder = folder
        self.out = folder / "generate" / RUN
        self.model = make_model(folder / "model")
        self.rows = folder / "shard-0000.parquet"
        records = []
        for number, questions in enumerate(conversations, 1):
            messages: list[dict[str, Any]] = []
            for text in questions:
                messages.append({"role": "user", "content": text})
                messages.append({"role": "assistant", "content": "old"})
            records.append(
                {
                    "row_id": digest("input.jsonl", str(number)),
                    "content_hash": digest(str(number)),
                    "source": "input.jsonl",
                    "line": number,
                    "id": None,
                    "messages": json.dumps(messages),
                    "response_tokens": 3,
                }
            )
        records.sort(key=lambda r: str(r["row_id"]))
        pq.write_table(pa.Table.from_pylist(records, SHARD), self.rows)

    def config(self, url: str, reconnect_s: float = 2, **generate_settings: Any) -> Config:
        settings = {"retries": 3, "max_failed_fraction": 1.0, "stall_timeout_s": 30}
        return load(
            {
                "output_dir": str(self.folder),
                "input": "x",
                "shards": 1,
                "model": {"path": str(self.model)},
                "engine": {
                    "kind": "attach",
                    "urls": [url],
                    "reconnect_s": reconnect_s,
                    "canary": [],
                },
                "sampling": {"max_new_tokens": 64, "temperature": 0.7},
                "generate": settings | generate_settings,
            }
        )

    def run(self, url: str, retry_failed: bool = False, **settings: Any) -> dict[str, Any]:
        config = self.config(url, **settings)
        return generate(config, RUN, self.rows, 0, 99, self.out, retry_failed)

    def start(self, url: str, concurrency: int = 4, **kwargs: Any) -> subprocess.Popen[str]:
        """The same in a process of its own, with so many requests in flight."""
        run_file, manifest = self.folder / "run.json", self.folder / "manifest.json"
        config = self.config(url, concurrency=concurrency).model_dump(mode="json")
        run_file.write_text(json.dumps({"config": config, "identity": {"run_hash": RUN}}))
        told = {"asked": 10, "sha256": [file_sha256(self.rows)[:32]]}
        manifest.write_text(json.dumps(told))
        command = [sys.executable, "-m", "workflow_scripts.generate", "--run", str(run_file)]
        command += ["--shard", "0", "--manifest", str(manifest)]
        command += ["--output", str(self.out / "shard-0000.parquet")]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **kwargs)

    def table(self) -> pl.DataFrame:
        return pl.read_parquet(self.out / "shard-0000.parquet")

    def journal(self) -> list[dict[str, Any]]:
        lines = (self.out / "journal/shard-0000.n1.jsonl").read_bytes().splitlines()
        return [json.loads(line[9:]) for line in lines]

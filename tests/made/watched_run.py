"""A run made by hand for the live view to look at."""

import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from workflow_scripts.progress.state import Files, RunState, read_state
from workflow_scripts.watch.screen import render

NOW = 1_800_000_000.0
RUN = "feedfacefeedface"


class Made:
    """A run made by hand, in the working folder so that its path is the same everywhere."""

    path = Path("run")

    def put(self, name: str, content: Any) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def begin(self, sizes: list[int], kept: int = 0, age: float = 3723.0) -> None:
        """run.json, `age` seconds old, and the manifest of shards with that many rows."""
        config, identity = {"shards": len(sizes)}, {"run_hash": RUN, "engine": "sglang"}
        path = self.put("run.json", {"config": config, "identity": identity})
        os.utime(path, (NOW - age, NOW - age))
        manifest = {"shards": len(sizes), "asked": sum(sizes), "kept": kept, "rows": sizes}
        self.put("shards/manifest.json", manifest)
        self.shards = len(sizes)

    def job(self, k: int, rows: int, done: int, failed: int, tokens: int, **more: Any) -> Path:
        found: dict[str, Any] = {"rows": rows, "done": done, "failed": failed, "tokens": tokens}
        found |= {"rate": 10.0, "time": NOW - 1, **more}
        return self.put(f"generate/{RUN}/journal/shard-{k:04d}.n{self.shards}.progress.json", found)

    def over(self, k: int, rows: int, failed: int, tokens: int, **classes: int) -> Path:
        found: dict[str, Any] = {"rows": rows, "completed": rows - failed, "failed": failed}
        found |= {"tokens": tokens, "classes": classes, "run_hash": RUN, "sha256": "0" * 64}
        return self.put(f"generate/{RUN}/shard-{k:04d}.json", found)

    def log(self, *lines: dict[str, Any] | str) -> None:
        path = self.path / "logs/metrics.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as f:
            for line in lines:
                f.write(line if isinstance(line, str) else json.dumps(line) + "\n")

    def state(self, now: float = NOW, files: Files | None = None) -> RunState:
        return read_state(self.path, now, files)

    def view(self, width: int = 80, now: float = NOW) -> str:
        """What is shown, as plain text, without the blanks that fill a table's rows."""
        console = Console(width=width, force_terminal=False, color_system=None)
        with console.capture() as drawn:
            console.print(render(self.state(now), width, now))
        return "\n".join(line.rstrip() for line in drawn.get().splitlines())


def metrics(server: str = "0", **more: Any) -> dict[str, Any]:
    """A line of a server in full work."""
    line = {
        "t": NOW - 2,
        "server": server,
        "gpu": f"GPU-8f{server}",
        "url": f"http://127.0.0.1:3000{server}",
        "state": "ready",
        "age_s": 3600.0,
        "running": 30,
        "queued": 3,
        "max_running": 64,
        "in_flight": 70,
        "limit": 73,
        "generated_tokens": 123456,
        "tokens_per_s": 2010.5,
        "kv_use": 0.31,
        "state_use": 0.97,
        "accept_length": 3.14,
        "retractions": 0,
        "gpu_util": 98,
        "gpu_mem_mib": 121000,
        "gpu_mem_total_mib": 143771,
        "watts": 640.4,
    }
    return line | more


def full(made: Made) -> None:
    """13 shards of 10 rows: 2 done, 9 running, 1 stopped, 1 waiting.

    Rows done: 20 + 9 x 4 + 6 = 62, of them failed 1 + 1 + 2 = 4, so 58 completed, with 9,000 +
    10,000 + 3,000 + 8 x 4,000 + 4,000 = 58,000 tokens: 1,000 a row.
    """
    made.begin([10] * 13, kept=7)
    made.over(0, 10, 1, 9000, complete=8, no_answer=1)
    made.over(1, 10, 0, 10000, complete=10)
    made.job(0, 10, 10, 1, 9000, rate=0.0, time=NOW - 900, failures={"timeout": 1})
    made.job(1, 10, 10, 0, 10000, rate=0.0, time=NOW - 800)
    late = [NOW - 42, "timeout", "no answer within 16684 s"]
    made.job(2, 10, 4, 1, 3000, failures={"timeout": 1}, recent=[late])
    for k in range(3, 11):
        made.job(k, 10, 4, 0, 4000, failures={}, recent=[])
    refused = [NOW - 3700, "refused", "HTTP 400:\n\x1b[31m" + "prompt too long, " * 10]
    failures = {"refused": 1}  # of two: the other one was counted by an older version
    made.job(11, 10, 6, 2, 4000, time=NOW - 61, failures=failures, recent=[refused])
    made.log({"t": NOW - 50, "event": "dead", "server": "1", "text": "exit status -9"})
    made.log({"t": NOW - 45, "event": "restarted", "server": "1", "text": "attempt 1"})
    made.log(metrics("0", tokens_per_s=20), metrics("1", tokens_per_s=14, state="canary"))
    nulls = dict.fromkeys(metrics(), None) | {"t": NOW - 75, "server": "2", "state": "down"}
    made.log(nulls | {"tokens_per_s": 5000})  # stale: counts no more


FULL_80 = """\
tracemill run
RUNNING | elapsed 1:02:03 | run feedfacefeedface
rows      [####......] 62/130 (47.6 %) | 4 failed | 7 kept
tokens    58,000 | 34 tokens/s | ETA 33:20
answers   complete 18, no_answer 1 (in finished shards)

srv state  run/max que tok/s KV% st% acc ret GPU%     GiB   W     age
0   ready    30/64   3    20  31  97 3.1   0   98 118/140 640 1:00:00
1   canary   30/64   3    14  31  97 3.1   0   98 118/140 640 1:00:00
2   down         -   - 5,000   -   -   -   -    -       -   -       - stale

shards    2 done | 9 running | 1 stopped | 1 waiting
  0002 [####......] 4/10 1 failed   0003 [####......] 4/10
  0004 [####......] 4/10            0005 [####......] 4/10
  0006 [####......] 4/10            0007 [####......] 4/10
  0008 [####......] 4/10            0009 [####......] 4/10
  +1 more

failures  timeout 2, refused 1, reason not recorded 1
     0:42 ago  timeout  no answer within 16684 s
  1:01:40 ago  refused  HTTP 400: ?[31mprompt too long, prompt too long, prompt…

events
     0:45 ago  server 1  restarted  attempt 1
     0:50 ago  server 1  dead  exit status -9"""

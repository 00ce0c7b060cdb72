"""Progress of generation: a line that says where the whole run stands, not only this shard.

Each job keeps one small file beside its journal; a job's line adds up all of them, so any log file
shows the whole. Lines, not a moving bar: they read the same on a terminal and in a log.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts.base.files import write_atomically
from workflow_scripts.base.log import duration

RECENT = 5  # failures kept with their message
STALE_S = 60.0  # a job silent for longer no longer counts into the rate


@dataclass(slots=True)
class Progress:
    """One job's share of the progress.

    `tokens` counts generated tokens of completed rows; `fresh_*` only what this job asked for, so
    that answers found in a journal do not count as speed.
    """

    folder: Path
    shard: int
    shards: int
    rows: int  # of this shard
    all_rows: int  # of the whole run
    done: int = 0
    failed: int = 0
    tokens: int = 0
    fresh_rows: int = 0
    fresh_tokens: int = 0
    started: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    recent: list[tuple[float, str, str]] = field(default_factory=list)  # time, reason, message

    @property
    def path(self) -> Path:
        return self.folder / f"shard-{self.shard:04d}.n{self.shards}.progress.json"

    def count(self, tokens: int, failure: dict[str, Any] | None, fresh: bool) -> None:
        """A row is over: generated tokens, its failure if it failed, whether it was asked now."""
        self.done += 1
        self.tokens += tokens
        if failure is not None:
            self.failed += 1
            reason = failure["reason"]
            self.failures[reason] = self.failures.get(reason, 0) + 1
            self.recent = [*self.recent, (time.time(), reason, failure["message"][:300])][-RECENT:]
        if fresh:
            self.started = self.started or time.monotonic()
            self.fresh_rows += 1
            self.fresh_tokens += tokens

    def rate(self) -> float:
        """Generated tokens a second of this job."""
        return self.fresh_tokens / max(time.monotonic() - self.started, 1e-3) if self.started else 0

    def save(self, running: bool) -> None:
        state = {
            "rows": self.rows,
            "done": self.done,
            "failed": self.failed,
            "tokens": self.tokens,
            "rate": self.rate() if running else 0.0,
            "time": time.time(),
            "running": running,
            "failures": self.failures,
            "recent": self.recent,
        }
        with suppress(OSError):  # only who watches reads it; a full disk is the journal's to tell
            write_atomically(self.path, orjson.dumps(state), sync=False)

    def line(self) -> str:
        """Rows done of all, failures, tokens a second and the time left over all jobs."""
        done, failed, tokens, rate = self.done, self.failed, self.tokens, self.rate()
        others: list[Path] = []
        with suppress(OSError):  # too many open files, a folder that is gone: it ends no job
            others = [*self.folder.glob(f"shard-*.n{self.shards}.progress.json")]
        for path in others:
            if path == self.path:
                continue
            with suppress(OSError, ValueError, KeyError, TypeError):  # torn, or of a later version
                found = orjson.loads(path.read_bytes())
                names = ("done", "failed", "tokens", "time", "rate")
                other = {name: float(found[name]) for name in names}
                done += int(other["done"])
                failed += int(other["failed"])
                tokens += int(other["tokens"])
                if time.time() - other["time"] < STALE_S:
                    rate += other["rate"]
        answered = done - failed
        left = self.all_rows - done
        share = 100 * done / max(self.all_rows, 1)
        text = f"{done}/{self.all_rows} rows ({share:.0f} %), {failed} failed"
        text += f" | {rate:,.0f} tokens/s"
        if left and rate and answered:
            # weighted by tokens: what is left is expected to be as long as what is done
            text += f" | about {duration(left * tokens / answered / rate)} left"
        return f"{text} | shard {self.shard}: {self.done}/{self.rows}"

"""The state of a run as its files tell it, for whoever watches.

Only reads, takes no lock, and trusts no file: each may be missing, torn or of a later version.
"""

import os
import socket
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts.base.log import clean
from workflow_scripts.progress.shard import STALE_S
from workflow_scripts.serve.address import logs_of

TAIL_BYTES = 1 << 20  # of a metrics file: the most that one look reads
SILENT_S = 15.0  # a server whose last line is older is marked stale
MEAN_S = 300.0  # speeds are means over this time: a server's counter moves in steps
RECENT_SHOWN, EVENTS_SHOWN = 5, 4
MOST_SHARDS = 9999  # as in the configuration
Note = tuple[float, str]  # unix time, text


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server's last line. `values` holds its numbers as the line names them (seconds, MiB, watts,
    tokens a second, GPU use in percent, other uses from 0 to 1), without those that are null."""

    name: str
    state: str
    url: str
    time: float  # unix
    values: dict[str, float]
    speeds: list[tuple[float, float]]  # unix time and tokens a second, of MEAN_S in this state

    @property
    def rate(self) -> float | None:
        """Tokens a second, the mean of `speeds`."""
        return sum(speed for _, speed in self.speeds) / len(self.speeds) if self.speeds else None


@dataclass(slots=True)
class RunState:
    """A run at one moment. Times are unix times; None is what nothing tells."""

    path: Path
    run_hash: str | None = None
    status: str = "not started"  # or running, finished, stopped
    started: float | None = None  # when the workflow was started last
    last: float = 0.0  # when a job wrote last; 0 if none did
    asked: float | None = None  # rows
    kept: float | None = None  # rows
    done: int = 0  # rows, failed ones included
    failed: int = 0  # rows
    tokens: int = 0  # generated
    rate: float = 0.0  # tokens a second, over all
    stages: Counter[str] = field(default_factory=Counter)  # shards done, running, stopped, waiting
    running: list[tuple[int, int, int, int]] = field(default_factory=list)  # see _read_shards
    classes: Counter[str] = field(default_factory=Counter)  # rows of finished shards
    failures: Counter[str] = field(default_factory=Counter)  # rows
    recent: list[Note] = field(default_factory=list)  # failures, the latest first
    servers: list[ServerState] = field(default_factory=list)
    events: list[Note] = field(default_factory=list)  # the latest first

    @property
    def eta_s(self) -> float | None:
        """Seconds left, if rows to come are as long as the completed ones; None if unknown."""
        completed = self.done - self.failed
        if self.status != "running" or self.asked is None or completed <= 0 or self.rate < 1e-3:
            return None
        return max(self.asked - self.done, 0) * self.tokens / completed / self.rate


class Files:
    """What earlier looks found, so that a look reads only what is new: small files are known by
    inode, size and time, metrics files by how far they were read."""

    def __init__(self) -> None:
        self.metrics: dict[str | None, MetricsFile] = {}
        self._small: dict[Path, tuple[tuple[int, ...], dict[str, Any]]] = {}

    @property
    def bytes_read(self) -> int:
        return sum(file.bytes_read for file in self.metrics.values())

    def small(self, path: Path) -> dict[str, Any]:
        """A file's JSON object; the one before while it is torn, or an empty one."""
        known, content = self._small.get(path, ((), {}))
        try:
            stat = path.stat()
            key = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if key != known and isinstance(found := orjson.loads(path.read_bytes()), dict):
                self._small[path] = key, (content := found)
        except FileNotFoundError:
            self._small.pop(path, None)
            return {}
        except (OSError, ValueError):
            pass
        return content

    def follow(self, output_dir: Path, shards: list[str]) -> None:
        """Read what is new of the host's metrics and of those of these shards' jobs on a cluster,
        and forget those of other shards."""
        wanted = (None, *shards)
        self.metrics = {shard: self.metrics.get(shard) or MetricsFile(shard) for shard in wanted}
        for shard, file in self.metrics.items():
            file.follow(logs_of(str(output_dir), shard) / "metrics.jsonl")


class MetricsFile:
    """What a daemon's metrics file says, as far as it was read.

    Args:
        shard: whose job on a cluster wrote it; its servers are named after it, since there every
            job's first server is number 0.
    """

    def __init__(self, shard: str | None) -> None:
        self.shard = shard
        self.bytes_read = 0
        self.servers: dict[str, ServerState] = {}
        self.events: deque[Note] = deque(maxlen=EVENTS_SHOWN)
        self._inode = self._offset = 0

    def follow(self, path: Path) -> None:
        """Read the whole lines that came since the last look, at most the last TAIL_BYTES."""
        try:
            with path.open("rb") as f:
                stat = os.fstat(f.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._offset:  # another file
                    self._inode, self._offset = stat.st_ino, 0
                    self.servers.clear()
                    self.events.clear()
                skip = stat.st_size - self._offset > TAIL_BYTES
                start = stat.st_size - TAIL_BYTES if skip else self._offset
                f.seek(start)
                text = f.read(stat.st_size - start)
        except OSError:
            return
        self.bytes_read += len(text)
        begin, end = text.find(b"\n") + 1 if skip else 0, text.rfind(b"\n") + 1
        self._offset = start + end  # a line without its end is read again
        for line in text[begin:end].split(b"\n"):
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            found = orjson.loads(line)
        except ValueError:
            return
        if not isinstance(found, dict) or (when := number(found.get("t"))) is None:
            return
        name, event = found.get("server"), found.get("event")
        if name is not None and self.shard is not None:
            name = f"{self.shard}/{name}"
        if event is not None:
            words = ["-" if name is None else f"server {name}", event, found.get("text") or ""]
            self.events.appendleft((when, "  ".join(map(clean, words))))
        elif name is not None:
            values = {key: n for key, v in found.items() if (n := number(v)) is not None}
            name, state = clean(name), clean(found.get("state") or "-")
            old = self.servers.get(name)
            speeds = old.speeds if old and old.state == state else []
            speeds = [(then, speed) for then, speed in speeds if when - then < MEAN_S]
            if (speed := values.get("tokens_per_s")) is not None:
                speeds.append((when, speed))
            url = clean(found.get("url") or "")
            if self.shard is not None and url:  # which listens on its own node only
                url = f"{clean(found.get('host') or '?')}:{url.rpartition(':')[2]}"
            self.servers[name] = ServerState(name, state, url, when, values, speeds)


def owner_lives(lock: Path) -> bool:
    """Whether the process that the run's lock file names runs on this host."""
    with suppress(OSError, ValueError):
        pid, host = lock.read_text().split()
        return host == socket.gethostname() and Path(f"/proc/{int(pid)}").is_dir()
    return False


def number(value: Any) -> float | None:
    """A number that can be one of a run's: no text, no NaN, none without bounds."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if good else None


def whole(found: dict[str, Any], name: str) -> int:
    return int(number(found.get(name)) or 0)


def section(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def read_state(path: Path, now: float, files: Files | None = None) -> RunState:
    """A run's state from the files in its output_dir.

    Args:
        now: unix time.
        files: of earlier looks at the same folder, to read only what is new.
    """
    files = files or Files()
    run, manifest = files.small(path / "run.json"), files.small(path / "shards/manifest.json")
    state, job_rates = RunState(path), 0.0
    state.asked, state.kept = number(manifest.get("asked")), number(manifest.get("kept"))
    with suppress(OSError):
        state.started = (path / "run.json").stat().st_mtime
    if found := section(run, "identity").get("run_hash"):
        state.run_hash = clean(found)
        job_rates = _read_shards(state, now, files, manifest, section(run, "config"))
    # on a cluster the servers of finished shards, which may be thousands, are of no interest
    files.follow(path, [f"{shard[0]:04d}" for shard in state.running])
    found_servers = [s for file in files.metrics.values() for s in file.servers.values()]
    state.servers = sorted(found_servers, key=lambda s: (len(s.name), s.name))
    notes = [note for file in files.metrics.values() for note in file.events]
    state.events = sorted(notes, key=lambda note: -note[0])[:EVENTS_SHOWN]
    said = [s.rate for s in state.servers if now - s.time <= SILENT_S]
    rates = [rate for rate in said if rate is not None]
    # where no server tells its speed: that of completed rows, as the jobs measure it
    state.rate = sum(rates) if rates else job_rates
    return state


def _read_shards(
    state: RunState, now: float, files: Files, manifest: dict[str, Any], config: dict[str, Any]
) -> float:
    """Add up the shards; `running` gets number, rows, rows done and rows failed of each that runs.

    Returns:
        Tokens a second of the running jobs.
    """
    folder, job_rates = state.path / f"generate/{state.run_hash}", 0.0
    count = min(whole(manifest, "shards") or whole(config, "shards"), MOST_SHARDS)
    sizes = manifest.get("rows")
    for k in range(count):
        job = files.small(folder / f"journal/shard-{k:04d}.n{count}.progress.json")
        over = files.small(folder / f"shard-{k:04d}.json")
        if isinstance(sizes, list) and len(sizes) == count and over.get("rows") != sizes[k]:
            over = {}  # of another shard count or input; its job is still to come
        rows, failed, tokens = (whole(over or job, n) for n in ("rows", "failed", "tokens"))
        done = rows if over else whole(job, "done")
        state.done, state.failed = state.done + done, state.failed + failed
        state.tokens += tokens
        wrote = number(job.get("time")) or 0.0
        state.last = max(state.last, wrote)
        stage = "done" if over else "stopped" if job else "waiting"
        # a job says when it ends; one that was killed cannot
        if stage == "stopped" and now - wrote <= STALE_S and job.get("running") is not False:
            stage = "running"
            job_rates += number(job.get("rate")) or 0.0
            state.running.append((k, rows, done, failed))
        state.stages[stage] += 1
        failures, classes = section(job, "failures"), section(over, "classes")
        state.failures.update({clean(name): whole(failures, name) for name in failures})
        state.classes.update({clean(name): whole(classes, name) for name in classes})
        recent = job.get("recent")
        for entry in recent if isinstance(recent, list) else []:
            if isinstance(entry, list) and len(entry) > 2 and (when := number(entry[0])):
                state.recent.append((when, f"{clean(entry[1])}  {clean(entry[2])}"))
    state.recent = sorted(state.recent, reverse=True)[:RECENT_SHOWN]
    if (unknown := state.failed - state.failures.total()) > 0:
        state.failures["reason not recorded"] = unknown
    if count and state.stages["done"] == count:
        state.status = "finished"
    elif state.stages["waiting"] < count:
        alive = bool(state.running) or owner_lives(state.path / ".lock")
        state.status = "running" if alive else "stopped"
    return job_rates

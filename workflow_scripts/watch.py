"""Watch a run: `python -m workflow_scripts.watch <output_dir>`, until Ctrl-C.

Only reads, takes no lock, and trusts no file: each may be missing, torn or of a later version. So
it works beside a running workflow, after it, and from another machine that sees the folder (whose
clock should agree: an age is this machine's time minus the writer's).
"""

import argparse
import io
import os
import shutil
import sys
import textwrap
import time
import unicodedata
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts.progress import STALE_S, duration

TAIL_BYTES = 1 << 20  # of metrics.jsonl: the most that one look reads
SILENT_S = 15.0  # a server whose last line is older is marked stale
MEAN_S = 300.0  # speeds are means over this time: tokens are counted when long answers end
MOST_SHARDS = 9999  # as in the configuration
SHARDS_SHOWN, RECENT_SHOWN, EVENTS_SHOWN = 8, 5, 4
SHARD_CELL = 40  # columns that one running shard takes
BOLD, RED, GREEN, YELLOW = "1", "31", "32", "33"
STYLES = {"running": GREEN, "finished": GREEN, "stopped": RED}
SERVER_STYLES = {"ready": "", "down": RED, "failed": RED}
TITLES = "srv,state,run/max,que,tok/s,KV%,st%,acc,ret,GPU%,GiB,W,age,flight,url"
LONG_TITLES = (  # retract: requests thrown out of the cache and done again
    "server,state,run/max,queue,tok/s,KV %,state %,accept,retract,GPU %,GiB,watts,age,"
    "flight/limit,url"
)

Note = tuple[float, str]  # unix time, text
Lines = list[tuple[str, str]]  # style, text


# ---- what is read -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
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
class State:
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
    servers: list[Server] = field(default_factory=list)
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
    inode, size and time, metrics.jsonl by how far it was read."""

    def __init__(self) -> None:
        self.bytes_read = 0  # of metrics.jsonl
        self.servers: dict[str, Server] = {}
        self.events: deque[Note] = deque(maxlen=EVENTS_SHOWN)
        self._small: dict[Path, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self._inode = self._offset = 0

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
            self.servers[name] = Server(name, state, url, when, values, speeds)


def number(value: Any) -> float | None:
    """A number that can be one of a run's: no text, no NaN, none without bounds."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if good else None


def whole(found: dict[str, Any], name: str) -> int:
    return int(number(found.get(name)) or 0)


def section(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def clean(value: object) -> str:
    """Text from outside as one line without control characters: no file moves the cursor."""
    text = " ".join(str(value)[:1000].split())
    return "".join(c if c.isprintable() else "?" for c in text)


def read_state(path: Path, now: float, files: Files | None = None) -> State:
    """A run's state from the files in its output_dir.

    Args:
        now: unix time.
        files: of earlier looks at the same folder, to read only what is new.
    """
    files = files or Files()
    run, manifest = files.small(path / "run.json"), files.small(path / "shards/manifest.json")
    state, job_rates = State(path), 0.0
    state.asked, state.kept = number(manifest.get("asked")), number(manifest.get("kept"))
    with suppress(OSError):
        state.started = (path / "run.json").stat().st_mtime
    if found := section(run, "identity").get("run_hash"):
        state.run_hash = clean(found)
        job_rates = _read_shards(state, now, files, manifest, section(run, "config"))
    files.follow(path / "logs/metrics.jsonl")
    state.servers = sorted(files.servers.values(), key=lambda s: (len(s.name), s.name))
    state.events = list(files.events)
    said = [s.rate for s in state.servers if now - s.time <= SILENT_S]
    rates = [rate for rate in said if rate is not None]
    # where no server tells its speed: that of completed rows, as the jobs measure it
    state.rate = sum(rates) if rates else job_rates
    return state


def _read_shards(
    state: State, now: float, files: Files, manifest: dict[str, Any], config: dict[str, Any]
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
        if stage == "stopped" and now - wrote <= STALE_S:
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
        state.status = "running" if state.running else "stopped"
    return job_rates


# ---- what is shown ------------------------------------------------------------------------------


def cells(text: str) -> int:
    """Columns that a text takes on a terminal, or a little more."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def clip(text: str, width: int) -> str:
    if cells(text) <= width:
        return text
    text = text[: max(width - 3, 0)]
    while text and cells(text) > width - 3:
        text = text[:-1]
    return text + "..."[:width]


def bar(done: int, rows: float, width: int) -> str:
    full = int(min(done * width // rows, width)) if rows else width
    return f"[{'#' * full}{'.' * (width - full)}]"


def plain(value: float | None, digits: int = 0, scale: float = 1) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"


def of(part: float | None, most: float | None, scale: float = 1) -> str:
    both = f"{plain(part, scale=scale)}/{plain(most, scale=scale)}"
    return "-" if both == "-/-" else both


def ago(now: float, then: float) -> str:
    return duration(max(now - then, 0.0))


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in (+counts).most_common())


def render(state: State, width: int, now: float, colour: bool = False) -> list[str]:
    """The view as lines of at most `width` columns; ANSI colours on top if wanted."""
    lines = _headline(state, width, now) + _servers(state, now, width)
    lines += [*_shards(state, width), ("", "")]
    lines += _wrapped(BOLD, f"failures  {listed(state.failures) or 'none'}", width)
    for title, notes in (("", state.recent), ("events", state.events)):
        lines += [("", ""), (BOLD, title)] if title and notes else []
        lines += [("", f"{ago(now, when):>9} ago  {text}") for when, text in notes]
    shown = [(style, clip(text, width).rstrip()) for style, text in lines]
    return [f"\x1b[{style}m{text}\x1b[0m" if colour and style else text for style, text in shown]


def _wrapped(style: str, text: str, width: int) -> Lines:
    return [(style, line) for line in textwrap.wrap(text, width, subsequent_indent=" " * 10)]


def _headline(state: State, width: int, now: float) -> Lines:
    parts = [state.status.upper()]
    if state.status == "stopped":
        parts.append(f"no job wrote for {ago(now, state.last)}")
    if state.started is None:
        parts.append(f"there is no {'run.json' if state.path.is_dir() else 'such folder'}")
    elif state.status == "running":
        parts.append(f"elapsed {ago(now, state.started)}")
    elif state.last >= state.started:
        parts.append(f"took {ago(state.last, state.started)}")
    else:  # nothing was generated since
        parts.append(f"run.json is {ago(now, state.started)} old")
    parts += [f"run {state.run_hash}"] if state.run_hash else []
    rows = f"{state.done:,}/{plain(state.asked)}"
    if state.asked is not None:
        tenths = state.done * 1000 // state.asked if state.asked else 1000  # 100 % is all
        rows = f"{bar(state.done, state.asked, width // 8)} {rows} ({tenths / 10:.1f} %)"
    left = "" if state.eta_s is None else f" | ETA {duration(state.eta_s)}"
    if state.eta_s is None and state.status != "finished":
        left = " | ETA unknown"
    return [
        (BOLD, f"tracemill {clip(clean(state.path)[::-1], width - 10)[::-1]}"),  # the end counts
        (STYLES.get(state.status, YELLOW), " | ".join(parts)),
        ("", f"rows      {rows} | {state.failed:,} failed | {plain(state.kept)} kept"),
        ("", f"tokens    {state.tokens:,} | {state.rate:,.0f} tokens/s{left}"),
        *_wrapped("", f"answers   {listed(state.classes) or '-'} (in finished shards)", width),
    ]


def _servers(state: State, now: float, width: int) -> Lines:
    """A row a server; where the terminal is narrow, the least important columns are left out."""
    if not state.servers:
        return [("", ""), ("", "servers   nothing in logs/metrics.jsonl")]
    titles, long_titles = ([*text.split(","), ""] for text in (TITLES, LONG_TITLES))
    rows, styles = [long_titles if width >= 120 else titles], [BOLD]
    for server in state.servers:
        v = server.values.get
        stale = now - server.time > SILENT_S
        mark = f"stale {ago(now, server.time)}" if width >= 100 else "stale"
        row = [clip(server.name, 9), clip(server.state, 9), of(v("running"), v("max_running"))]
        row += [plain(v("queued")), plain(server.rate), plain(v("kv_use"), scale=100)]
        row += [plain(v("state_use"), scale=100), plain(v("accept_length"), 1)]
        row += [plain(v("retractions")), plain(v("gpu_util"))]
        row += [of(v("gpu_mem_mib"), v("gpu_mem_total_mib"), 1 / 1024), plain(v("watts"))]
        row += ["-" if (age := v("age_s")) is None else duration(age)]
        rows.append([*row, of(v("in_flight"), v("limit")), server.url, mark * stale])
        styles.append(YELLOW if stale else SERVER_STYLES.get(server.state, YELLOW))
    sizes = {t: max(cells(row[i]) for row in rows) for i, t in enumerate(titles)}
    for title in ("url", "flight", "W", "GiB", "age", "ret"):  # the first ones to go
        if sum(sizes.values()) + len(sizes) - 1 > width:
            del sizes[title]
    left = ("srv", "state", "url", "")
    texts = []
    for row in rows:
        shown = [(t, text) for t, text in zip(titles, row, strict=True) if t in sizes]
        texts.append(
            " ".join(x.ljust(sizes[t]) if t in left else x.rjust(sizes[t]) for t, x in shown)
        )
    return [("", ""), *zip(styles, texts, strict=True)]


def _shards(state: State, width: int) -> Lines:
    names = ["done", "running", *(["stopped"] if state.stages["stopped"] else []), "waiting"]
    text = " | ".join(f"{state.stages[name]:,} {name}" for name in names)
    lines = [("", ""), (BOLD, f"shards    {text}")]
    texts = []
    for k, rows, done, failed in state.running[:SHARDS_SHOWN]:
        text = f"{k:04d} {bar(done, rows, 10)} {done:,}/{rows:,}"
        texts.append(text + (f" {failed:,} failed" if failed else ""))
    if (more := len(state.running) - SHARDS_SHOWN) > 0:
        texts.append(f"+{more} more")
    across = max(width // SHARD_CELL, 1)
    for start in range(0, len(texts), across):
        part = [clip(text, SHARD_CELL - 4) for text in texts[start : start + across]]
        lines.append(("", "".join("  " + text.ljust(SHARD_CELL - 2) for text in part)))
    return lines


# ---- the terminal -------------------------------------------------------------------------------


def fit(lines: list[str], height: int) -> list[str]:
    """The lines that a terminal of this height can show: empty ones go first, then the last."""
    if len(lines) > height:
        lines = [line for line in lines if line]
    if len(lines) > height:
        lines = [*lines[: height - 1], f"+{len(lines) - height + 1} more lines"]
    return lines


def watch(path: Path, interval: float, colour: bool) -> None:
    """Show the run again every `interval` seconds, for ever."""
    files = Files()
    print("\x1b[2J", end="")
    while True:
        columns, height = os.get_terminal_size(sys.stdout.fileno())
        now = time.time()
        lines = render(read_state(path, now, files), columns or 80, now, colour)
        # each line is cleared before it is written: after a full one that would eat its end
        text = "".join(f"\x1b[2K{line}\n" for line in fit(lines, (height or 24) - 1))
        print(f"\x1b[H{text}\x1b[J", end="", flush=True)
        time.sleep(interval)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Watch a run, until Ctrl-C.")
    parser.add_argument("output_dir", type=Path, help="the run's folder")
    parser.add_argument("--once", action="store_true", help="print the state once, as in a pipe")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between two looks")
    args = parser.parse_args(argv)
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    colour = terminal and not os.environ.get("NO_COLOR")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that is not UTF-8
    try:
        if terminal and not args.once:
            watch(args.output_dir, max(0.1, args.interval), colour)
        else:
            now, width = time.time(), shutil.get_terminal_size().columns
            print("\n".join(render(read_state(args.output_dir, now), width, now, colour)))
            sys.stdout.flush()
    except KeyboardInterrupt:
        print()  # below the ^C that the terminal shows
    except BrokenPipeError:  # `| head`; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The live view of a run: what its files tell, as lines of a terminal."""

import textwrap
import unicodedata
from collections import Counter

from workflow_scripts.base.log import clean, duration
from workflow_scripts.progress.state import SILENT_S, RunState

SHARDS_SHOWN = 8
SHARD_CELL = 40  # columns that one running shard takes
BOLD, RED, GREEN, YELLOW = "1", "31", "32", "33"
STYLES = {"running": GREEN, "finished": GREEN, "stopped": RED}
SERVER_STYLES = {"ready": "", "down": RED, "failed": RED}
TITLES = "srv,state,run/max,que,tok/s,KV%,st%,acc,ret,GPU%,GiB,W,age,flight,url"
LONG_TITLES = (  # retract: requests thrown out of the cache and done again
    "server,state,run/max,queue,tok/s,KV %,state %,accept,retract,GPU %,GiB,watts,age,"
    "flight/limit,url"
)

Lines = list[tuple[str, str]]  # style, text

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


def render(state: RunState, width: int, now: float, colour: bool = False) -> list[str]:
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


def _headline(state: RunState, width: int, now: float) -> Lines:
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


def _servers(state: RunState, now: float, width: int) -> Lines:
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


def _shards(state: RunState, width: int) -> Lines:
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

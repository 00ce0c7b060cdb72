"""The live view of a run: what its files tell, in Texts, as rich reads markup in strings only."""

from collections import Counter

from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from workflow_scripts.base.log import clean, duration
from workflow_scripts.progress.state import SILENT_S, Note, RunState, ServerState

SHARDS_SHOWN = 8
NAMES, NAME_CELL = ("srv", "state"), 9  # which rich makes narrower if need be, but not than this
STYLES = {"running": "green", "finished": "green", "stopped": "red"}
SERVER_STYLES = {"ready": "", "down": "red", "failed": "red"}
TITLES = "srv,state,run/max,que,tok/s,KV%,st%,acc,ret,GPU%,GiB,W,age,flight,url,"
LONG_TITLES = (  # retract: requests thrown out of the cache and done again
    "server,state,run/max,queue,tok/s,KV %,state %,accept,retract,GPU %,GiB,watts,age,"
    "flight/limit,url,"  # and one without a title, which says that a row is stale
)
FIRST_TO_GO = ["url", "flight", "W", "GiB", "age", "ret", "acc", "st%", "KV%", "GPU%", "que"]


def bar(done: int, rows: float, width: int) -> str:
    """rich's own bar shows what is to come in colour only, so not in a pipe."""
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


def render(state: RunState, width: int, now: float) -> Group:
    """The view for a terminal of `width` columns."""
    parts = [*_headline(state, width, now), Text(), _servers(state, now, width)]
    parts += [Text(), *_shards(state), Text()]
    parts += [_labelled({"failures": listed(state.failures) or "none"}, "bold")]
    parts += _notes(state.recent, now)
    if state.events:
        parts += [Text(), Text("events", "bold"), *_notes(state.events, now)]
    return Group(*parts)


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _labelled(rows: dict[str, str], style: str = "") -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=8, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows.items():
        grid.add_row(Text(label), Text(text), style=style)
    return grid


def _notes(notes: list[Note], now: float) -> list[Text]:
    return [_line(f"{ago(now, when):>9} ago  {text}") for when, text in notes]


def _headline(state: RunState, width: int, now: float) -> list[RenderableType]:
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
    numbers = {
        "rows": f"{rows} | {state.failed:,} failed | {plain(state.kept)} kept",
        "tokens": f"{state.tokens:,} | {state.rate:,.0f} tokens/s{left}",
        "answers": f"{listed(state.classes) or '-'} (in finished shards)",
    }
    status = Text(" | ".join(parts), STYLES.get(state.status, "yellow"))
    return [Text(f"tracemill {clean(state.path)}", "bold"), status, _labelled(numbers)]


def _servers(state: RunState, now: float, width: int) -> RenderableType:
    """A row a server; where the terminal is narrow, the least important columns are left out."""
    if not state.servers:
        return _line("servers   nothing in logs/metrics.jsonl")
    rows = [(LONG_TITLES if width >= 120 else TITLES).split(",")]
    rows += [_cells(server, now, width) for server in state.servers]
    columns = dict(zip(TITLES.split(","), zip(*rows, strict=True), strict=True))
    sizes = {title: max(1, *map(cell_len, cells)) for title, cells in columns.items()}
    sizes |= {name: min(sizes[name], NAME_CELL) for name in NAMES}
    for title in FIRST_TO_GO:
        if sum(sizes.values()) + len(sizes) - 1 > width:
            del sizes[title], columns[title]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for title, (head, *_) in columns.items():
        side: JustifyMethod = "left" if title in (*NAMES, "url", "") else "right"
        table.add_column(head, justify=side, no_wrap=title not in NAMES)
    for at, server in enumerate(state.servers, 1):
        style = SERVER_STYLES.get("stale" if columns[""][at] else server.state, "yellow")
        table.add_row(*(_line(cells[at]) for cells in columns.values()), style=style)
    return table


def _cells(server: ServerState, now: float, width: int) -> list[str]:
    v = server.values.get
    row = [server.name, server.state, of(v("running"), v("max_running")), plain(v("queued"))]
    row += [plain(server.rate), plain(v("kv_use"), scale=100), plain(v("state_use"), scale=100)]
    row += [plain(v("accept_length"), 1), plain(v("retractions")), plain(v("gpu_util"))]
    row += [of(v("gpu_mem_mib"), v("gpu_mem_total_mib"), 1 / 1024), plain(v("watts"))]
    row += ["-" if (age := v("age_s")) is None else duration(age), of(v("in_flight"), v("limit"))]
    mark = f"stale {ago(now, server.time)}" if width >= 100 else "stale"
    return [*row, server.url, mark * (now - server.time > SILENT_S)]


def _shards(state: RunState) -> list[RenderableType]:
    names = ["done", "running", *(["stopped"] if state.stages["stopped"] else []), "waiting"]
    counts = " | ".join(f"{state.stages[name]:,} {name}" for name in names)
    texts = []
    for k, rows, done, failed in state.running[:SHARDS_SHOWN]:
        text = f"  {k:04d} {bar(done, rows, 10)} {done:,}/{rows:,}"
        texts.append(_line(text + (f" {failed:,} failed" if failed else "")))
    if (more := len(state.running) - SHARDS_SHOWN) > 0:
        texts.append(_line(f"  +{more} more"))
    return [_labelled({"shards": counts}, "bold"), Columns(texts, padding=(0, 1), equal=True)]

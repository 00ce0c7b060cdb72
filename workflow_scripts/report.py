"""The report: one self-contained page that says what went in, what came out and what fell out.

Counts come from the stages' JSON files. Of the tables only the rows that are shown are read whole,
so memory stays flat whatever the number of rows. The same run gives the same bytes.
"""

import argparse
import io
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
import orjson
import polars as pl
from markupsafe import Markup
from matplotlib.figure import Figure

from workflow_scripts.config import Config, read_run
from workflow_scripts.progress import duration, say, write_atomically
from workflow_scripts.training_table import side_files
from workflow_scripts.visible import environment, shown

TEMPLATE = Path(__file__).with_name("report.html.j2")
SAMPLES = 6
TRIVIAL_TOKENS = 6  # a response this short cannot say much
EDGES = [0, 1, 2, 3, 5, 7]  # first tokens of a plot's bins; 7 ends the trivial ones
EDGES += [x * 10**k for k in range(7) for x in (10, 15, 20, 30, 50, 70)]
OLD, NEW = "#b45309", "#0f766e"
Json = dict[str, Any]


class ReportError(Exception):
    """A run that cannot be reported; the message names the file and the remedy."""


def existing(path: Path, stage: str) -> Path:
    """The path of what a stage wrote.

    Raises:
        ReportError: it is missing.
    """
    if not path.is_file():
        raise ReportError(f"{path} does not exist; run the stage `{stage}` first")
    return path


def read_json(path: Path, stage: str) -> Json:
    """A stage's JSON object.

    Raises:
        ReportError: it is missing or not what the stage writes.
    """
    try:
        found: Json = dict(orjson.loads(existing(path, stage).read_bytes()))
    except (ValueError, TypeError) as error:
        raise ReportError(f"{path}: not a JSON object ({error}); delete it and run again") from None
    return found


def scan(path: Path, stage: str) -> pl.LazyFrame:
    """A stage's table, unread."""
    return pl.scan_parquet(existing(path, stage))


def rows_of(table: pl.LazyFrame, ids: Sequence[str], *columns: str) -> list[Json]:
    """The rows with the given row ids, in the table's order."""
    chosen = table.filter(pl.col("row_id").is_in(list(ids))).select("row_id", *columns)
    return chosen.collect(engine="streaming").to_dicts()


def made_at(paths: Sequence[Path]) -> str:
    """When the newest of the files was written, to the minute, in UTC."""
    newest = max(path.stat().st_mtime for path in paths)
    return datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%d %H:%M UTC")


# ---- counts -------------------------------------------------------------------------------------


def reasons(table: pl.LazyFrame, *columns: str) -> list[Json]:
    """Rows by reason, the most frequent first, each with the row of the lowest id as example."""
    found: list[Json] = (
        table.group_by("reason")
        .agg(pl.len().alias("rows"), pl.col("row_id").min())
        .sort(["rows", "reason"], descending=[True, False])
        .collect(engine="streaming")
        .to_dicts()
    )
    examples: dict[Any, Json] = {}
    for row in rows_of(table, [f["row_id"] for f in found], "reason", *columns):
        examples.setdefault((row["row_id"], row["reason"]), row)
    return [f | examples[f["row_id"], f["reason"]] for f in found]


def lengths(counts: dict[str, int]) -> Json:
    """Numbers that describe token counts, by nearest rank; 0 where there are none."""
    sizes = {int(k): n for k, n in counts.items()}
    total = sum(sizes.values())

    def rank(share: float) -> int:
        seen = 0
        for size in sorted(sizes):
            seen += sizes[size]
            if seen >= share * total:
                return size
        return 0

    trivial = sum(n for size, n in sizes.items() if size <= TRIVIAL_TOKENS)
    return {
        "counts": sizes,
        "total": total,
        "median": rank(0.5),
        "p95": rank(0.95),
        "max": max(sizes, default=0),
        "trivial": trivial,
        "trivial_share": trivial / total if total else 0.0,
    }


# ---- plots --------------------------------------------------------------------------------------


def plots(old: Json, new: Json) -> dict[str, Markup | None]:
    """The lengths before and after, as SVG on the same axes; None where there is nothing."""
    longest = max(old["max"], new["max"])
    count = max(6, sum(edge <= longest for edge in EDGES))
    edges = EDGES[: count + 1]
    sides = {"old": old, "new": new}
    shares = {name: [0.0] * count for name in sides}  # per cent
    for name, side in sides.items():
        for size, n in side["counts"].items():
            shares[name][sum(edge <= size for edge in edges[1:-1])] += 100 * n / side["total"]
    top = max(shares["old"] + shares["new"]) * 1.22
    return {
        name: plot(name, shares[name], edges, top, side) if side["total"] else None
        for name, side in sides.items()
    }


def plot(name: str, shares: list[float], edges: list[int], top: float, side: Json) -> Markup:
    """One histogram as SVG; its bins are equally wide on the page, its ids start with `name`."""
    leading = "13" if len(edges) > 20 else "125"
    ticks = [i for i, edge in enumerate(edges) if not edge or str(edge).rstrip("0") in leading]
    names = [f"{edges[i] // 1000}k" if edges[i] >= 1000 else str(edges[i]) for i in ticks]
    ends = edges.index(TRIVIAL_TOKENS + 1)
    colour = OLD if name == "old" else NEW
    settings = {"svg.fonttype": "none", "svg.hashsalt": f"tracemill-{name}", "font.size": 10.5}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(5.4, 2.9))
        axes = figure.add_axes((0.115, 0.17, 0.87, 0.8))
        axes.axvspan(0, ends, color="#f1f3f5", zorder=0)
        axes.bar(range(len(shares)), shares, width=0.9, align="edge", color=colour, zorder=2)
        note = f"≤ {TRIVIAL_TOKENS} tokens\n{100 * side['trivial_share']:.1f} %"
        axes.text(ends / 2, top * 0.97, note, ha="center", va="top")
        axes.set(xlim=(0, len(shares)), ylim=(0, top), xlabel="tokens")
        axes.set_xticks(ticks, names)
        axes.locator_params(axis="y", nbins=5)
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:g} %")
        axes.grid(axis="y", color="#e1e5ea", linewidth=0.7, zorder=1)
        axes.tick_params(length=3, color="#9aa4b0")
        axes.spines[["top", "right", "left"]].set_visible(False)
        out = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=no_metadata)
    svg = out.getvalue()
    svg = re.sub(r'\bid="', f'id="{name}-', svg[svg.index("<svg") :])
    svg = svg.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    label = (
        f"Tokens of the {name} responses, {side['total']:,} in all: median {side['median']:,}, "
        f"95 % at most {side['p95']:,}, longest {side['max']:,}; "
        f"{100 * side['trivial_share']:.1f} % have {TRIVIAL_TOKENS} tokens or fewer"
    )
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))


# ---- samples ------------------------------------------------------------------------------------


def samples(rows: pl.LazyFrame, completions: pl.LazyFrame, turns: pl.LazyFrame) -> list[Json]:
    """A few rows, each class in turn, lowest row ids first (they are hashes: a random choice).

    Args:
        rows: the audit's rows.
        completions: the merged rows.
        turns: row_id, turn, completion_length, place of each response.
    """
    lowest = (
        completions.group_by("class")
        .agg(pl.col("row_id").bottom_k(SAMPLES))
        .sort("class")
        .collect(engine="streaming")
    )
    classes = [sorted(ids) for ids in lowest["row_id"]]
    ids = [c[k] for k in range(SAMPLES) for c in classes if k < len(c)][:SAMPLES]
    columns = ("source", "line", "messages", "response_class", "response_tokens")
    before = {row["row_id"]: row for row in rows_of(rows, ids, *columns)}
    after = {row["row_id"]: row for row in rows_of(completions, ids, "class", "messages")}
    last: dict[str, Json] = {}
    for turn in rows_of(turns, ids, "turn", "completion_length", "place"):
        if turn["turn"] >= last.get(turn["row_id"], turn)["turn"]:
            last[turn["row_id"]] = turn
    known = before.keys() & last.keys()  # a row that is not in both is for verify to name
    found = []
    for i in (i for i in ids if i in known):
        messages = orjson.loads(after[i]["messages"])
        prompt = next((m["content"] for m in reversed(messages) if m["role"] == "user"), None)
        old = orjson.loads(before[i]["messages"])[-1]
        texts = {"prompt": prompt, "old": old, "new": messages[-1], "class": after[i]["class"]}
        found.append(before[i] | last[i] | texts)
    return found


# ---- the page -----------------------------------------------------------------------------------


def turns_of(folder: Path) -> pl.LazyFrame:
    """Each response of the dataset with its place: its side, or why it was dropped."""
    parts = [(path, pl.lit(side)) for side, files in side_files(folder).items() for path in files]
    parts.append((folder / "rejected.parquet", pl.lit("dropped: ") + pl.col("reason")))
    return pl.concat(
        scan(path, "dataset").select("row_id", "turn", "completion_length", place=place)
        for path, place in parts
    )


def collect(config: Config, identity: Json) -> Json:
    """Everything the page shows.

    Raises:
        ReportError: a file of the run is missing or broken.
    """
    out, run_hash = Path(config.output_dir), identity["run_hash"]
    generated = [out / f"generate/{run_hash}/shard-{k:04d}.json" for k in range(config.shards)]
    shards = [read_json(path, "generate") for path in generated]
    made = {key: sum(s[key] for s in shards) for key in ("rows", "completed", "failed", "tokens")}
    audit = read_json(out / "audit/report.json", "audit")
    manifest = read_json(out / "shards/manifest.json", "shard")
    stats = read_json(out / "dataset/stats.json", "dataset")
    verify = read_json(out / "verify.json", "verify")
    completions = scan(out / "merged/completions.parquet", "merge")
    failed = scan(out / "merged/failed.parquet", "merge")
    dropped = scan(out / "dataset/rejected.parquet", "dataset")
    turns = turns_of(out / "dataset")
    further = turns.filter(pl.col("turn") > 0).select(pl.len()).collect(engine="streaming").item()
    old = lengths(audit["response_token_counts"])
    new = lengths(stats["completion_token_counts"])
    names = ["audit/report.json", "shards/manifest.json", "dataset/stats.json", "verify.json"]
    names += ["merged/completions.parquet", "merged/failed.parquet"]
    columns = ("message", "attempts", "server", "server_age_s", "running_requests", "cache_use")
    return {
        "config": config,
        "identity": identity,
        "made_at": made_at([*generated, *map(out.joinpath, names)]),
        "audit": audit,
        "manifest": manifest,
        "shards": shards,
        "made": made,
        "stats": stats,
        "verify": verify,
        "further": further,
        "old": old,
        "new": new,
        "plots": plots(old, new),
        "failures": reasons(failed, "source", "line", *columns),
        "drops": reasons(dropped, "source", "line", "turn", "message"),
        "samples": samples(scan(out / "audit/rows.parquet", "audit"), completions, turns),
        "trivial_tokens": TRIVIAL_TOKENS,
    }


def render(found: Json) -> str:
    """The page; whatever is not marked as safe is escaped."""
    made = environment()
    made.filters |= {
        "duration": duration,
        "shown": shown,
        "json": lambda value: json.dumps(value, indent=2, sort_keys=True),
    }
    return made.from_string(TEMPLATE.read_text(encoding="utf-8")).render(found)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--output", type=Path, required=True, help="the page, HTML")
    args = parser.parse_args(argv)
    config, identity = read_run(args.run)
    try:
        page = render(collect(config, identity))
    except ReportError as error:
        say(f"report: {error}")
        return 1
    write_atomically(args.output, page.encode("utf-8", "replace"))
    say(f"report: {args.output} ({len(page) // 1024} KiB)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Watch a run: `python -m workflow_scripts.watch <output_dir>`, until Ctrl-C.

Only reads, takes no lock, and trusts no file: each may be missing, torn or of a later version. So
it works beside a running workflow, after it, and from another machine that sees the folder (whose
clock should agree: an age is this machine's time minus the writer's).
"""

import argparse
import io
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.segment import Segment, SegmentLines

from workflow_scripts.progress.state import Files, read_state
from workflow_scripts.watch.screen import render


def fit(view: RenderableType, console: Console) -> SegmentLines:
    """The lines that a terminal of this height can show: empty ones go first, then the last."""
    lines, height = console.render_lines(view, pad=False), console.height
    if len(lines) > height:
        lines = [line for line in lines if any(segment.text for segment in line)]
    if len(lines) > height:
        lines[height - 1 :] = [[Segment(f"+{len(lines) - height + 1} more lines")]]
    return SegmentLines(lines, new_lines=True)


def watch(path: Path, interval: float, console: Console) -> None:
    """Show the run again every `interval` seconds, until Ctrl-C."""
    files = Files()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # gives the screen back as well
    live = Live(console=console, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), live:
        while True:
            now = time.time()
            view = render(read_state(path, now, files), console.width, now)
            live.update(fit(view, console), refresh=True)
            time.sleep(interval)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Watch a run, until Ctrl-C.")
    parser.add_argument("output_dir", type=Path, help="the run's folder")
    parser.add_argument("--once", action="store_true", help="print the state once, as in a pipe")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between two looks")
    args = parser.parse_args(argv)
    moves = os.environ.get("TERM") not in ("dumb", "unknown")
    live = sys.stdout.isatty() and moves and not args.once
    # said here, as rich would take a pipe for a terminal where FORCE_COLOR is set
    console = Console(force_terminal=live, force_interactive=live, markup=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that is not UTF-8
    if live:
        watch(args.output_dir, max(0.1, args.interval), console)
    with suppress(KeyboardInterrupt, SystemExit):  # rich exits where a pipe is closed: `| head`
        now = time.time()
        console.print(render(read_state(args.output_dir, now), console.width, now))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

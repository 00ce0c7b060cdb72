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
import time
from pathlib import Path

from workflow_scripts.progress.state import Files, read_state
from workflow_scripts.watch.screen import render

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

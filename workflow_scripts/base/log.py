"""Lines for the log and the terminal."""

import sys
import time
from contextlib import suppress


def say(text: str) -> None:
    """A line for the log and the terminal, with the time of day. Who writes the log may be gone: a
    signal to all of a job's processes ends `tee` before the job has put its things in order."""
    with suppress(BrokenPipeError):
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def clean(value: object) -> str:
    """Text from outside as one line without control characters: no file moves the cursor."""
    return printable(" ".join(str(value)[:1000].split()))


def printable(text: str) -> str:
    """A line without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def duration(seconds: float) -> str:
    """`1:02:03`, or `2:03` under an hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

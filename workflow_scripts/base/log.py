"""Lines for the log and the terminal."""

import re
import sys
import time
from contextlib import suppress

# C0 and C1 controls, and the marks that change a text's direction.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def say(text: str) -> None:
    """A line for the log and the terminal, with the time of day. Who writes the log may be gone: a
    signal to all of a job's processes ends `tee` before the job has put its things in order."""
    with suppress(BrokenPipeError):
        print(f"[{time.strftime('%H:%M:%S')}] {visible(text)}", file=sys.stderr, flush=True)


def visible(text: str) -> str:
    """A text with its control characters spelled out, line ends and tabs aside: what a server says
    of an error moves no cursor, sets no title and turns no line around."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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

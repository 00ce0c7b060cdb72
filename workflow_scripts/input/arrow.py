"""Record batches of Arrow files and streams, as far as they can be read."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from workflow_scripts.input.streams import DAMAGE, compression_of, head_of, open_stream

ARROW_FILE = b"ARROW1"
FAULTS = (*DAMAGE, pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError)


def arrow_batches(path: str) -> Iterator[Any]:
    """The record batches of a stream, or of a file, which is a stream between two magics: so a file
    that was cut off can be read as far as it goes."""
    in_file = head_of(path).startswith(ARROW_FILE)
    compressed = compression_of(path)
    source: Any = open_stream(path) if compressed else pa.memory_map(path)
    with source as f:
        if in_file:
            f.read(8)
        with pa.ipc.open_stream(f) as reader:
            yield from reader
        if in_file and not compressed:
            f.seek(f.size() - len(ARROW_FILE))
            if f.read() != ARROW_FILE:
                raise EOFError("the Arrow file has no footer, it is cut off")

"""Files that are either the old one or the whole new one, and errors that name their file."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def file_sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def write_atomically(path: Path, content: bytes, sync: bool = True) -> None:
    """Write a file that is either the old one or the whole new one, whatever happens."""
    with appearing(path, sync) as f:
        f.write(content)


@contextmanager
def appearing(path: Path, sync: bool = True) -> Iterator[IO[bytes]]:
    """A file that appears under its name only when it is whole and, with `sync`, on the disk."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with naming(path), open(part, "wb") as f:
            yield f
            if sync:
                f.flush()
                os.fsync(f.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError names the file, which one of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error

"""Input files made by hand."""

from pathlib import Path


def write(path: Path, raw: bytes) -> str:
    """A file, its folders made; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return str(path)

"""Checksums of what a stage wrote, beside it and as `sha256sum -c` reads them."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import file_sha256, read_json, write_atomically

NAME = "SHA256SUMS"


class Damaged(ConfigError):
    """A file is not what was written; it was moved aside, and the next run makes it again."""


def record(folder: Path, paths: Iterable[Path]) -> None:
    """Write the checksums of a stage's files, all under one folder, after the files."""
    lines = [f"{file_sha256(path)}  {path.relative_to(folder)}\n" for path in sorted(paths)]
    write_atomically(folder / NAME, "".join(lines).encode())


def recorded(folder: Path) -> dict[str, str]:
    """Checksums by name; none where there is no record, as in runs of earlier versions.

    Raises:
        ValueError: the record itself is damaged.
    """
    path = folder / NAME
    if not path.exists():
        return {}
    found = {}
    for line in path.read_text("ascii").splitlines():
        total, mark, name = line.partition("  ")
        if len(total) != 64 or not mark or not name:
            raise ValueError(f"{path}: not a list of checksums")
        found[name] = total
    if not found:
        raise ValueError(f"{path}: empty")
    return found


def changed(folder: Path, thorough: bool = False) -> list[str]:
    """Names of recorded files that are gone or not what was written; of shards' rows, whose
    checksums the manifest beside them holds, those that are gone only if all are read, since they
    may not be needed any more.

    Args:
        thorough: read all. Else only those are read that the file system says have changed since;
            so a start costs no reading, and a byte that the disk lost by itself shows when the file
            is read (`check`).

    Raises:
        ValueError: the record itself is damaged.
    """
    manifest = folder / "manifest.json"
    told, rows = recorded(folder), _rows(manifest)
    record, bad, looked = folder / NAME if told else manifest, [], False
    for name, total in (told | rows).items():
        path = folder / name
        if not path.exists():
            if thorough or name in told:
                bad.append(name)
        elif thorough or newer(path, record):
            looked = True
            if not file_sha256(path).startswith(total):
                bad.append(name)
    if looked and told and not bad and not thorough:  # copied or touched: not read again next time
        record.touch()
    return bad


def _rows(manifest: Path) -> dict[str, str]:
    """The first half of the checksum of each shard's rows; none where there is no manifest, or a
    damaged one."""
    try:
        totals = read_json(manifest).get("sha256", [])
        return {f"shard-{shard:04d}.parquet": str(total) for shard, total in enumerate(totals)}
    except (ConfigError, OSError, TypeError):
        return {}


def newer(path: Path, record: Path) -> bool:
    """Whether a file was changed after its record, or in the same tick of the clock, by the time
    that no program can set."""
    return path.stat().st_ctime_ns >= record.stat().st_ctime_ns


def check(*paths: Path) -> None:
    """Compare files with their recorded checksums before they are read.

    Raises:
        Damaged: after moving the file aside.
    """
    for path in paths:
        try:
            total = recorded(path.parent).get(path.name)
        except ValueError:
            total = ""
        if total is not None and file_sha256(path) != total:
            raise Damaged(
                f"{path}: not what was written (its SHA-256 differs from {path.parent / NAME}); "
                f"moved to {aside(path)}. Run again: it is made again, and no answered row is asked"
            )


def checked_json(path: Path) -> dict[str, Any]:
    """The JSON object that a stage wrote, compared with its checksum.

    Raises:
        ConfigError: it is damaged.
        OSError: it cannot be read.
    """
    check(path)
    return read_json(path)


def fault_beside(path: Path) -> str | None:
    """What is wrong with a file whose checksum stands as `sha256` in the .json beside it."""
    record = path.with_suffix(".json")
    try:
        if file_sha256(path) == orjson.loads(record.read_bytes())["sha256"]:
            return None
        return "is not what was written (its SHA-256 differs from the recorded one)"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"cannot be checked ({record} holds no SHA-256: {error!r})"


def aside(path: Path) -> Path:
    """Move a damaged file or folder out of the way; the last one of its name is kept."""
    target = path.with_name(f"{path.name}.damaged")
    if target.is_dir():
        shutil.rmtree(target)
    return path.replace(target)

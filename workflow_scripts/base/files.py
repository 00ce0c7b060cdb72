"""Files that are either the old one or the whole new one, and errors that name their file."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import orjson

from workflow_scripts.base.errors import ConfigError

REMOVE = "remove it, or set TMPDIR or engine.stage to a folder of your own"


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


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a stage wrote.

    Raises:
        ConfigError: it is gone or damaged.
    """
    try:
        return dict(orjson.loads(path.read_bytes()))
    except FileNotFoundError:
        raise ConfigError(f"{path} is gone; run again, and it is made again") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: not a JSON object ({error}); delete it and run again") from None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError names the file, which one of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def own_folder(path: Path) -> Path:
    """A folder for this user alone, made where there is none. In a place where everybody may make
    files, such as /tmp, what is found under a name that can be guessed is somebody else's.

    Raises:
        ConfigError: it is a link, no folder, another user's, or others may write there.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{path}: a link or file stands where a folder of ours belongs; {REMOVE}")
    _check_owner(path, found)
    if found.st_mode & 0o022:
        raise ConfigError(f"{path}: other users may write there; {REMOVE}")
    return path


def own_file(path: Path) -> IO[str]:
    """A file opened for appending, made where there is none; never through a link.

    Raises:
        ConfigError: it is a link, or another user's.
        OSError: it cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        number = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(
                f"{path}: a link stands where a file of ours belongs; {REMOVE}"
            ) from None
        raise
    file = os.fdopen(number, "a+")
    try:
        _check_owner(path, os.fstat(number))
    except ConfigError:
        file.close()
        raise
    return file


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.getuid():
        raise ConfigError(f"{path}: belongs to user {found.st_uid}; {REMOVE}")

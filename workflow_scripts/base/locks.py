"""Locks on files, which the kernel frees whatever ends the process that holds them."""

import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.log import say

PATIENCE_S = 3600.0  # for a stage of an earlier run on another host


def hold(path: Path) -> IO[str]:
    """Lock a file for this process.

    Raises:
        ConfigError: another process holds it, or files cannot be locked there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise ConfigError(
            f"{path.parent}: another run works there (process and host: {lock.read().strip()}); "
            "wait for it to end, or set another output_dir"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path}: the file system cannot lock files ({error.strerror}); a Lustre client must "
            "be mounted with -o flock; else set output_dir to another file system"
        ) from None
    return _signed(lock)


def sole(out: Path, stage: str) -> IO[str]:
    """Make this process the only one that works on a stage of a run, until the file is closed
    (`with` does).

    A run's folder belongs to one Snakemake, so whoever else works on the stage outlived an earlier
    one, and what it would write is of an earlier time. On this host it is ended, stopped processes
    included; a process of another host is waited for.

    Raises:
        ConfigError: it works on after PATIENCE_S.
    """
    path = out / ".locks" / stage
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a+")
    until, told = time.monotonic() + PATIENCE_S, False
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return _signed(lock)
        lock.seek(0)
        who = lock.read().strip()
        if not told:
            say(f"{stage}: a process of an earlier run still works on it ({who}); it has to end")
            told = True
        if time.monotonic() > until:
            raise ConfigError(
                f"{path}: still held by a process of an earlier run (process and host: {who}); "
                "end it, then run again"
            )
        for pid in _holders(path):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def _holders(path: Path) -> Iterator[int]:
    """Other processes of this user and host that have a file open: forked ones hold the lock, too,
    and have written no name."""
    wanted = path.stat()
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        pid = int(opened.parts[2])
        with suppress(OSError):  # gone since, or another user's
            if pid != os.getpid() and os.path.samestat(wanted, opened.stat()):
                yield pid


def _signed(lock: IO[str]) -> IO[str]:
    lock.seek(0)
    lock.truncate()
    lock.write(f"{os.getpid()} {socket.gethostname()}")
    lock.flush()
    return lock


def is_held(path: Path) -> bool:
    """Whether a living process holds a lock file."""
    try:
        with path.open("r") as lock:  # NFS grants a file open for reading only shared locks
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False

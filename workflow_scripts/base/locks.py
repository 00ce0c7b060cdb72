"""Locks on files, which the kernel frees whatever ends the process that holds them."""

import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from workflow_scripts.base.errors import ConfigError


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

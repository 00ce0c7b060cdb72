"""A copy of the model on a fast file system such as /dev/shm, shared by all servers of a host."""

import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import own_file, own_folder
from workflow_scripts.identity import digest

SPARE = 1 << 30  # bytes left free beside the copy
DONE = ".staged"


def staged(
    model: Path, stage: str | None, say: Callable[[str], None]
) -> tuple[Path, IO[str] | None]:
    """The folder to load the model from: its copy under `stage`, or itself without one; and the
    hold on the copy, to be kept open as long as it is used.

    A whole copy that is there already is used; a half one is made again. Only one process copies.

    Raises:
        ConfigError: there is not enough room, or what stands there is another user's.
    """
    if stage is None:
        return model, None
    files = [path for path in sorted(model.rglob("*")) if path.is_file()]
    sizes = {str(path.relative_to(model)): path.stat().st_size for path in files}
    name = digest(str(model.resolve()), *(f"{n} {s}" for n, s in sizes.items()))[:12]
    copy = Path(stage) / f"tracemill-{os.getuid()}-{name}"
    try:
        lock = _locked(copy)
    except OSError as error:
        raise ConfigError(f"engine.stage: {stage} cannot be written: {error.strerror}") from None
    with lock:
        users = own_file(_beside(copy, "users"))
        fcntl.flock(users, fcntl.LOCK_SH)
        if copy.exists() or copy.is_symlink():
            own_folder(copy)  # another's would be another's model
        if (copy / DONE).exists():
            return copy, users
        shutil.rmtree(copy, ignore_errors=True)
        need, free = sum(sizes.values()), shutil.disk_usage(stage).free
        if need + SPARE > free:
            raise ConfigError(
                f"engine.stage: the model takes {need / 2**30:.1f} GiB and {stage} has "
                f"{free / 2**30:.1f} GiB free; make room there or leave engine.stage out"
            )
        say(f"copying the model to {copy} ({need / 2**30:.1f} GiB)")
        shutil.copytree(model, own_folder(copy), dirs_exist_ok=True)
        copy.chmod(0o700)  # copytree gives it the model's mode
        (copy / DONE).touch()
    return copy, users


def unstage(copy: Path, users: IO[str]) -> None:
    """Remove a staged copy, unless another daemon of this host uses it too."""
    with _locked(copy), users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        shutil.rmtree(copy, ignore_errors=True)
        _beside(copy, "users").unlink(missing_ok=True)
        _beside(copy, "lock").unlink(missing_ok=True)


def _beside(copy: Path, what: str) -> Path:
    return copy.with_name(f"{copy.name}.{what}")


def _locked(copy: Path) -> IO[str]:
    """The lock that who looks at a copy, makes or removes it holds meanwhile."""
    path = _beside(copy, "lock")
    while True:
        lock = own_file(path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                return lock
        lock.close()  # removed while we waited for it

"""A copy of the model on a fast file system such as /dev/shm, shared by all servers of a host.

Beside a copy stand two locks: `.lock` is held by who makes, looks at or removes it, `.users` is
shared by all who use it. A daemon that is killed leaves its copy behind, in memory where that is
/dev/shm; the next that stages a model there, whichever, removes copies that nobody uses.
"""

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
KEEP = ".keep"  # in a copy that is to outlive its users
BESIDE = ("users", "lock")


def copy_of(model: Path, stage: Path) -> tuple[Path, int]:
    """Where a model's copy stands, and how many bytes it takes."""
    files = [path for path in sorted(model.rglob("*")) if path.is_file()]
    sizes = {str(path.relative_to(model)): path.stat().st_size for path in files}
    name = digest(str(model.resolve()), *(f"{n} {s}" for n, s in sizes.items()))[:12]
    return stage / f"tracemill-{os.getuid()}-{name}", sum(sizes.values())


def staged(
    model: Path, stage: str | None, say: Callable[[str], None], keep: bool = False
) -> tuple[Path, IO[str] | None]:
    """The folder to load the model from: its copy under `stage`, or itself without one; and the
    hold on the copy, to be kept open as long as it is used.

    A whole copy that is there already is used; a half one is made again. Only one process copies.

    Args:
        keep: the copy stays when nobody uses it any more.

    Raises:
        ConfigError: there is not enough room, the model cannot be copied, or what stands there is
            another user's.
    """
    if stage is None:
        return model, None
    copy, need = copy_of(model, Path(stage))
    try:
        lock = _locked(copy)
        remove_unused(Path(stage), say)  # this one aside, whose lock is held
    except OSError as error:
        raise ConfigError(f"engine.stage: {stage} cannot be written: {error.strerror}") from None
    with lock:
        users = own_file(_beside(copy, "users"))
        fcntl.flock(users, fcntl.LOCK_SH)
        _check_own(copy)  # another's would be another's model
        if not (copy / DONE).exists():
            shutil.rmtree(copy, ignore_errors=True)
            try:
                _fill(copy, model, need, say)
            except BaseException:
                _remove(copy, users)
                users.close()
                raise
        (copy / KEEP).touch() if keep else (copy / KEEP).unlink(missing_ok=True)
    return copy, users


def _fill(copy: Path, model: Path, need: int, say: Callable[[str], None]) -> None:
    stage, free = copy.parent, shutil.disk_usage(copy.parent).free
    if need + SPARE > free:
        raise ConfigError(
            f"engine.stage: the model takes {need / 2**30:.1f} GiB and {stage} has "
            f"{free / 2**30:.1f} GiB free; make room there or leave engine.stage out"
        )
    say(
        f"copying the model to {copy} ({need / 2**30:.1f} GiB); it is removed when the servers "
        "stop, or if all are killed by the next run that has this engine.stage"
    )
    try:
        shutil.copytree(model, own_folder(copy), dirs_exist_ok=True)
        copy.chmod(0o700)  # copytree gives it the model's mode
        (copy / DONE).touch()
    except OSError as error:  # shutil.Error holds one (source, copy, why) for each file
        faults = error.args[0] if isinstance(error, shutil.Error) else [(error,)]
        raise ConfigError(
            f"engine.stage: {model} cannot be copied to {stage}: {faults[0][-1]}; mend that, or "
            "leave engine.stage out"
        ) from None


def unstage(copy: Path, users: IO[str]) -> None:
    """Remove a staged copy, unless another daemon of this host uses it too."""
    with _locked(copy), users:
        _remove(copy, users)


def remove_unused(stage: Path, say: Callable[[str], None]) -> None:
    """Remove this user's copies, whole or half, that nobody uses and nobody wants to keep."""
    locks = (path for what in BESIDE for path in stage.glob(f"tracemill-{os.getuid()}-*.{what}"))
    for copy in sorted({path.with_suffix("") for path in locks}):
        # somebody is at it, or it is another user's
        with (
            suppress(OSError, ConfigError),
            _locked(copy, wait=False),
            own_file(_beside(copy, "users")) as users,
        ):
            _check_own(copy)
            kept = (copy / KEEP).exists() and (copy / DONE).exists()
            there = copy.exists()
            if not kept and _remove(copy, users) and there:
                say(f"removed {copy}, a copy of a model that a killed run left")


def _check_own(copy: Path) -> None:
    if copy.exists() or copy.is_symlink():
        own_folder(copy)


def _remove(copy: Path, users: IO[str]) -> bool:
    """Remove a copy and its locks, both open; False where somebody else uses it."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    shutil.rmtree(copy, ignore_errors=True)
    for what in BESIDE:
        _beside(copy, what).unlink(missing_ok=True)
    return True


def _beside(copy: Path, what: str) -> Path:
    return copy.with_name(f"{copy.name}.{what}")


def _locked(copy: Path, wait: bool = True) -> IO[str]:
    """The lock that who looks at a copy, makes or removes it holds meanwhile.

    Raises:
        BlockingIOError: another process holds it, and is not waited for.
    """
    path = _beside(copy, "lock")
    while True:
        lock = own_file(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            lock.close()
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                return lock
        lock.close()  # removed while we waited for it

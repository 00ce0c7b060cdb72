"""A copy of the model on a fast file system such as /dev/shm, shared by all servers of a host."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from workflow_scripts.config import ConfigError
from workflow_scripts.identity import digest

SPARE = 1 << 30  # bytes left free beside the copy
DONE = ".staged"


def staged(model: Path, stage: str | None, say: Callable[[str], None]) -> Path:
    """The folder to load the model from: its copy under `stage`, or itself without one.

    A whole copy that is there already is used; a half one is made again. Only one process copies.

    Raises:
        ConfigError: there is not enough room.
    """
    if stage is None:
        return model
    files = [path for path in sorted(model.rglob("*")) if path.is_file()]
    sizes = {str(path.relative_to(model)): path.stat().st_size for path in files}
    name = digest(str(model.resolve()), *(f"{n} {s}" for n, s in sizes.items()))[:12]
    copy = Path(stage) / f"tracemill-{os.getuid()}-{name}"
    try:
        lock = (Path(stage) / f"{copy.name}.lock").open("a")
    except OSError as error:
        raise ConfigError(f"engine.stage: {stage} cannot be written: {error.strerror}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (copy / DONE).exists():
            return copy
        shutil.rmtree(copy, ignore_errors=True)
        need, free = sum(sizes.values()), shutil.disk_usage(stage).free
        if need + SPARE > free:
            raise ConfigError(
                f"engine.stage: the model takes {need / 2**30:.1f} GiB and {stage} has "
                f"{free / 2**30:.1f} GiB free; make room there or leave engine.stage out"
            )
        say(f"copying the model to {copy} ({need / 2**30:.1f} GiB)")
        shutil.copytree(model, copy)
        (copy / DONE).touch()
    return copy


def unstage(copy: Path) -> None:
    """Remove a staged copy."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.with_name(f"{copy.name}.lock").unlink(missing_ok=True)

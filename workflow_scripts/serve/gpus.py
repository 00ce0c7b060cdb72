"""The GPUs of this host: which there are, which one a server may use, and how they are.

Snakemake counts GPUs but names none, so a GPU is leased by a lock file. Its name is the GPU's UUID:
under Slurm with constrained devices every job sees its own GPU as number 0.
"""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from workflow_scripts.base.errors import ConfigError

QUERY = "index,uuid,name,memory.used,memory.total,utilization.gpu,power.draw"
Call = Callable[[list[str]], str]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi tells; memory in MiB, use in percent, power in watts."""

    index: int
    uuid: str
    name: str
    used_mib: int | None
    total_mib: int | None
    util: int | None
    watts: float | None


def call(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def all_gpus(run: Call = call) -> list[Gpu]:
    """All GPUs that nvidia-smi lists; none where there is no nvidia-smi."""
    try:
        text = run(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"])
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 7 and fields[0].isdigit():
            numbers = [_number(field) for field in fields[3:]]
            used, total, util = (None if n is None else int(n) for n in numbers[:3])
            found.append(Gpu(int(fields[0]), fields[1], fields[2], used, total, util, numbers[3]))
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]"


def usable_gpus(wanted: str | int | list[int | str], run: Call = call) -> list[Gpu]:
    """The GPUs to use: those of the configuration among those this process may see.

    Args:
        wanted: `auto`, a number of GPUs, or a list of indices and UUIDs (a UUID's beginning is
            enough, as for CUDA_VISIBLE_DEVICES).

    Raises:
        ConfigError: there are fewer, or one that is named is not there.
    """
    found = all_gpus(run)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # Where devices are constrained, nvidia-smi lists only ours and CUDA counts them from 0.
        found = [
            _named(name.strip(), found, "CUDA_VISIBLE_DEVICES")
            for name in visible.split(",")
            if name.strip()
        ]
    if isinstance(wanted, list):
        return [_named(str(name), found, "engine.gpus") for name in wanted]
    number = len(found) if wanted == "auto" else int(wanted)
    if not found or number > len(found):
        where = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
        raise ConfigError(
            f"engine.gpus: {wanted} asked for, {len(found)} found by nvidia-smi{where}; "
            "set engine.gpus, or run where the GPUs are"
        )
    return found[:number]


def _named(name: str, gpus: list[Gpu], what: str) -> Gpu:
    for gpu in gpus:
        if name == str(gpu.index) or (not name.isdigit() and gpu.uuid.startswith(name)):
            return gpu
    raise ConfigError(
        f"{what}: there is no GPU {name!r}; nvidia-smi lists {[g.index for g in gpus]}"
    )


def lease(gpu: Gpu) -> IO[str] | None:
    """Take a GPU for this process, or None if another Tracemill process of this host has it. Free
    when the file is closed, so whatever ends the process."""
    folder = Path(tempfile.gettempdir()) / f"tracemill-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    handle = (folder / gpu.uuid).open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    return handle

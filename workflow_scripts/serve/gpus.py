"""The GPUs of this host: which there are, which one a server may use, and how they are.

Snakemake counts GPUs but names none, so a GPU is leased: its UUID is claimed on the host, since
under Slurm with constrained devices every job sees its own GPU as number 0.
"""

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pynvml

from workflow_scripts.base.claims import claim, holder
from workflow_scripts.base.errors import ConfigError

NVML_VARIABLE = "TRACEMILL_NVML"  # "0": only nvidia-smi is asked, which tests pretend
QUERY = "index,uuid,name,memory.used,memory.total,utilization.gpu,power.draw"
MIB = 2**20
ANSWER_S = 30.0  # for the driver to answer
Call = Callable[[list[str]], str]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its driver tells; memory in MiB, use in percent, power in watts, None where it
    does not tell."""

    index: int
    uuid: str
    name: str
    used_mib: int | None
    total_mib: int | None
    util: int | None
    watts: float | None


def call(command: list[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=ANSWER_S)
    return done.stdout


def all_gpus(run: Call | None = None) -> list[Gpu]:
    """All GPUs that the driver lists; none where there is no driver.

    Its library NVML tells, and nvidia-smi where there is no NVML.

    Args:
        run: runs nvidia-smi; where it is given, only nvidia-smi is asked.
    """
    if run is None and os.environ.get(NVML_VARIABLE) != "0":
        with contextlib.suppress(pynvml.NVMLError, TimeoutError):
            return _in_time(_by_nvml)
    return _by_smi(run or call)


def _in_time(read: Callable[[], list[Gpu]]) -> list[Gpu]:
    """The reading of a thread of its own, which is left behind where a driver hangs: nobody could
    end it, and everything that waits for it would hang too.

    Raises:
        TimeoutError: there was none within ANSWER_S.
        pynvml.NVMLError: as `read`.
    """
    found: Future[list[Gpu]] = Future()

    def run() -> None:
        try:
            found.set_result(read())
        except pynvml.NVMLError as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found.result(ANSWER_S)


def _by_nvml() -> list[Gpu]:
    """All GPUs that NVML lists, numbered as by nvidia-smi, which counts with it.

    NVML is opened for each reading (6 ms on an H200, of 16 in all; nvidia-smi takes 29). A process
    that keeps it open holds the GPUs' devices, so that none can be reset or put into MIG mode, and
    hands them to whatever it forks.

    Raises:
        pynvml.NVMLError: there is no NVML, or it cannot reach the driver.
    """
    pynvml.nvmlInit()
    try:
        found = [_one_by_nvml(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    return [gpu for gpu in found if gpu is not None]


def _one_by_nvml(index: int) -> Gpu | None:
    """One GPU; None where it is lost, or not this process's to use."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError:
        return None
    memory = _told(_memory, handle)
    use = _told(pynvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = _told(pynvml.nvmlDeviceGetPowerUsage, handle)
    return Gpu(
        index,
        uuid,
        name,
        used_mib=None if memory is None else round(memory.used / MIB),
        total_mib=None if memory is None else round(memory.total / MIB),
        util=None if use is None else use.gpu,
        watts=None if milliwatts is None else round(milliwatts / 1000, 2),
    )


def _told(ask: Callable[[Any], Any], handle: Any) -> Any:
    try:
        return ask(handle)
    except pynvml.NVMLError:
        return None  # not supported (the use of a GPU in MIG mode), or lost since


def _memory(handle: Any) -> Any:
    """Memory in bytes as nvidia-smi of the same driver counts it: from 510 on without what the
    driver keeps for itself, 615 MiB of an H200."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    except pynvml.NVMLError_FunctionNotFound:
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _by_smi(run: Call) -> list[Gpu]:
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


def usable_gpus(wanted: str | int | list[int | str], run: Call | None = None) -> list[Gpu]:
    """The GPUs to use: those of the configuration among those this process may see.

    Args:
        wanted: `auto`, a number of GPUs, or a list of indices and UUIDs (a UUID's beginning is
            enough, as for CUDA_VISIBLE_DEVICES).
        run: as for `all_gpus`.

    Raises:
        ConfigError: there are fewer, or one that is named is not there.
    """
    found = all_gpus(run)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # Where devices are constrained, the driver lists only ours and CUDA counts them from 0.
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
            f"engine.gpus: {wanted} asked for, {len(found)} found{where}; "
            "set engine.gpus, or run where the GPUs are"
        )
    return found[:number]


def _named(name: str, gpus: list[Gpu], what: str) -> Gpu:
    for gpu in gpus:
        if name == str(gpu.index) or (not name.isdigit() and gpu.uuid.startswith(name)):
            return gpu
    raise ConfigError(f"{what}: there is no GPU {name!r}; there are {[g.index for g in gpus]}")


def lease(gpu: Gpu) -> socket.socket | None:
    """Take a GPU for this process, or None if another Tracemill process of this host has it,
    whoever's it is. Free when the socket is closed, so whatever ends the process."""
    return claim(_name(gpu))


def leased_by(gpu: Gpu) -> str | None:
    """The process that has taken a GPU, in words; None where none has."""
    return holder(_name(gpu))


def in_use(gpu: Gpu) -> str:
    """That another run or tune has a GPU, and which process that is."""
    return f"GPU {gpu.index} is in use by {leased_by(gpu) or 'a process that has just ended'}"


def _name(gpu: Gpu) -> str:
    return f"tracemill-gpu-{gpu.uuid}"

"""What the servers of a host share: GPUs and ports."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pynvml
import pytest

from tests.stand_ins.gpus import H200
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.serve import gpus, seats
from workflow_scripts.serve.gpus import Gpu, all_gpus, in_use, lease, leased_by, usable_gpus
from workflow_scripts.serve.ports import claim_port


def test_gpus_are_read() -> None:
    first, second = all_gpus(lambda command: H200)
    assert (first.index, first.uuid, first.used_mib, first.watts) == (0, "GPU-aaa", 4, 76.12)
    assert (second.used_mib, second.util, second.watts) == (None, 99, None)

    def missing(command: list[str]) -> str:
        raise FileNotFoundError("nvidia-smi")

    assert all_gpus(missing) == []


class Driver:
    """NVML of a host with two H200s, as a real one answered (driver 580.159.04, bytes and
    milliwatts): the first idle, the second with a program on it, of which nvidia-smi said 11391 MiB
    and 98 %.

    `refuse` makes a function fail, for one GPU or for all; `smi` counts calls of nvidia-smi, which
    lists two other GPUs.
    """

    def __init__(self, patch: pytest.MonkeyPatch):
        self.patch = patch
        self.open = self.smi = 0
        total, reserved = 150754820096, 644939776
        self.used = [0, 11944132608]
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: self._opened(1),
            "nvmlShutdown": lambda: self._opened(-1),
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": ["GPU-d34e78a2", "GPU-c27de4f1"].__getitem__,
            "nvmlDeviceGetName": lambda gpu: "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": lambda gpu, version=None: (
                pynvml.c_nvmlMemory_v2_t(version, total, reserved, 0, self.used[gpu])
                if version
                else pynvml.c_nvmlMemory_t(total, 0, self.used[gpu] + reserved)
            ),
            "nvmlDeviceGetUtilizationRates": [
                pynvml.c_nvmlUtilization_t(0, 0),
                pynvml.c_nvmlUtilization_t(98, 40),
            ].__getitem__,
            "nvmlDeviceGetPowerUsage": [81319, 685503].__getitem__,
        }
        for name, answer in self.answers.items():
            patch.setattr(pynvml, name, answer)
        patch.setattr(gpus, "call", self._smi)
        patch.delenv(gpus.NVML_VARIABLE, raising=False)

    def _opened(self, by: int) -> None:
        self.open += by

    def _smi(self, command: list[str]) -> str:
        self.smi += 1
        return H200

    def refuse(self, name: str, error: str, gpu: int | None = None) -> None:
        def answer(*args: Any) -> Any:
            if gpu is None or args[0] == gpu:
                raise getattr(pynvml, f"NVMLError_{error}")
            return self.answers[name](*args)

        self.patch.setattr(pynvml, name, answer)


IDLE = Gpu(0, "GPU-d34e78a2", "NVIDIA H200", 0, 143771, 0, 81.32)
BUSY = Gpu(1, "GPU-c27de4f1", "NVIDIA H200", 11391, 143771, 98, 685.5)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def test_a_driver_that_hangs_is_not_waited_for(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", answered.wait)
    monkeypatch.setattr(gpus, "ANSWER_S", 0.05)
    try:
        assert [gpu.uuid for gpu in all_gpus()] == ["GPU-aaa", "GPU-bbb"]  # nvidia-smi's
        assert driver.smi == 1
    finally:
        answered.set()
        while driver.open:  # the thread is on its way out; the next test has another driver
            time.sleep(0.01)


def test_the_drivers_library_tells(driver: Driver) -> None:
    assert all_gpus() == [IDLE, BUSY]
    assert (driver.smi, driver.open) == (0, 0)  # a library left open would hold the GPUs


@pytest.mark.parametrize(
    ("name", "untold"),
    [
        ("nvmlDeviceGetMemoryInfo", {"used_mib": None, "total_mib": None}),
        ("nvmlDeviceGetUtilizationRates", {"util": None}),
        ("nvmlDeviceGetPowerUsage", {"watts": None}),
    ],
)
@pytest.mark.parametrize("error", ["NotSupported", "NoPermission", "GpuIsLost", "Unknown"])
def test_what_a_gpu_does_not_tell(
    driver: Driver, name: str, untold: dict[str, Any], error: str
) -> None:
    driver.refuse(name, error, gpu=1)
    assert all_gpus() == [IDLE, replace(BUSY, **untold)]


@pytest.mark.parametrize("name", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
@pytest.mark.parametrize("error", ["GpuIsLost", "NoPermission"])
def test_a_lost_gpu_hides_no_other(driver: Driver, name: str, error: str) -> None:
    driver.refuse(name, error, gpu=0)
    assert all_gpus() == [BUSY] and (driver.smi, driver.open) == (0, 0)


def test_an_old_driver_counts_what_it_reserves(driver: Driver) -> None:
    """As its nvidia-smi does. By hand: 644939776 bytes are 615.06 MiB."""

    def old(gpu: int, version: int | None = None) -> Any:
        if version:
            raise pynvml.NVMLError_FunctionNotFound
        return driver.answers["nvmlDeviceGetMemoryInfo"](gpu)

    driver.patch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", old)
    assert all_gpus()[0] == replace(IDLE, used_mib=615)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nvmlInit", "LibraryNotFound"),
        ("nvmlInit", "DriverNotLoaded"),
        ("nvmlInit", "LibRmVersionMismatch"),
        ("nvmlDeviceGetCount", "Unknown"),
    ],
)
def test_nvidia_smi_tells_where_the_library_does_not(driver: Driver, name: str, error: str) -> None:
    driver.refuse(name, error)
    assert [gpu.uuid for gpu in all_gpus()] == ["GPU-aaa", "GPU-bbb"]
    assert (driver.smi, driver.open) == (1, 0)


def test_nvidia_smi_alone_tells_where_it_is_asked_for(driver: Driver) -> None:
    """By a caller that runs it itself, and by the variable."""
    assert [gpu.watts for gpu in all_gpus(lambda command: H200)] == [76.12, None]
    assert [gpu.watts for gpu in usable_gpus(1, lambda command: H200)] == [76.12]
    driver.patch.setenv(gpus.NVML_VARIABLE, "0")
    assert [gpu.watts for gpu in all_gpus()] == [76.12, None] and driver.smi == 1


@pytest.mark.parametrize(
    ("visible", "wanted", "expected"),
    [
        (None, "auto", ["GPU-aaa", "GPU-bbb"]),
        (None, 1, ["GPU-aaa"]),
        (None, [1], ["GPU-bbb"]),
        (None, ["GPU-b"], ["GPU-bbb"]),
        ("1", "auto", ["GPU-bbb"]),
        ("GPU-bbb,GPU-aaa", "auto", ["GPU-bbb", "GPU-aaa"]),
        ("", "auto", None),
        (None, 3, None),
        (None, [7], None),
        ("1", [0], None),
    ],
)
def test_usable_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, wanted: Any, expected: list[str] | None
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if expected is None:
        with pytest.raises(ConfigError):
            usable_gpus(wanted, lambda command: H200)
    else:
        assert [g.uuid for g in usable_gpus(wanted, lambda command: H200)] == expected


@pytest.fixture
def three() -> list[Gpu]:
    """GPUs of this test alone, since they are leased on the whole host."""
    return [Gpu(i, f"GPU-{uuid4()}", "H200", 0, 143771, None, None) for i in range(3)]


LEASE = """
import sys, time
from workflow_scripts.serve.gpus import Gpu, lease
held = lease(Gpu(0, sys.argv[1], "H200", 0, 143771, None, None))
print(held is not None, flush=True)
time.sleep(60)
"""


def test_a_gpu_is_leased_once_on_a_host(three: list[Gpu], tmp_path: Path) -> None:
    """By its UUID, whatever number a job sees it as; of a job with another TMPDIR too."""
    command = [sys.executable, "-c", LEASE, three[0].uuid]
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"True\n"
        assert lease(three[0]) is None and lease(replace(three[0], index=7)) is None
        assert in_use(three[0]) == f"GPU 0 is in use by process {other.pid}"
        assert lease(replace(three[1], index=0)) is not None
        other.kill()
    assert leased_by(three[0]) is None and lease(three[0]) is not None


def test_who_has_the_gpus_is_said(
    three: list[Gpu], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(seats, "usable_gpus", lambda wanted: three)
    held = [lease(gpu) for gpu in three[:2]]
    assert [seat.gpu.index for seat in seats.lease_gpus("auto")] == [2]
    told = f"GPU {{}} is in use by process {os.getpid()}"
    said = capsys.readouterr().err
    assert all(told.format(i) + "; this run leaves it out" in said for i in (0, 1))
    held.append(lease(three[2]))
    with pytest.raises(ConfigError, match=f"engine.gpus: {told.format(0)}; .*{told.format(2)}; wa"):
        seats.lease_gpus("auto")
    assert None not in held


def test_two_servers_that_start_at_once_get_two_ports() -> None:
    """Neither listens yet, and they may be of two daemons."""
    first, claim = claim_port(5000)
    code = "from workflow_scripts.serve.ports import claim_port; print(claim_port(5000)[0])"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(told) != first
    claim.close()
    again, claim = claim_port(5000)
    assert again == first
    claim.close()


@pytest.mark.parametrize(
    ("wanted", "others", "expected"),
    [
        (1, [], [0]),
        (1, [0], [1]),  # the next that is free, not the first
        (2, [0, 2], [1]),
        ("auto", [1], [0, 2]),
        ([0, 1], [0], [1]),  # of a list no other than those
    ],
)
def test_a_number_of_gpus_is_any_that_are_free(
    monkeypatch: pytest.MonkeyPatch,
    three: list[Gpu],
    wanted: Any,
    others: list[int],
    expected: list[int],
) -> None:

    def usable(wanted: Any) -> list[Gpu]:
        chosen = {"auto": [0, 1, 2]}.get(wanted) if isinstance(wanted, str) else wanted
        return three[:chosen] if isinstance(chosen, int) else [three[i] for i in chosen or []]

    monkeypatch.setattr(seats, "usable_gpus", usable)
    monkeypatch.setattr(seats, "lease", lambda gpu: None if gpu.index in others else object())
    assert [seat.gpu.index for seat in seats.lease_gpus(wanted)] == expected

"""How the checks see the machine, and the outcome of one."""

import os
import platform
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from workflow_scripts.serve.gpus import Call, call

ENVS = Path(__file__).resolve().parents[2] / "envs"


class Outcome(NamedTuple):
    """The outcome of one check."""

    state: str
    check: str
    text: str


def ok(check: str, text: str) -> Outcome:
    return Outcome("ok", check, text)


def warn(check: str, text: str) -> Outcome:
    return Outcome("WARN", check, text)


def fail(check: str, text: str) -> Outcome:
    return Outcome("FAIL", check, " ".join(text.split()))


def _free(path: Path) -> int:
    return shutil.disk_usage(path).free


def _open_files() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def _memory() -> int:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 3).close()
    except OSError:
        return False
    return True


def _own_ports() -> range:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return range(0)
    return range(int(first), int(last) + 1)


@dataclass(frozen=True)
class Machine:
    """How the checks see the machine; tests see another one.

    `memory` is what is available in bytes, `open_files` the soft and the hard limit, `own_ports`
    the ports that the system gives to connections by itself.
    """

    run: Call = call
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    python: tuple[int, int] = sys.version_info[:2]
    glibc: str = platform.libc_ver()[1]
    free: Callable[[Path], int] = _free
    memory: Callable[[], int] = _memory
    open_files: Callable[[], tuple[int, int]] = _open_files
    listens: Callable[[str, int], bool] = _listens
    own_ports: Callable[[], range] = _own_ports
    envs: Path = ENVS

"""A folder's lock: who holds it is said, and the kernel frees it whatever ends them."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.made.paths import ROOT
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.locks import hold, is_held

HOLD = """
import sys
from pathlib import Path
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.locks import hold
try:
    held = hold(Path(sys.argv[1]))
except ConfigError as error:
    sys.exit(str(error))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results/.lock"


def start(path: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until its input ends, or cannot and says why."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture
def other(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    with start(path) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_with_the_first_ones_name(path: Path) -> None:
    with hold(path):
        assert is_held(path) and path.read_text() == f"{os.getpid()} {socket.gethostname()}"
        second = start(path)
        told, error = second.communicate(timeout=60)
    assert (second.returncode, told) == (1, "")
    assert error == (
        f"{path.parent}: another run works there (process and host: {os.getpid()} "
        f"{socket.gethostname()}); wait for it to end, or set another output_dir\n"
    )
    assert not is_held(path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_is_free_once_its_process_has_died(
    path: Path, other: subprocess.Popen[str], number: signal.Signals
) -> None:
    name = f"{other.pid} {socket.gethostname()}"
    with pytest.raises(ConfigError, match=rf"process and host: {name}\)"):
        hold(path)
    assert is_held(path) and path.read_text() == name  # who was refused left it alone
    other.send_signal(number)
    assert other.wait(60) == -number
    assert not is_held(path)
    assert path.read_text() == name
    with hold(path):
        assert is_held(path) and path.read_text() == f"{os.getpid()} {socket.gethostname()}"


def test_it_is_free_once_its_process_has_ended(path: Path, other: subprocess.Popen[str]) -> None:
    assert is_held(path)
    other.communicate(timeout=60)
    assert not is_held(path)


def test_looking_takes_no_lock(path: Path) -> None:
    path.parent.mkdir()
    assert not is_held(path) and not path.exists()
    path.write_text("1 elsewhere")
    with path.open() as shared:
        fcntl.flock(shared, fcntl.LOCK_SH)
        assert not is_held(path)
    assert path.read_text() == "1 elsewhere"


def test_a_file_system_without_locks_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match=r"cannot lock files \(Function not.*mounted with -o"):
        hold(path)
    assert not is_held(path)

"""Names that one process of a host holds, by whom, and for how long."""

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.made.paths import ROOT
from workflow_scripts.base.claims import claim, holder

# Holds a name, says so, and waits; what it starts or forks before that outlives it.
HOLD = """
import os, subprocess, sys, time
from workflow_scripts.base.claims import claim
held = claim(sys.argv[1])
child = 0
if sys.argv[2:] == ["started"]:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True).pid
elif sys.argv[2:] == ["forked"]:
    born, tell = os.pipe()
    if (child := os.fork()) == 0:
        os.write(tell, b"!")
        time.sleep(60)
    os.read(born, 1)  # it has run, and so what it does first
print(held is not None, child, flush=True)
time.sleep(60)
"""


@pytest.fixture
def name() -> str:
    return f"tracemill-test-{uuid4()}"


@pytest.fixture
def children() -> Iterator[list[int]]:
    """Processes to end with the test."""
    made: list[int] = []
    yield made
    for pid in made:
        os.kill(pid, signal.SIGKILL)


def hold(name: str, *words: str, folder: Path = ROOT) -> tuple["subprocess.Popen[str]", bool, int]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, name, *words], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
    )  # fmt: skip
    assert process.stdout is not None
    held, child = process.stdout.readline().split()
    return process, held == "True", int(child)


def test_a_name_is_held_once(name: str) -> None:
    assert holder(name) is None
    held = claim(name)
    assert held is not None and claim(name) is None
    assert holder(name) == f"process {os.getpid()}"
    held.close()
    assert holder(name) is None and claim(name) is not None


@pytest.mark.parametrize("child", ["started", "forked"])
def test_a_killed_holder_leaves_it_though_its_child_lives_on(
    name: str, child: str, children: list[int]
) -> None:
    process, held, pid = hold(name, child)
    children.append(pid)
    assert held and claim(name) is None and holder(name) == f"process {process.pid}"
    process.kill()
    process.wait()
    os.kill(pid, 0)  # it lives
    assert holder(name) is None and claim(name) is not None


def test_another_folder_for_temporary_files_is_no_other_host(name: str, tmp_path: Path) -> None:
    process, held, _ = hold(name, folder=tmp_path)
    assert held and claim(name) is None
    other, held, _ = hold(name)
    assert not held
    for one in (process, other):
        one.kill()
        one.wait()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_is_told_by_name(name: str) -> None:
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.setuid(65534)
        held = claim(name)
        os.write(tell, b"held" if held else b"not")
        signal.pause()
    try:
        assert os.read(told, 4) == b"held"
        assert claim(name) is None
        assert holder(name) == f"process {child} of user {pwd.getpwuid(65534).pw_name}"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_who_is_asked_too_often_is_still_known_to_be_there(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflow_scripts.base.claims.MOST_ASKED", 1)
    held = claim(name)
    assert held is not None
    told = [holder(name) for _ in range(4)]
    assert told[0] == f"process {os.getpid()}" and told[-1] == "a process"


def test_a_name_that_cannot_be_one_is_an_error() -> None:
    with pytest.raises(OSError, match="too long"):
        claim("x" * 200)

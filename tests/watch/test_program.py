"""The live view as a program: in a pipe, on terminals of every kind, and how it ends."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.made.paths import ROOT
from tests.made.watched_run import Made, full, metrics
from workflow_scripts.watch.__main__ import main


def test_once_prints_and_ends(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    made.begin([10])
    assert main(["run", "--once"]) == 0
    assert "\nNOT STARTED | run.json is" in capsys.readouterr().out
    assert main(["nowhere"]) == 0  # no terminal: once as well
    assert "there is no such folder" in capsys.readouterr().out


COMMAND = [sys.executable, "-m", "workflow_scripts.watch", "run"]


@pytest.mark.parametrize("more", [[], ["--once"], ["--interval", "9"]])
def test_in_a_pipe(made: Made, more: list[str]) -> None:
    full(made)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "COLUMNS": "90"}
    env |= {"FORCE_COLOR": "1", "TTY_INTERACTIVE": "1", "TTY_COMPATIBLE": "1"}  # rich reads these
    done = subprocess.run([*COMMAND, *more], capture_output=True, text=True, env=env, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout and "62/130 (47.6 %)" in done.stdout
    assert max(map(len, done.stdout.split("\n"))) <= 90


def test_a_closed_pipe_is_no_error(made: Made) -> None:
    made.begin([10])
    command = f"{' '.join(COMMAND)} | true; echo ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, env=env, timeout=60)
    assert (done.stdout, done.stderr) == (b"0\n", b"")


class Terminal:
    """The program on a terminal of 30 lines of 100 columns, and what it wrote there."""

    def __init__(self, *more: str, **variables: str) -> None:
        self.seen = ""
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self._before = termios.tcgetattr(self._slave)
        unset = ("NO_COLOR", "COLORTERM", "COLUMNS", "LINES")
        env = {k: v for k, v in os.environ.items() if k not in unset}
        env |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", **variables}
        self.process = subprocess.Popen(
            [*COMMAND, *more], stdin=self._slave, stdout=self._slave, stderr=self._slave, env=env
        )

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 0.1)[0]:
            return False
        self.seen += os.read(self._master, 65536).decode()
        return True

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < until, self.seen
            self._read()

    def end(self) -> int:
        """Read until the program ends, which must leave the terminal as it was."""
        until = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < until, self.seen
            self._read()
        while self._read():
            pass
        assert termios.tcgetattr(self._slave) == self._before
        return self.process.returncode


@pytest.mark.parametrize(
    ("how", "variables", "colours"),
    [
        (signal.SIGINT, {}, {0, 1, 32, 33}),
        (signal.SIGTERM, {}, {0, 1, 32, 33}),
        (signal.SIGINT, {"NO_COLOR": "1"}, {0, 1}),
    ],
)
def test_on_a_terminal(
    made: Made, how: signal.Signals, variables: dict[str, str], colours: set[int]
) -> None:
    """Frames follow the files; a signal ends it; nothing is written but moves and colours."""
    made.begin([10])
    made.job(0, 10, 1, 0, 100, time=time.time() + 1000)
    with Terminal("--interval", "0.1", **variables) as terminal:
        terminal.wait_for("1/10 (10.0 %)")
        terminal.wait_for("nothing in logs/metrics.jsonl")
        made.job(0, 10, 2, 0, 200, time=time.time() + 1000)
        made.log(metrics("4", t=time.time() + 1000, state="canary"))
        terminal.wait_for("2/10 (20.0 %)")
        terminal.wait_for("canary")
        terminal.process.send_signal(how)
        assert terminal.end() == 0
    before, during, after = re.split(r"\x1b\[\?1049[hl]", terminal.seen)  # the other screen
    assert before == "" and "\x1b[?" not in after and "Traceback" not in terminal.seen
    hidden, shown = "\x1b[?25l", "\x1b[?25h"  # the cursor
    assert during.count(hidden) == during.count(shown) == 1 and during.endswith(shown)
    assert "2/10 (20.0 %)" in after and "canary" in after  # the last state stays to be read
    codes = set(re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]", terminal.seen))
    moves = {"\x1b[H", "\x1b[?1049h", "\x1b[?1049l", hidden, shown}
    assert codes == moves | {f"\x1b[{code}m" for code in colours}


@pytest.mark.parametrize(
    ("more", "term"), [(["--once"], "xterm"), ([], "dumb"), ([], "unknown"), (["--once"], "dumb")]
)
def test_once_on_a_terminal_is_plain_text(made: Made, more: list[str], term: str) -> None:
    full(made)
    with Terminal(*more, TERM=term) as terminal:
        assert terminal.end() == 0
    assert "\x1b" not in terminal.seen and terminal.seen.count("62/130 (47.6 %)") == 1
    assert max(map(len, terminal.seen.split("\r\n"))) <= 100

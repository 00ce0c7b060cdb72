"""The live view says the right numbers of every kind of run, and never more than fits."""

import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.made.paths import DATA, ROOT
from tests.made.watched_run import FULL_80, NOW, Made, full, metrics
from workflow_scripts.progress.state import Files
from workflow_scripts.watch.__main__ import main
from workflow_scripts.watch.screen import cells, render

RECORDED = DATA / "watch/two-h200"


def test_the_whole_view(made: Made) -> None:
    full(made)
    assert made.view(80) == FULL_80


def test_long_lists_of_classes_are_wrapped(made: Made) -> None:
    made.begin([10])
    made.over(0, 10, 3, 9, complete=124000, truncated_in_thinking=5600, no_answer=800)
    made.job(0, 10, 10, 3, 9, failures={f"a_reason_{k}": 9 - k for k in range(7)})
    lines = made.view(80).split("\n")
    assert lines[4:6] == [
        "answers   complete 124,000, truncated_in_thinking 5,600, no_answer 800 (in",
        "          finished shards)",
    ]
    assert lines[-2:] == [
        "failures  a_reason_0 9, a_reason_1 8, a_reason_2 7, a_reason_3 6, a_reason_4 5,",
        "          a_reason_5 4, a_reason_6 3",
    ]


def test_a_wide_terminal_shows_more(made: Made) -> None:
    full(made)
    lines = made.view(160).split("\n")
    assert lines[2] == "rows      [#########...........] 62/130 (47.6 %) | 4 failed | 7 kept"
    assert " ".join(lines[6].split()) == (
        "server state run/max queue tok/s KV % state % accept retract GPU % GiB watts age "
        "flight/limit url"
    )
    assert lines[7].split()[-2:] == ["70/73", "http://127.0.0.1:30000"]
    assert lines[9].endswith(" stale 1:15")
    assert " ".join(lines[12].split()) == (
        "0002 [####......] 4/10 1 failed 0003 [####......] 4/10 0004 [####......] 4/10 "
        "0005 [####......] 4/10"
    )


@pytest.mark.parametrize("width", [1, 2, 7, 20, 40, 79, 80, 81, 100, 120, 160, 300])
def test_no_line_is_longer_than_the_terminal(made: Made, width: int) -> None:
    full(made)
    seven = [metrics(f"host-with-a-long-name:{k}", tokens_per_s=1234567.0) for k in range(7)]
    made.log(*seven, {"t": NOW, "event": "started", "server": "0", "text": "長い説明" * 99})
    failures = {f"a_rather_long_reason_{k}": 10**k for k in range(9)}
    made.job(
        3, 10**7, 10**6, 10**5, 10**12, failures=failures, recent=[[NOW, "x" * 999, "日" * 99]]
    )
    for now in (NOW, NOW + 1e6):
        state = made.state(now)
        plain, painted = render(state, width, now), render(state, width, now, colour=True)
        assert max(map(cells, plain)) <= width
        assert [re.sub(r"\x1b\[\d+m", "", line) for line in painted] == plain
        assert "\x1b[" in "".join(painted)


# ---- what state a run is in ---------------------------------------------------------------------


def test_eta_without_metrics_uses_the_jobs_rates(made: Made) -> None:
    full(made)
    (made.path / "logs/metrics.jsonl").unlink()
    state = made.state()
    assert state.rate == 90.0  # of nine running jobs; the stopped one no longer counts
    assert state.eta_s == pytest.approx(68 * 1000 / 90)
    assert "58,000 | 90 tokens/s | ETA 12:35" in made.view()
    assert "servers   nothing in logs/metrics.jsonl" in made.view() and "events" not in made.view()


def test_eta_is_unknown_when_it_is(made: Made) -> None:
    made.begin([10, 10])
    made.job(0, 10, 0, 0, 0, rate=500.0)
    assert "0 | 500 tokens/s | ETA unknown" in made.view()
    made.job(0, 10, 3, 3, 0, rate=500.0)  # failed rows tell nothing about length
    assert "ETA unknown" in made.view()
    made.job(0, 10, 5, 0, 5000, rate=0.0)
    assert "5,000 | 0 tokens/s | ETA unknown" in made.view()
    made.job(0, 10, 5, 0, 5000, rate=1e-300)
    assert "ETA unknown" in made.view()
    made.job(0, 10, 5, 0, 5000, rate=2.5)  # 15 rows of 1,000 tokens at 2.5 a second: 6,000 s
    assert "5,000 | 2 tokens/s | ETA 1:40:00" in made.view()


def test_idle_servers_are_no_reason_to_trust_the_jobs_rate(made: Made) -> None:
    made.begin([10])
    made.job(0, 10, 5, 0, 5000)
    made.log(metrics("0", tokens_per_s=None))
    assert made.state().rate == 10.0
    made.log(metrics("0", tokens_per_s=0))
    assert made.state().rate == 0.0 and made.state().eta_s is None


def test_speed_is_the_mean_of_five_minutes_in_one_state(made: Made) -> None:
    made.begin([10])
    made.job(0, 10, 5, 0, 5000)
    files = Files()
    for age, speed in ((301, 9000), (290, 0), (100, 300), (5, None), (1, 150)):
        made.log(metrics("0", t=NOW - age, tokens_per_s=speed))
    assert made.state(files=files).rate == 150.0  # of 0, 300 and 150
    assert made.state(files=files).eta_s == pytest.approx(5000 / 150)
    made.log(metrics("1", t=NOW, tokens_per_s=50))
    assert made.state(files=files).rate == 200.0
    assert made.state(now=NOW + 14, files=files).rate == 200.0
    assert made.state(now=NOW + 15, files=files).rate == 50.0  # server 0 is silent for 16 s
    assert made.state(now=NOW + 16, files=files).rate == 10.0  # both: the job's own
    made.log(metrics("0", t=NOW, state="down", tokens_per_s=0))
    assert made.state(files=files).rate == 50.0


def test_finished(made: Made) -> None:
    made.begin([3, 2], kept=4, age=500)
    made.over(0, 3, 0, 300, complete=3)
    made.over(1, 2, 0, 100, complete=1, truncated_in_answer=1)
    made.job(0, 3, 3, 0, 300, rate=0.0, time=NOW - 400)
    made.job(1, 2, 2, 0, 100, rate=0.0, time=NOW - 380)
    assert made.view(now=NOW).split("\n")[:5] == [
        "tracemill run",
        "FINISHED | took 2:00 | run feedfacefeedface",
        "rows      [##########] 5/5 (100.0 %) | 0 failed | 4 kept",
        "tokens    400 | 0 tokens/s",
        "answers   complete 4, truncated_in_answer 1 (in finished shards)",
    ]
    assert "failures  none" in made.view()
    os.utime(made.path / "run.json", (NOW, NOW))  # a later start, say for the report
    assert "FINISHED | run.json is 0:07 old" in made.view(now=NOW + 7)


def test_nothing_to_ask_is_finished_too(made: Made) -> None:
    made.begin([0], kept=9)
    made.over(0, 0, 0, 0)
    assert "rows      [##########] 0/0 (100.0 %) | 0 failed | 9 kept" in made.view()
    assert made.state().status == "finished"


def test_almost_all_is_not_all(made: Made) -> None:
    made.begin([100_000])
    made.job(0, 100_000, 99_999, 0, 1)
    assert "[#########.] 99,999/100,000 (99.9 %)" in made.view()


def test_interrupted(made: Made) -> None:
    made.begin([10, 10], age=1000)
    made.job(0, 10, 5, 0, 5000, time=NOW - 60)
    assert made.state().status == "running"
    state = made.state(NOW + 1)
    assert state.status == "stopped" and state.rate == 0.0 and state.eta_s is None
    view = made.view(now=NOW + 1)
    assert "STOPPED | no job wrote for 1:01 | took 15:40 | run feedfacefeedface" in view
    assert "5,000 | 0 tokens/s | ETA unknown" in view
    assert "shards    0 done | 0 running | 1 stopped | 1 waiting" in view
    os.utime(made.path / "run.json", (NOW, NOW))  # started again; the servers load the model
    assert "STOPPED | no job wrote for 2:00 | run.json is 1:00 old" in made.view(now=NOW + 60)


@pytest.mark.parametrize(
    ("name", "now"), [("watch-full", 1795972585.4), ("watch-one-killed", 1795972597.7)]
)
def test_a_row_per_gpu_as_seen_on_two_h200s(made: Made, name: str, now: float) -> None:
    """Its own text of that moment, kept: both servers full of work, and one killed."""
    lines = (RECORDED / "metrics.jsonl").read_text().splitlines(keepends=True)
    made.log(*(line for line in lines if json.loads(line)["t"] <= now))
    made.begin([275] * 16)
    seen = (RECORDED / f"{name}.txt").read_text().splitlines()
    table = seen[seen.index(next(x for x in seen if x.startswith("server "))) :][:3]
    assert "\n".join(table) in made.view(150, now)
    assert all(event.strip() in made.view(150, now) for event in seen[seen.index("events") + 1 :])


def test_between_two_shards_the_run_still_runs(made: Made) -> None:
    """Snakemake starts a job after the one before: for seconds no job writes."""
    made.begin([10, 10])
    made.over(0, 10, 0, 100)
    assert made.state().status == "stopped"
    made.put(".lock", f"{os.getpid()} {socket.gethostname()}")
    assert made.state().status == "running"
    made.put(".lock", f"{os.getpid()} another-host")
    assert made.state().status == "stopped"  # nothing is known of that host's processes
    with subprocess.Popen(["true"]) as gone:
        pass
    made.put(".lock", f"{gone.pid} {socket.gethostname()}")
    assert made.state().status == "stopped"


def test_a_shard_with_too_many_failures_is_not_finished(made: Made) -> None:
    made.begin([2])
    made.job(0, 2, 2, 2, 0, rate=0.0, time=NOW - 90, failures={"timeout": 2})
    assert made.state().status == "stopped"  # all rows are over, but nothing was written out


def test_not_started(made: Made) -> None:
    assert "NOT STARTED | there is no such folder" in made.view()
    made.put("audit/report.json", {})
    assert "NOT STARTED | there is no run.json" in made.view()
    made.begin([2, 2], age=5)
    view = made.view()
    assert "NOT STARTED | run.json is 0:05 old | run feedfacefeedface" in view
    assert "0/4 (0.0 %)" in view and "ETA unknown" in view
    assert "shards    0 done | 0 running | 2 waiting" in view
    (made.path / "shards/manifest.json").unlink()
    assert "rows      0/- | 0 failed | - kept" in made.view() and "2 waiting" in made.view()


def test_clocks_that_run_ahead(made: Made) -> None:
    made.begin([2], age=-30)
    made.job(0, 2, 1, 0, 10, time=NOW + 30)
    made.log(metrics(t=NOW + 30))
    assert "RUNNING | elapsed 0:00" in made.view() and "stale" not in made.view()


# ---- the program --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("colour", [True, False])
def test_on_a_terminal(made: Made, colour: bool) -> None:
    """Frames follow the files; SIGINT ends it; nothing is written but clears, moves and colours."""
    made.begin([10])
    made.job(0, 10, 1, 0, 100, time=time.time() + 1000)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    env |= {"PYTHONPATH": str(ROOT), "TERM": "xterm"} | ({} if colour else {"NO_COLOR": "1"})
    before = termios.tcgetattr(slave)
    command = [*COMMAND, "--interval", "0.1"]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env)
    seen = ""

    def wait_for(text: str) -> None:
        nonlocal seen
        until = time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < until, seen
            seen += os.read(master, 65536).decode()

    try:
        wait_for("1/10 (10.0 %)")
        wait_for("nothing in logs/metrics.jsonl")
        made.job(0, 10, 2, 0, 200, time=time.time() + 1000)
        made.log(metrics("4", t=time.time() + 1000, state="canary"))
        wait_for("2/10 (20.0 %)")
        wait_for("canary")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
    assert termios.tcgetattr(slave) == before
    os.close(slave)
    os.close(master)
    codes = set(re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]", seen))
    assert codes - {"\x1b[2J", "\x1b[H", "\x1b[J", "\x1b[2K"} == (
        {f"\x1b[{code}m" for code in (0, 1, 32, 33)} if colour else set()
    )
    assert seen.count("\x1b[2J") == 1 and "Traceback" not in seen

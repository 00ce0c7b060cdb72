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
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.run_state import EVENTS_SHOWN, TAIL_BYTES, Files, State, clean, read_state
from workflow_scripts.watch import cells, clip, fit, main, render

ROOT = Path(__file__).resolve().parent.parent
NOW = 1_800_000_000.0
RUN = "feedfacefeedface"
RECORDED = Path(__file__).parent / "data/two-h200"


class Made:
    """A run made by hand, in the working folder so that its path is the same everywhere."""

    path = Path("run")

    def put(self, name: str, content: Any) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def begin(self, sizes: list[int], kept: int = 0, age: float = 3723.0) -> None:
        """run.json, `age` seconds old, and the manifest of shards with that many rows."""
        config, identity = {"shards": len(sizes)}, {"run_hash": RUN, "engine": "sglang"}
        path = self.put("run.json", {"config": config, "identity": identity})
        os.utime(path, (NOW - age, NOW - age))
        manifest = {"shards": len(sizes), "asked": sum(sizes), "kept": kept, "rows": sizes}
        self.put("shards/manifest.json", manifest)
        self.shards = len(sizes)

    def job(self, k: int, rows: int, done: int, failed: int, tokens: int, **more: Any) -> Path:
        found: dict[str, Any] = {"rows": rows, "done": done, "failed": failed, "tokens": tokens}
        found |= {"rate": 10.0, "time": NOW - 1, **more}
        return self.put(f"generate/{RUN}/journal/shard-{k:04d}.n{self.shards}.progress.json", found)

    def over(self, k: int, rows: int, failed: int, tokens: int, **classes: int) -> Path:
        found: dict[str, Any] = {"rows": rows, "completed": rows - failed, "failed": failed}
        found |= {"tokens": tokens, "classes": classes, "run_hash": RUN, "sha256": "0" * 64}
        return self.put(f"generate/{RUN}/shard-{k:04d}.json", found)

    def log(self, *lines: dict[str, Any] | str) -> None:
        path = self.path / "logs/metrics.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as f:
            for line in lines:
                f.write(line if isinstance(line, str) else json.dumps(line) + "\n")

    def state(self, now: float = NOW, files: Files | None = None) -> State:
        return read_state(self.path, now, files)

    def view(self, width: int = 80, now: float = NOW) -> str:
        return "\n".join(render(self.state(now), width, now))


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.chdir(tmp_path)
    return Made()


def metrics(server: str = "0", **more: Any) -> dict[str, Any]:
    """A line of a server in full work."""
    line = {
        "t": NOW - 2,
        "server": server,
        "gpu": f"GPU-8f{server}",
        "url": f"http://127.0.0.1:3000{server}",
        "state": "ready",
        "age_s": 3600.0,
        "running": 30,
        "queued": 3,
        "max_running": 64,
        "in_flight": 70,
        "limit": 73,
        "generated_tokens": 123456,
        "tokens_per_s": 2010.5,
        "kv_use": 0.31,
        "state_use": 0.97,
        "accept_length": 3.14,
        "retractions": 0,
        "gpu_util": 98,
        "gpu_mem_mib": 121000,
        "gpu_mem_total_mib": 143771,
        "watts": 640.4,
    }
    return line | more


def full(made: Made) -> None:
    """13 shards of 10 rows: 2 done, 9 running, 1 stopped, 1 waiting.

    Rows done: 20 + 9 x 4 + 6 = 62, of them failed 1 + 1 + 2 = 4, so 58 completed, with 9,000 +
    10,000 + 3,000 + 8 x 4,000 + 4,000 = 58,000 tokens: 1,000 a row.
    """
    made.begin([10] * 13, kept=7)
    made.over(0, 10, 1, 9000, complete=8, no_answer=1)
    made.over(1, 10, 0, 10000, complete=10)
    made.job(0, 10, 10, 1, 9000, rate=0.0, time=NOW - 900, failures={"timeout": 1})
    made.job(1, 10, 10, 0, 10000, rate=0.0, time=NOW - 800)
    late = [NOW - 42, "timeout", "no answer within 16684 s"]
    made.job(2, 10, 4, 1, 3000, failures={"timeout": 1}, recent=[late])
    for k in range(3, 11):
        made.job(k, 10, 4, 0, 4000, failures={}, recent=[])
    refused = [NOW - 3700, "refused", "HTTP 400:\n\x1b[31m" + "prompt too long, " * 10]
    failures = {"refused": 1}  # of two: the other one was counted by an older version
    made.job(11, 10, 6, 2, 4000, time=NOW - 61, failures=failures, recent=[refused])
    made.log({"t": NOW - 50, "event": "dead", "server": "1", "text": "exit status -9"})
    made.log({"t": NOW - 45, "event": "restarted", "server": "1", "text": "attempt 1"})
    made.log(metrics("0", tokens_per_s=20), metrics("1", tokens_per_s=14, state="canary"))
    nulls = dict.fromkeys(metrics(), None) | {"t": NOW - 75, "server": "2", "state": "down"}
    made.log(nulls | {"tokens_per_s": 5000})  # stale: counts no more


FULL_80 = """\
tracemill run
RUNNING | elapsed 1:02:03 | run feedfacefeedface
rows      [####......] 62/130 (47.6 %) | 4 failed | 7 kept
tokens    58,000 | 34 tokens/s | ETA 33:20
answers   complete 18, no_answer 1 (in finished shards)

srv state  run/max que tok/s KV% st% acc ret GPU%     GiB   W     age
0   ready    30/64   3    20  31  97 3.1   0   98 118/140 640 1:00:00
1   canary   30/64   3    14  31  97 3.1   0   98 118/140 640 1:00:00
2   down         -   - 5,000   -   -   -   -    -       -   -       - stale

shards    2 done | 9 running | 1 stopped | 1 waiting
  0002 [####......] 4/10 1 failed         0003 [####......] 4/10
  0004 [####......] 4/10                  0005 [####......] 4/10
  0006 [####......] 4/10                  0007 [####......] 4/10
  0008 [####......] 4/10                  0009 [####......] 4/10
  +1 more

failures  timeout 2, refused 1, reason not recorded 1
     0:42 ago  timeout  no answer within 16684 s
  1:01:40 ago  refused  HTTP 400: ?[31mprompt too long, prompt too long, prom...

events
     0:45 ago  server 1  restarted  attempt 1
     0:50 ago  server 1  dead  exit status -9"""


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


# ---- other runs' files --------------------------------------------------------------------------


def test_files_of_another_shard_count_or_input_do_not_count(made: Made) -> None:
    made.begin([6, 6, 6])
    made.job(0, 6, 6, 0, 600)
    made.over(0, 6, 0, 600, complete=6)
    made.begin([9, 9])
    state = made.state()
    assert (state.done, state.status) == (0, "not started")
    made.job(0, 9, 4, 0, 400)
    assert made.state().done == 4
    made.over(0, 9, 1, 800, complete=8)
    assert (made.state().done, made.state().failed, made.state().tokens) == (9, 1, 800)
    other = made.put("generate/0123456789abcdef/shard-0001.json", {"rows": 9, "tokens": 5})
    assert made.state().done == 9 and other.exists()


# ---- damaged, strange and huge files ------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", '{"rows": 5', "[]", "null", "17", "\0\0", '"x"'])
def test_torn_files_are_as_good_as_missing(made: Made, text: str) -> None:
    made.begin([10, 10])
    made.job(0, 10, 5, 0, 5000)
    made.job(1, 10, 5, 0, 5000).write_text(text)
    made.put(f"generate/{RUN}/shard-0000.json", text)
    made.log(text + "\n", metrics(), text)
    state = made.state()
    assert (state.done, state.status, len(state.servers)) == (5, "running", 1)
    made.put("shards/manifest.json", text)
    assert (made.state().asked, made.state().done) == (None, 5)
    made.put("run.json", text)
    assert made.state().status == "not started"
    render(made.state(), 80, NOW)


def test_a_torn_file_keeps_its_last_content(made: Made) -> None:
    made.begin([10])
    path, files = made.job(0, 10, 5, 0, 5000), Files()
    assert made.state(files=files).done == 5
    path.write_text('{"rows": 10, "do')
    assert made.state(files=files).done == 5
    made.job(0, 10, 6, 0, 6000)
    assert made.state(files=files).done == 6
    path.unlink()
    assert made.state(files=files).done == 0


def test_unknown_fields_nulls_and_wrong_types(made: Made) -> None:
    made.begin([10, 10])
    strange: dict[str, Any] = {
        "failures": {"x": None, "y": "3"},
        "recent": [None, [1], [None, None, {}]],
    }
    made.job(0, 10, 5, 1, 5000, colour="blue", **strange)
    nothing = dict.fromkeys(("rows", "done", "failed", "tokens", "rate", "failures"), None)
    made.put(f"generate/{RUN}/journal/shard-0001.n2.progress.json", nothing | {"recent": 3})
    made.log(metrics("0", flux=1.21, watts="many", gpu_util=True, kv_use=[], state=None))
    made.log({"server": "1"}, {"t": "x", "server": "1"}, {"t": NOW}, {"t": NOW, "event": "odd"})
    state = made.state()
    assert (state.done, state.failed, state.stages["stopped"]) == (5, 1, 1)
    assert [server.name for server in state.servers] == ["0"]
    assert state.recent == []
    view = made.view()
    assert "0   -       30/64   3 2,010   -  97 3.1   0    - 118/140 - 1:00:00  70/73\n" in view
    assert "failures  reason not recorded 1\n" in view and "     0:00 ago  -  odd" in view


def test_seven_servers_in_their_order(made: Made) -> None:
    made.begin([10])
    made.job(0, 10, 5, 0, 5000)
    made.log(*(metrics(str(k)) for k in (6, 10, 2, 1, 3, 5, 4)))
    names = [line.split()[0] for line in made.view().split("\n")[7:14]]
    assert names == ["1", "2", "3", "4", "5", "6", "10"]
    assert made.state().rate == 7 * 2010.5
    # 5 rows of 1,000 tokens at 14,073.5 tokens a second
    assert made.state().eta_s == pytest.approx(5000 / 14073.5)


def test_only_the_tail_of_a_huge_file_is_read(made: Made) -> None:
    made.begin([10])
    path = made.put("logs/metrics.jsonl", "")
    with path.open("wb") as f:
        f.truncate(300 << 20)  # sparse: 300 MB of zeros, as one long broken line
    made.log("\n", *(metrics("0", tokens_per_s=n) for n in range(5000)))
    files = Files()
    state = made.state(files=files)
    assert files.bytes_read == TAIL_BYTES
    assert state.servers[0].values["tokens_per_s"] == 4999
    made.state(files=files)
    assert files.bytes_read == TAIL_BYTES
    line = json.dumps(metrics("1")) + "\n"
    made.log(line)
    assert len(made.state(files=files).servers) == 2
    assert files.bytes_read == TAIL_BYTES + len(line)
    made.log(*(metrics("2") for _ in range(5000)))  # while the watcher was suspended
    assert len(made.state(files=files).servers) == 3
    assert files.bytes_read == 2 * TAIL_BYTES + len(line)


def test_servers_of_jobs_on_a_cluster(made: Made) -> None:
    """By hand: shards 0 and 1 run, each with a first server that its node calls number 0; that of
    the finished shard 2 is of no interest any more."""
    made.begin([10] * 3)
    made.job(0, 10, 4, 0, 4000)
    made.job(1, 10, 4, 0, 4000)
    made.job(2, 10, 10, 0, 10000)
    made.over(2, 10, 0, 10000, complete=10)
    for k in range(3):
        line = json.dumps(metrics("0", host=f"gpu{k}", tokens_per_s=100.0))
        event = json.dumps({"t": NOW - k, "event": "ready", "server": "0", "text": "64 at once"})
        made.put(f"logs/servers/{k:04d}/metrics.jsonl", f"{line}\n{event}\n")
    files = Files()
    state = made.state(files=files)
    assert [(s.name, s.url) for s in state.servers] == [
        ("0000/0", "gpu0:30000"),
        ("0001/0", "gpu1:30000"),
    ]
    assert state.rate == 200.0
    assert [text for _, text in state.events] == [
        f"server {name}  ready  64 at once" for name in ("0000/0", "0001/0")
    ]
    made.over(1, 10, 0, 10000, complete=10)
    assert [s.name for s in made.state(files=files).servers] == ["0000/0"]


def test_the_first_partial_line_is_dropped(made: Made) -> None:
    made.begin([10])
    inner = json.dumps(metrics("inner"))
    made.log("x" * 100, inner + "\n")
    rest = TAIL_BYTES - len(inner) - 1
    made.log(" " * (rest - 1) + "\n")  # the tail begins exactly at `inner`, inside a longer line
    assert made.state().servers == []


def test_follows_by_offset_and_waits_for_torn_lines(made: Made) -> None:
    made.begin([10])
    files = Files()
    assert made.state(files=files).servers == []
    made.log(metrics("0", running=1))
    assert made.state(files=files).servers[0].values["running"] == 1
    text = json.dumps(metrics("0", running=22))
    made.log(text[:40])
    assert made.state(files=files).servers[0].values["running"] == 1
    made.log(text[40:] + "\n")
    assert made.state(files=files).servers[0].values["running"] == 22
    for k in range(9):
        made.log({"t": NOW, "event": "restarted", "server": "0", "text": f"no {k}"})
    found = made.state(files=files).events
    assert [text for _, text in found] == [f"server 0  restarted  no {k}" for k in (8, 7, 6, 5)]
    assert len(found) == EVENTS_SHOWN


def test_a_new_metrics_file_is_read_from_its_start(made: Made) -> None:
    made.begin([10])
    files = Files()
    made.log(metrics("0"), metrics("1"))
    assert len(made.state(files=files).servers) == 2
    (made.path / "logs/metrics.jsonl").write_text(json.dumps(metrics("7")) + "\n")  # shorter
    assert [server.name for server in made.state(files=files).servers] == ["7"]
    new = made.put("logs/new.jsonl", json.dumps(metrics("8")) + "\n" + json.dumps(metrics("9")))
    new.rename(made.path / "logs/metrics.jsonl")
    assert [server.name for server in made.state(files=files).servers] == ["8"]


def test_text_from_outside_cannot_move_the_cursor() -> None:
    assert clean("a\x1b[2J\r\nb\t\u202ec\x07") == "a?[2J b ?c?"
    assert clip("日本語日本語", 9) == "日本語..." and clip("abcdef", 6) == "abcdef"
    assert clip("abcdef", 5) == "ab..." and clip("abcdef", 2) == ".."


def test_fit() -> None:
    lines = ["a", "", "b", "c"]
    assert fit(lines, 4) == lines and fit(lines, 3) == ["a", "b", "c"]
    assert fit(lines, 2) == ["a", "+2 more lines"]


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

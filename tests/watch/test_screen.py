"""The live view says the right numbers of every kind of run, and never more than fits."""

import io
import json
import os
import re
import socket
import subprocess
import unicodedata

import pytest
from rich.console import Console

from tests.made.paths import DATA
from tests.made.watched_run import FULL_80, NOW, Made, full, metrics
from workflow_scripts.progress.state import Files
from workflow_scripts.watch.__main__ import fit
from workflow_scripts.watch.screen import render

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


def test_a_narrow_terminal_leaves_columns_out(made: Made) -> None:
    full(made)
    assert made.view(60).split("\n")[6:10] == [
        "srv state  run/max que tok/s KV% st% acc ret GPU%",
        "0   ready    30/64   3    20  31  97 3.1   0   98",
        "1   canary   30/64   3    14  31  97 3.1   0   98",
        "2   down         -   - 5,000   -   -   -   -    - stale",
    ]
    assert made.view(40).split("\n")[3:14] == [
        "rows      [##...] 62/130 (47.6 %) | 4",
        "          failed | 7 kept",
        "tokens    58,000 | 34 tokens/s | ETA",
        "          33:20",
        "answers   complete 18, no_answer 1 (in",
        "          finished shards)",
        "",
        "srv state  run/max que tok/s GPU%",
        "0   ready    30/64   3    20   98",
        "1   canary   30/64   3    14   98",
        "2   down         -   - 5,000    - stale",
    ]


def test_no_number_of_a_server_is_ever_cut(made: Made) -> None:
    """Columns are left out as a whole; only names give way, down to 9 columns, and say so."""
    numbers = {  # of metrics()
        "run/max": "30/64",
        "que": "3",
        "tok/s": "2,010",
        "KV%": "31",
        "st%": "97",
        "acc": "3.1",
        "ret": "0",
        "GPU%": "98",
        "GiB": "118/140",
        "W": "640",
        "age": "1:00:00",
        "flight": "70/73",
        "url": "http://127.0.0.1:30000",
    }
    name, state = "host-with-a-long-name:8", "a-state-of-a-later-version"
    made.begin([10])
    made.log(metrics(t=NOW - 99) | {"server": name, "state": state})
    for width in range(39, 120):  # 9 + 9 + run/max + tok/s + stale, and 4 blanks between
        lines = made.view(width).split("\n")
        at = next(k for k, line in enumerate(lines) if line.startswith("srv"))
        titles, cells = lines[at].split(), lines[at + 1].split()
        shown = dict(zip(titles, cells, strict=False))
        for given, seen in ((name, shown.pop("srv")), (state, shown.pop("state"))):
            assert seen == given or (len(seen) >= 9 and given.startswith(seen.removesuffix("…")))
        assert shown.keys() >= {"run/max", "tok/s"} and shown.items() <= numbers.items()
        assert cells[len(titles) :] == (["stale", "1:39"] if width >= 100 else ["stale"])


def screens_columns(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


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
        out = io.StringIO()
        terminal = Console(file=out, width=width, force_terminal=True, color_system="standard")
        terminal.print(render(made.state(now), width, now))
        plain = made.view(width, now).split("\n")
        painted = [re.sub(r"\x1b\[[\d;]+m", "", x).rstrip() for x in out.getvalue().splitlines()]
        assert max(map(screens_columns, plain)) <= width
        assert painted == plain and "\x1b[" in out.getvalue()


def test_what_files_say_is_text_and_no_more(made: Made) -> None:
    """Markup, links, emoji names and escapes in every text that a file holds: all are shown as
    they are, but for the escape itself, and paint nothing."""
    hostile = "[red]x[/] [link=http://a]y[/link] :smile: [/] \x1b[31m\x1b]8;;z\x07"
    shown = "[red]x[/] [link=http://a]y[/link] :smile: [/] ?[31m?]8;;z?"
    made.begin([10, 10])
    identity = {"run_hash": hostile}
    made.put("run.json", {"config": {"shards": 2}, "identity": identity})
    assert f"run {shown}" in made.view(300)
    made.begin([10, 10])
    made.over(0, 10, 0, 100, **{hostile: 10})
    made.job(1, 10, 5, 2, 9, failures={hostile: 2}, recent=[[NOW, hostile, hostile]])
    made.log(metrics(hostile, state=hostile, url=hostile))
    made.log({"t": NOW, "event": hostile, "server": hostile, "text": hostile})
    view = made.view(600)
    assert view.count(shown) == 1 + 1 + 2 + 3 + 3  # class, failures, recent, server, event
    out = io.StringIO()
    terminal = Console(file=out, width=600, force_terminal=True, color_system="standard")
    terminal.print(render(made.state(), 600, NOW))
    assert set(re.findall(r"\x1b.[0-9;]*[a-zA-Z]?", out.getvalue())) == {
        f"\x1b[{code}m" for code in (0, 1, 32, 33)
    }
    assert "".join(c for c in out.getvalue() if not c.isprintable()).strip("\x1b\n") == ""


def test_a_low_terminal_says_what_it_leaves_out(made: Made) -> None:
    full(made)
    whole = FULL_80.split("\n")
    dense = [line for line in whole if line]
    assert (len(whole), len(dense)) == (25, 21)
    for height, lines in (
        (25, whole),
        (24, dense),
        (21, dense),
        (20, [*dense[:19], "+2 more lines"]),
        (2, [*dense[:1], "+20 more lines"]),
        (1, ["+21 more lines"]),
    ):
        console = Console(width=80, height=height, force_terminal=False, color_system=None)
        with console.capture() as drawn:
            console.print(fit(render(made.state(), 80, NOW), console))
        assert [line.rstrip() for line in drawn.get().splitlines()] == lines


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
    """The numbers of that moment, kept: both servers full of work, and one killed."""
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

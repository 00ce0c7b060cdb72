"""The live view of files that are torn, strange, huge or another run's."""

import json
from typing import Any

import pytest

from tests.made.watched_run import NOW, RUN, Made, metrics
from workflow_scripts.base.log import clean
from workflow_scripts.progress.state import EVENTS_SHOWN, TAIL_BYTES, Files

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
    assert "NOT STARTED" in made.view()


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


def test_a_job_that_said_its_end_runs_no_more(made: Made) -> None:
    """At once, not only when it has been silent for a minute; one that was killed said nothing."""
    made.begin([4, 4])
    made.job(0, 4, 3, 1, 100, running=False)
    assert made.state().status == "stopped" and made.state().stages["stopped"] == 1
    made.job(1, 4, 1, 0, 100, running=True)
    assert made.state().status == "running" and made.state().stages["running"] == 1

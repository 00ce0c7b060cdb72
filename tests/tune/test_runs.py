"""Whole tunes on a pretended GPU, and runs with `engine.server: auto`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tests.made.paths import ROOT
from tests.made.plan_cases import BOOT
from tests.made.workspace import Workspace
from tests.stand_ins.gpus import Gpus, workspace
from workflow_scripts import plan
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.check_machine.job import check
from workflow_scripts.check_machine.machine import Machine
from workflow_scripts.config.load import load
from workflow_scripts.model.folder import model_key
from workflow_scripts.serve.gpus import Gpu
from workflow_scripts.serve.tuned import check_here, resolve, tuned_file
from workflow_scripts.tune.__main__ import main
from workflow_scripts.tune.results import read_results
from workflow_scripts.workflow.run import Run

FLAGS = {"disable_radix_cache": True, "max_running_requests": 4, "context_length": 4096}
FAST = ["--interval-s", "0.2", "--window-s", "3", "--fill-s", "20"]
# A step takes 10 ms and 0.1 ms a request: 4 and 8 requests give 385 and 741 tokens/s. The one that
# loops is the fastest, 4,000 tokens/s.
PLAY = {
    "plain": [0.01, 0.0001],
    "draft": [0.01, 0.0001],
    "special": {
        "12": {"fail": True},
        "16": {"faults": [{"fault": "loop", "share": 0.5}], "token_seconds": 0.004},
    },
}
CANDIDATES = {
    "eight": {"max_running_requests": 8},
    "no room": {"max_running_requests": 12},
    "loops": {"max_running_requests": 16},
}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    made = Gpus(tmp_path, monkeypatch)
    made.set(1, play=PLAY)
    yield made
    for pid in made.alive():
        os.kill(pid, signal.SIGKILL)


def tuned_workspace(host: Gpus, **engine: Any) -> Workspace:
    """A run over a model with the shape of Qwen3.6-27B and a small tokenizer."""
    work = workspace(host, rows=40, server=FLAGS, **engine)
    work.configure(sampling={"max_new_tokens": 400})
    shutil.copy(BOOT / "qwen3.6-27b.config.json", work.folder / "model/config.json")
    (work.folder / "model/model.safetensors").unlink()  # it has no header, which the plan reads
    (work.folder / "candidates.yaml").write_text(yaml.safe_dump(CANDIDATES, sort_keys=False))
    return work


def start(work: Workspace, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "workflow_scripts.tune", "--candidates", "candidates.yaml"]
    return subprocess.Popen(
        [*command, "--most", "4", *FAST, *more],
        cwd=work.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(what: Any, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not what():
        assert process.poll() is None and time.monotonic() < until, process.communicate()[0]
        time.sleep(0.05)


def limits(host: Gpus) -> list[str]:
    """max_running_requests of every server start so far."""
    words = [start["argv"] for start in host.starts()]
    return [argv[argv.index("--max-running-requests") + 1] for argv in words]


@pytest.mark.slow
def test_a_tune_is_interrupted_continued_and_used(
    host: Gpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tuned_workspace(host)
    monkeypatch.chdir(work.folder)
    interrupt(work, host)
    kill_during_the_second_start(work, host, capsys)
    before = limits(host)
    assert before.count("4") == 2  # the one that SIGTERM ended, and the finished one

    whole = start(work)
    output, _ = whole.communicate(timeout=200)
    assert whole.returncode == 0, output
    assert "baseline: measured already" in output and "after: eight" in output
    assert "Choice: eight" in output
    assert limits(host)[len(before) :] == ["8", "12", "16"]
    assert_results(work.out / "tune/candidates.jsonl")
    assert_pages(work.out / "tune")
    chosen = yaml.safe_load((work.out / "tune/server.yaml").read_text())
    assert chosen["server"] == FLAGS | {"max_running_requests": 8}

    named = ["--candidates", "candidates.yaml", "--most", "4", *FAST]
    assert main(named) == 0 and len(limits(host)) == len(before) + 3  # nothing is left to start
    use(work, host, chosen["server"])


def interrupt(work: Workspace, host: Gpus) -> None:
    """SIGTERM once the first server is started: it ends in order."""
    tune = start(work)
    wait_for(host.starts, tune)
    tune.send_signal(signal.SIGTERM)
    output, _ = tune.communicate(timeout=60)
    assert tune.returncode == 130, output
    host.wait_until_gone(5)


def kill_during_the_second_start(
    work: Workspace, host: Gpus, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL once there is a result; until then no other tune may run beside it."""
    tune = start(work)
    wait_for(lambda: read_results(work.out / "tune/candidates.jsonl"), tune)
    assert main([]) == 1 and "another run works there" in capsys.readouterr().err
    assert main(["--output", "elsewhere"]) == 1
    assert "GPU 0 is in use by process " in capsys.readouterr().err
    tune.kill()
    tune.communicate()
    host.wait_until_gone(15)


def assert_results(path: Path) -> None:
    found = {result.name: result for result in read_results(path)}
    states = {"baseline": "measured", "eight": "measured", "no room": "failed", "loops": "measured"}
    assert {name: result.status for name, result in found.items()} == states
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    firsts = {line["name"]: line["kind"] for line in reversed(lines)}
    assert set(firsts.values()) == {"predicted"}  # each before its server started
    assert found["eight"].predicted is not None and found["eight"].predicted["max_running"] == 8
    assert found["eight"].reported is not None and found["eight"].reported["max_running"] == 8
    assert "CUDA out of memory" in found["no room"].reason
    answers = found["loops"].answers
    assert 0.1 < sum(one.loops for one in answers) / len(answers) < 0.9


def assert_pages(folder: Path) -> None:
    table = (folder / "table.md").read_text()
    assert "| tokens/s |" in table and "REHEARSAL" not in table
    assert "`loops` refused" in table and "CUDA out of memory" in table
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 2 and "loops refused" in page


def use(work: Workspace, host: Gpus, server: dict[str, Any]) -> None:
    """A run with the flags that were chosen."""
    work.configure(engine={"server": "auto"}, shards=1)
    done = work.run("merge")
    assert done.code == 0, done.output
    assert limits(host)[-1] == "8"
    run = json.loads((work.out / "run.json").read_text())
    assert run["config"]["engine"]["server"] == server
    assert run["tuned"]["gpu_mib"] == 143_771
    assert pq.read_metadata(work.out / "merged/completions.parquet").num_rows == 40
    assert Run(load(work.config)).hash == run["identity"]["run_hash"]


@pytest.mark.slow
def test_the_ready_rehearsal(host: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/tune_h200.yaml with its candidates, steps a tenth as long as on an H200, which
    gave 2,014, 2,556, 4,329 and 5,406 tokens/s."""
    play = {"draft": [0.00203, 0.000085], "plain": [0.00118, 0.0000139]}
    host.set(1, play=play, context_length=8192, vocab_size=248_320)
    work = tuned_workspace(host)
    config = yaml.safe_load((ROOT / "benchmarks/tune_h200.yaml").read_text())
    config["model"]["path"] = "model"
    config["engine"]["python"] = work.config["engine"]["python"]
    config |= {"output_dir": "results", "input": work.config["input"]}
    (work.folder / "h200.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(work.folder)
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "2")  # of an earlier experiment
    named = ["--candidates", str(ROOT / "benchmarks/tune_h200_candidates.yaml"), "--most", "4"]
    command = ["--configfile", "h200.yaml", *named, *FAST, "--rehearsal", "--accept-length", "3"]
    assert main(command) == 0
    assert [start["accept"] for start in host.starts()] == ["3", "3", None, None]
    results = read_results(work.out / "tune/candidates.jsonl")
    assert [result.reported and result.reported["max_running"] for result in results] == [
        32,
        64,
        128,
        256,
    ]
    assert all(s["accept_length"] == 3 for s in results[0].samples if s["t"] > 1)
    chosen = (work.out / "tune/server.yaml").read_text()
    for text in (
        chosen,
        *((work.out / f"tune/{n}").read_text() for n in ("table.md", "report.html")),
    ):
        assert "REHEARSAL" in text and "accept length of 3 is simulated" in text
    with pytest.raises(ConfigError, match="comes from a rehearsal"):
        auto = config["engine"] | {"server": "auto", "rehearsal": False, "rehearsal_tokens": None}
        resolve(load(config | {"engine": auto}))


@pytest.mark.slow
def test_servers_that_are_of_no_use(host: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a result with its reason; only wrong answers end the tune."""
    special = {  # the greedy answers before the load are numbers 0 to 15
        "5": {"faults": [{"fault": "kill", "rid": "-16$"}]},
        "6": {"token_seconds": 0},
        "7": {"faults": [{"fault": "stuck", "rid": "-16$"}]},
    }
    host.set(1, play=PLAY | {"special": special})
    work = tuned_workspace(host)
    work.configure(generate={"stall_timeout_s": 3})
    monkeypatch.chdir(work.folder)
    names = {"dies": 5, "idles": 6, "sticks": 7}
    named = {name: {"max_running_requests": limit} for name, limit in names.items()}
    Path("candidates.yaml").write_text(yaml.safe_dump(named))
    command = ["--candidates", "candidates.yaml", "--most", "4", *FAST, "--fill-s", "2"]
    assert main(command) == 0
    found = {r.name: r for r in read_results(work.out / "tune/candidates.jsonl")}
    assert found["baseline"].status == "measured"
    assert "the server ended under load with status -9" in found["dies"].reason
    assert found["idles"].status == "not full" and not found["idles"].rates
    assert "no speed can be told" in found["idles"].reason
    assert "it stands still: no token for 3 s" in found["sticks"].reason

    shutil.rmtree(work.out / "tune")
    canary = {"prompt": "What is the capital of France?", "expect": "Paris"}
    work.configure(engine={"canary": [canary]})
    assert main(command) == 1
    (only,) = read_results(work.out / "tune/candidates.jsonl")
    assert only.status == "wrong" and "answers, but wrongly" in only.reason
    assert not (work.out / "tune/server.yaml").exists()
    host.wait_until_gone(5)


# ---- engine.server: auto ----


@pytest.fixture
def auto(host: Gpus, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace whose tune chose 8 requests and speculation."""
    work = tuned_workspace(host)
    work.configure(engine={"server": "auto"})
    monkeypatch.chdir(work.folder)
    made_for: dict[str, Any] = {"model": model_key(Path("model")), "model_path": "model"}
    made_for |= {"sglang": "0.5.11", "gpu": "Fake H200", "gpu_mib": 143_771, "rehearsal": False}
    server: dict[str, Any] = {"max_running_requests": 8, "speculative_algorithm": "NEXTN"}
    server["disable_radix_cache"] = True
    written = {"chosen": "eight", "made_for": made_for, "server": server}
    path = tuned_file("results")
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(written))
    return work


def test_auto_becomes_real_flags(auto: Workspace) -> None:
    run = Run(load(auto.config))
    assert run.config.engine.server == {
        "max_running_requests": 8,
        "speculative_algorithm": "NEXTN",
        "disable_radix_cache": True,
    }
    assert run.identity["numeric_flags"] == {"speculative_algorithm": "EAGLE"}
    # the same flags written out are the same run
    auto.configure(engine={"server": dict(run.config.engine.server)})
    assert Run(load(auto.config)).hash == run.hash and Run(load(auto.config)).tuned is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"made_for.model": "other"}, "was made for another model than model"),
        ({"made_for.sglang": "0.5.23"}, "made for SGLang 0.5.23, here is 0.5.11"),
        ({"made_for.gpu_mib": 183_359}, "GPU of 183,359 MiB .* has 143,771"),
        ({"made_for.rehearsal": True}, "comes from a rehearsal"),
        ({"server": None}, "is not what a tune writes"),
        (None, "which is not there; make it with `python -m workflow_scripts.tune"),
    ],
)
def test_auto_refuses_what_was_made_for_something_else(
    auto: Workspace, change: dict[str, Any] | None, said: str
) -> None:
    path = tuned_file("results")
    found = yaml.safe_load(path.read_text())
    path.unlink()
    if change is not None:
        ((key, value),) = change.items()
        section, _, name = key.rpartition(".")
        (found[section] if section else found)[name] = value
        path.write_text(yaml.safe_dump(found))
    with pytest.raises(ConfigError, match=said):
        Run(load(auto.config))


def test_plan_and_check_machine_take_what_auto_means(
    auto: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--configfile", "config/config.yaml", "--gpu-gib", "139.13"]
    assert plan.main(command) == 0
    told = capsys.readouterr().out
    assert "engine.server is auto: `eight`" in told and "  8 requests at once" in told
    lines = [line for line in check(auto.config, Machine()) if line.check == "tune"]
    assert [(line.state, line.text) for line in lines] == [("ok", "engine.server is `eight`")]
    tuned_file("results").unlink()
    assert plan.main(command) == 0
    assert "there is no tune yet: SGLang's defaults" in capsys.readouterr().out
    lines = [line for line in check(auto.config, Machine()) if line.check == "tune"]
    assert [line.state for line in lines] == ["FAIL"] and "workflow_scripts.tune" in lines[0].text


def test_a_machine_that_does_not_tell_is_not_refused(auto: Workspace) -> None:
    made_for = yaml.safe_load(tuned_file("results").read_text())["made_for"]
    check_here("results", made_for, None, [])
    check_here("results", made_for, "0.5.11", [Gpu(0, "GPU-a", "H200", 0, 143_770, 0, 70.0)])
    with pytest.raises(ConfigError, match="kind `sglang` alone"):
        resolve(load(auto.config | {"engine": {"kind": "embedded", "server": "auto"}}))


def test_what_cannot_be_tuned(host: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tuned_workspace(host)
    monkeypatch.chdir(work.folder)
    said: list[str] = []
    monkeypatch.setattr("workflow_scripts.tune.__main__.say", said.append)
    assert main(["--accept-length", "3"]) == 1 and "only with --rehearsal" in said[-1]
    assert main(["--gpu", "7"]) == 1 and "no GPU '7'" in said[-1]
    work.configure(engine={"server": FLAGS | {"load_format": "dummy"}})
    assert main([]) == 1 and "dummy loads random weights" in said[-1]
    assert main(["--rehearsal"]) == 1 and "engine.rehearsal_tokens" in said[-1]
    work.configure(engine={"kind": "embedded"})
    assert main([]) == 1 and "engine.kind" in said[-1]
    assert host.starts() == []

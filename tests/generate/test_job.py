"""One shard against the stand-in server: faults, resuming, multi-turn, what is written out."""

import itertools
import json
import os
import resource
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.made.model import IM_END, THINK, VOCAB, byte_tokenizer
from tests.made.shard_job import RUN, Job
from tests.made.workspace import Log, stand_in
from workflow_scripts.base.files import file_sha256
from workflow_scripts.config.load import load
from workflow_scripts.engine.places import NoServer
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.generate.job import generate
from workflow_scripts.generate.shard import TooManyFailed
from workflow_scripts.tables.columns import SHARD


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, [[f"Question {i}?"] for i in range(10)])


def test_answers_are_the_servers_own_ids(job: Job) -> None:
    with stand_in() as server:
        counts = job.run(server.url)
    table = job.table()
    assert counts["completed"] == table.height == 10 and counts["failed"] == 0
    assert counts["sha256"] == file_sha256(job.out / "shard-0000.parquet")
    assert table["row_id"].to_list() == sorted(table["row_id"])
    tokenizer = byte_tokenizer()
    for row in table.iter_rows(named=True):
        (turn,) = row["turns"]
        question = json.loads(row["messages"])[0]["content"]
        prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n"
        assert turn["prompt_ids"] == tokenizer.encode(prompt).ids
        assert turn["output_ids"][-1] == IM_END and turn["class"] == "complete"
        whole = tokenizer.decode(turn["output_ids"], skip_special_tokens=False)
        reasoning, _, answer = whole.partition("</think>")
        assert turn["reasoning"] == reasoning.strip("\n")
        assert turn["answer"] + "<|im_end|>" == answer.lstrip("\n")
        assert row["run_hash"] == RUN and row["old_response_tokens"] == 3


def test_a_later_turn_sees_the_new_answers(tmp_path: Path) -> None:
    job = Job(tmp_path, [["First?", "Second?"]])
    with stand_in() as server:
        job.run(server.url)
    (row,) = job.table().iter_rows(named=True)
    first, second = row["turns"]
    seen = byte_tokenizer().decode(second["prompt_ids"], skip_special_tokens=False)
    # the template leaves earlier reasoning out
    assert seen == (
        f"<|im_start|>user\nFirst?<|im_end|>\n<|im_start|>assistant\n{first['answer']}<|im_end|>\n"
        "<|im_start|>user\nSecond?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    messages = json.loads(row["messages"])
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2
    assert messages[1]["content"] == first["answer"] and messages[3]["content"] == second["answer"]


def test_a_cut_in_thinking_ends_the_conversation(tmp_path: Path) -> None:
    job = Job(tmp_path, [["First?", "Second?"]])
    with stand_in(answer_tokens=(200, 200)) as server:
        counts = job.run(server.url)
        assert server.requests()["received"] == 1
    (row,) = job.table().iter_rows(named=True)
    assert counts["classes"] == {"truncated_in_thinking": 1} and len(row["turns"]) == 1
    assert [m["role"] for m in json.loads(row["messages"])] == ["user", "assistant"]


def test_tool_turns_stay_and_only_answers_are_asked(tmp_path: Path) -> None:
    job = Job(tmp_path, [["Weather?"]])
    table = pq.read_table(job.rows)
    call = [{"type": "function", "function": {"name": "weather", "arguments": "<|im_end|>"}}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": call},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "old"},
    ]
    column = pa.array([json.dumps(messages)])
    table = table.set_column(table.schema.get_field_index("messages"), "messages", column)
    pq.write_table(table.cast(SHARD), job.rows)
    with stand_in() as server:
        job.run(server.url)
        assert server.requests()["received"] == 1
    (row,) = job.table().iter_rows(named=True)
    (turn,) = row["turns"]
    found = json.loads(row["messages"])
    assert found[:3] == messages[:3]
    assert found[3]["content"] == turn["answer"] and found[3]["content"] != "old"
    seen = byte_tokenizer().decode(turn["prompt_ids"], skip_special_tokens=False)
    assert seen.endswith("tool\nsunny<|im_end|>\n<|im_start|>assistant\n<think>\n")


def test_seeds_differ_by_row_and_turn(tmp_path: Path) -> None:
    job = Job(tmp_path, [["Same?", "Same?"], ["Same?"]])
    log = Log(tmp_path / "log")
    with stand_in(log=log.path) as server:
        job.run(server.url)
    assert len({entry["seed"] for entry in log.entries()}) == 3


FAULTS: list[tuple[dict[str, Any], str | None]] = [
    ({"fault": "status", "code": 500, "attempts": 2}, None),
    ({"fault": "status", "code": 503, "attempts": 1, "retry_after": 0.1}, None),
    ({"fault": "status", "code": 429, "attempts": 1, "retry_after": 0.1}, None),
    ({"fault": "reset", "attempts": 1}, None),
    ({"fault": "reset", "attempts": 1, "after": 0}, None),
    ({"fault": "truncated_json", "attempts": 1}, None),
    ({"fault": "null_fields", "attempts": 1}, None),
    ({"fault": "abort_200", "attempts": 1}, None),
    ({"fault": "nan_stop", "attempts": 1}, None),
    ({"fault": "length_zero", "attempts": 1}, None),
    ({"fault": "status", "code": 500}, "server_error"),
    ({"fault": "status", "code": 503}, "overloaded"),
    ({"fault": "status", "code": 400}, "refused"),
    ({"fault": "reset"}, "connection_lost"),
    ({"fault": "truncated_json"}, "bad_answer"),
    ({"fault": "null_fields"}, "bad_answer"),
    ({"fault": "abort_200"}, "engine_error"),
    ({"fault": "nan_stop"}, "engine_error"),
    ({"fault": "length_zero"}, "engine_error"),
]


@pytest.mark.parametrize(("rule", "reason"), FAULTS, ids=lambda v: json.dumps(v))
def test_faults(job: Job, rule: dict[str, Any], reason: str | None) -> None:
    """A fault that passes leaves no trace but the attempts; one that stays has its reason."""
    log = Log(job.folder / "log")
    with stand_in(log=log.path, faults=[{**rule, "share": 0.4}]) as server:
        job.run(server.url)
    table = job.table()
    hit = {entry["input"] for entry in log.entries() if entry["fault"]}
    assert 0 < len(hit) < 10
    assert table["row_id"].n_unique() == table.height == 10
    failed = table.filter(pl.col("status") == "failed")
    attempts = 1 if reason == "refused" else 3
    if reason is None:
        again = rule["attempts"]
        assert failed.is_empty() and log.count() == 10 + again * len(hit)
        made = table.explode("turns").unnest("turns", separator="_")["turns_attempts"]
        assert sorted(made) == [1] * (10 - len(hit)) + [again + 1] * len(hit)
    else:
        assert failed["reason"].to_list() == [reason] * len(hit)
        assert failed["attempts"].to_list() == [attempts] * len(hit)
        assert log.count() == 10 - len(hit) + attempts * len(hit)
        for name in ("message", "server", "server_age_s", "running_requests", "cache_use"):
            assert failed[name].null_count() == 0, name


def test_a_hanging_request_is_given_up_and_asked_again(job: Job) -> None:
    with stand_in(faults=[{"fault": "hang", "nth": [4]}]) as server:
        counts = job.run(server.url, stall_timeout_s=2, slowest_token_s=0.01)
        requests = server.requests()
    assert counts["completed"] == 10 and requests["received"] == 11


def test_a_healthy_server_without_progress(job: Job) -> None:
    """All its requests are given up; with no attempt left the rows fail as stalled."""
    with stand_in(faults=[{"fault": "stuck", "nth": [1]}]) as server:
        counts = job.run(server.url, stall_timeout_s=1, slowest_token_s=60, retries=1)
    assert counts["failed"] == 10
    assert set(job.table()["reason"]) == {"stalled"}


def test_a_server_that_dies_and_comes_back(job: Job) -> None:
    log = Log(job.folder / "log")
    with stand_in(log=log.path, faults=[{"fault": "kill", "nth": [5]}]) as first:
        port = first.url.rsplit(":", 1)[1]
        again = stand_in(port=port, log=log.path, start_delay=0.7)
        later = subprocess.Popen(again.command, stdout=subprocess.DEVNULL)
        try:
            counts = job.run(first.url, concurrency=3, reconnect_s=30)
        finally:
            later.terminate()
            later.wait()
    assert counts["completed"] == 10 and counts["failed"] == 0
    assert log.count() <= 10 + 3  # only what was in flight was asked twice


def test_no_server_left_stops_the_job_and_fails_no_row(job: Job) -> None:
    dying = stand_in(faults=[{"fault": "kill", "nth": [5]}])
    with dying as server, pytest.raises(NoServer, match="start it again and rerun"):
        job.run(server.url, concurrency=1)
    records = job.journal()
    assert len(records) == 4 and all("output_ids" in r for r in records)
    assert not (job.out / "shard-0000.parquet").exists()
    with stand_in() as server:
        counts = job.run(server.url)
        assert counts["completed"] == 10 and server.requests()["received"] == 6


def test_no_server_at_the_start(job: Job) -> None:
    with pytest.raises(EngineError, match="127.0.0.1:9"):
        job.run("http://127.0.0.1:9")


def test_too_many_failures_fail_the_job_and_the_next_run_asks_only_them(job: Job) -> None:
    rules = [{"fault": "status", "code": 400, "share": 0.4}]
    log = Log(job.folder / "log")
    with stand_in(log=log.path, faults=rules) as server:
        with pytest.raises(TooManyFailed, match=r"x refused, e.g. input.jsonl:\d+: "):
            job.run(server.url, max_failed_fraction=0.1)
        failed = len({e["input"] for e in log.entries() if e["fault"]})
        assert not (job.out / "shard-0000.parquet").exists()
        before = log.count()
        server.faults([])
        assert job.run(server.url, max_failed_fraction=0.1)["completed"] == 10
        assert log.count() - before == failed > 0


def test_passed_failures_stay_until_a_retry(job: Job) -> None:
    log = Log(job.folder / "log")
    rules = [{"fault": "status", "code": 400, "share": 0.4}]
    with stand_in(log=log.path, faults=rules) as server:
        failed = job.run(server.url)["failed"]
        server.faults([])
        before = log.count()
        again = job.run(server.url)  # rebuilt from the journal
        assert (again["failed"], log.count()) == (failed, before)
        assert job.run(server.url, retry_failed=True)["failed"] == 0
        assert log.count() - before == failed > 0


def test_prompts_that_no_server_may_see(tmp_path: Path) -> None:
    job = Job(tmp_path, [["x" * 5000], ["short"]])
    with stand_in(context_length=4096) as server:
        counts = job.run(server.url)
        assert server.requests()["received"] == 1
    assert (counts["completed"], counts["failed"]) == (1, 1)
    failed = job.table().filter(pl.col("status") == "failed")
    assert failed["reason"].item() == "over_context" and "4096" in failed["message"].item()


def test_an_id_outside_the_models_vocabulary_is_not_sent(job: Job) -> None:
    config = job.model / "config.json"
    config.write_text(config.read_text().replace(str(VOCAB), str(THINK)))
    with stand_in() as server:
        counts = job.run(server.url)
        assert server.requests()["received"] == 0 and counts["failed"] == 10
    assert set(job.table()["reason"]) == {"id_outside_vocabulary"}


def test_a_server_with_other_numerics_is_refused(job: Job) -> None:
    config = job.config("http://x")
    values = config.model_dump(mode="json")
    values["engine"]["server"] = {"speculative_algorithm": "NEXTN"}
    with stand_in() as server:
        values["engine"]["urls"] = [server.url]
        with pytest.raises(Exception, match="speculative_algorithm=None"):
            generate(load(values), RUN, job.rows, 0, 10, job.out)
        assert server.requests()["received"] == 0


def test_sigterm_ends_in_order(job: Job, tmp_path: Path) -> None:
    """Answers stay, requests in flight are aborted on the server, status 130."""
    log = Log(tmp_path / "log")
    with stand_in(log=log.path, token_seconds=0.2, max_running=4) as server:
        process = job.start(server.url)
        while log.count() < 5:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 130 and "the next run goes on" in errors, errors
        assert server.requests()["running"] == 0
    assert all("output_ids" in record for record in job.journal())


def test_a_full_disk_while_journalling(job: Job) -> None:
    """The job says where, keeps what was written, and the next one asks only for the rest."""
    log = Log(job.folder / "log")
    with stand_in(log=log.path, max_running=4, answer_tokens=(20, 24)) as server:
        limit = 1500  # bytes a file may have: some records of about 300

        def small() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        process = job.start(server.url, preexec_fn=small)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 1, errors
        assert "shard-0000.n1.jsonl" in errors and "File too large" in errors, errors
        assert "Traceback" not in errors, errors
        kept = len(job.journal())
        assert 0 < kept < 10
        before = log.count()
        process = job.start(server.url)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
    assert log.count() - before == 10 - kept
    table = job.table()
    assert table["row_id"].n_unique() == 10 and set(table["status"]) == {"completed"}


def test_a_clock_that_jumps(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour forth and back at every look: no request times out, none is asked twice."""
    real, looks = time.time, itertools.count()
    monkeypatch.setattr(time, "time", lambda: real() + (3600, -3600)[next(looks) % 2])
    with stand_in(token_seconds=0.02) as server:
        counts = job.run(server.url, stall_timeout_s=5, slowest_token_s=0.1)
        assert server.requests()["received"] == 10
    assert counts["completed"] == 10 and next(looks) > 0


def test_an_id_that_the_tokenizer_does_not_have_is_no_answer(job: Job) -> None:
    """The model's vocabulary is padded to 320, the tokenizer has 261: such an id has no text."""
    with stand_in(tokens_from=(270, 300)) as server:
        counts = job.run(server.url, retries=1)
    assert counts["completed"] == 0 and counts["failed"] == 10
    table = job.table()
    assert set(table["reason"]) == {"engine_error"}
    assert all("an id outside the vocabulary of 261" in text for text in table["message"])


def test_fewer_files_than_requests_in_flight(tmp_path: Path) -> None:
    """With a hard limit of 130 open files, 66 of 400 requests are in flight; all are answered."""
    job = Job(tmp_path, [[f"Question {i}?"] for i in range(200)])
    with stand_in(max_running=512, token_seconds=0.002) as server:
        limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (100, 130))
        process = job.start(server.url, concurrency=400, preexec_fn=limit)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert "66 requests at once, as many files as this process may open" in told
    assert job.table()["status"].to_list() == ["completed"] * 200
    assert job.table()["turns"].list.first().struct.field("attempts").max() == 1


def test_an_empty_shard_loads_no_model(tmp_path: Path) -> None:
    """Nor does it look for a server: with more shards than rows most are empty."""
    job = Job(tmp_path, [])
    (job.model / "tokenizer.json").unlink()
    counts = job.run("http://127.0.0.1:1")
    assert (counts["rows"], counts["completed"], counts["failed"]) == (0, 0, 0)
    assert counts["sha256"] == file_sha256(job.out / "shard-0000.parquet")
    assert job.table().is_empty() and not (job.out / "journal").exists()


def test_a_damaged_shard_is_not_generated(job: Job) -> None:
    """One flipped byte of its rows; the manifest has the checksum of what was written."""
    with stand_in() as server:
        written = file_sha256(job.rows)[:32]
        good = job.rows.read_bytes()
        job.rows.write_bytes(good[:500] + bytes([good[500] ^ 1]) + good[501:])
        with pytest.raises(OSError, match="not what the shard stage wrote .* --forcerun shard"):
            generate(job.config(server.url), RUN, job.rows, 0, 99, job.out, written=written)
        job.rows.write_bytes(good)
        config = job.config(server.url)
        assert generate(config, RUN, job.rows, 0, 99, job.out, written=written)["completed"] == 10

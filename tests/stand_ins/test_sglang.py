"""The stand-in answers as SGLang 0.5.11 was recorded to."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.made.paths import RECORDED
from tests.stand_ins.asking import CLOSE, EOS, HTTP, PROMPT, THINK, get, post, wait_for
from tests.stand_ins.client import StandIn
from tests.stand_ins.reports import recording


def shape(value: Any) -> Any:
    """Return the keys and the types of a JSON value; of a list, those of its first item."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


@pytest.fixture(scope="module")
def slow() -> Iterator[StandIn]:
    """Two places, a second or so for each request."""
    with StandIn(max_running=2, token_seconds=0.05, answer_tokens=(20, 20)) as server:
        yield server


# --- as recorded


@pytest.mark.parametrize("probe", recording("probes")["requests"], ids=lambda p: p["path"])
def test_probe(server: StandIn, probe: dict[str, Any]) -> None:
    request = dict(probe["request"])
    if isinstance(request.get("input_ids"), str):  # "[8200 ids]"
        request["input_ids"] = [1000] * int(re.sub(r"\D", "", request["input_ids"]))
    answer = HTTP.post(server.url + probe["path"], json=request)
    assert answer.status_code == probe["status"]
    if probe["path"] == "/generate" and probe["status"] == 200:  # cut to 600 characters
        keys = re.findall(r'"(\w+)":', probe["body"])
        told = answer.json()
        assert set(keys) <= {*told, *told["meta_info"], *told["meta_info"]["finish_reason"]}
        assert ("decode_throughput" in told["meta_info"]) == (len(told["output_ids"]) > 0)
    else:
        assert answer.text == probe["body"]


def test_generate(server: StandIn) -> None:
    answer = post(server, rid="a", max_new_tokens=16, ignore_eos=True, temperature=0).json()
    want = recording("generate")
    assert shape(answer) == shape(want)
    for key in ("id", "finish_reason", "prompt_tokens", "completion_tokens", "weight_version"):
        assert answer["meta_info"][key] == want["meta_info"][key]


@pytest.mark.parametrize("name", ["model_info", "models", "loads"])
def test_reports(server: StandIn, name: str) -> None:
    path = {"model_info": "/model_info", "models": "/v1/models", "loads": "/v1/loads"}[name]
    assert shape(get(server, path)) == shape(recording(name))


def test_server_info(server: StandIn) -> None:
    want, info = recording("server_info"), get(server, "/server_info")
    state, (want_state,) = info["internal_states"][0], want.pop("internal_states")
    assert shape(info) == shape(want) | {"internal_states": [shape(state)]}
    told = {"status", "version", "max_total_num_tokens", "max_req_input_len"}
    assert set(state) == set(want) - told | set(want_state)
    assert shape(want_state).items() <= shape(state).items()
    assert get(server, "/get_server_info").keys() == info.keys()
    assert get(server, "/get_model_info") == get(server, "/model_info")


def samples(text: str) -> dict[str, float]:
    """Return the values of a Prometheus text by series; the labels' order does not matter."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {series: float(value) for series, value in lines}


def test_metrics(server: StandIn) -> None:
    before = samples(HTTP.get(f"{server.url}/metrics").text)
    assert before.keys() == samples((RECORDED / "metrics.txt").read_text()).keys()
    answer = post(server).json()
    after = samples(HTTP.get(f"{server.url}/metrics").text)
    grown = {re.split(r"[:{]", s)[1]: after[s] - before[s] for s in after if after[s] != before[s]}
    seconds = grown.pop("e2e_request_latency_seconds_sum")
    assert seconds == pytest.approx(answer["meta_info"]["e2e_latency"], abs=1e-6)
    assert grown == {
        "num_requests_total": 1,
        "prompt_tokens_total": 50,
        "generation_tokens_total": len(answer["output_ids"]),
        "realtime_tokens_total": len(answer["output_ids"]),
        "e2e_request_latency_seconds_count": 1,
        "e2e_request_latency_seconds_bucket": 1,
    }


def test_reports_follow_the_options() -> None:
    options = {"context_length": 512, "max_running": 3, "max_total_tokens": 9000, "vocab_size": 999}
    marks = {"eos": 900, "think_close": 902, "tokens_from": (10, 20), "answer_tokens": (5, 9)}
    with StandIn(model_path="m", **options, **marks) as server:
        info = get(server, "/server_info")
        state = info["internal_states"][0]
        assert (info["model_path"], info["context_length"]) == ("m", 512)
        assert (info["max_total_num_tokens"], info["max_req_input_len"]) == (9000, 506)
        assert state["effective_max_running_requests_per_dp"] == info["max_running_requests"] == 3
        assert state["memory_usage"]["token_capacity"] == 9000
        load = get(server, "/v1/loads")["loads"][0]
        assert (load["max_running_requests"], load["max_total_num_tokens"]) == (3, 9000)
        model = get(server, "/v1/models")["data"][0]
        assert (model["id"], model["max_model_len"]) == ("m", 512)
        answer = post(server).json()["output_ids"]
        assert 6 <= len(answer) <= 10 and answer[-1] == 900
        assert all(10 <= token <= 20 for token in answer[:-1])
        assert post(server, [5] * 512, max_new_tokens=1).status_code == 400
    assert server.process.returncode == 0


def test_out_of_vocabulary_ends_the_server() -> None:
    recorded_status = recording("probes")["out_of_vocabulary_id"][-1]
    for ids in ([248320], [5, -1]):
        with StandIn() as server:
            with pytest.raises(httpx.RemoteProtocolError):
                post(server, ids)
            assert server.process.wait(5) == recorded_status == -signal.SIGKILL


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"input_ids": [[1], [2]]}', b"{}"])
def test_malformed_requests(server: StandIn, body: bytes) -> None:
    answer = HTTP.post(f"{server.url}/generate", content=body)
    assert answer.status_code == 400
    assert answer.json()["code"] == 400 and answer.json()["object"] == "error"


def test_health_and_unknown_paths(server: StandIn) -> None:
    for path in ("/health", "/health_generate"):
        answer = HTTP.get(server.url + path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert HTTP.get(f"{server.url}/generate").status_code == 405


# --- what it generates


def test_answers_depend_only_on_the_request(server: StandIn) -> None:
    def ids(other: StandIn = server, **params: Any) -> list[int]:
        return post(other, **params).json()["output_ids"]

    first = ids(sampling_seed=1)
    assert first == ids(sampling_seed=1, rid="x") != ids(sampling_seed=2)
    assert first != post(server, [1, 2, 3], sampling_seed=1).json()["output_ids"]
    assert ids(temperature=0, sampling_seed=1) == ids(temperature=0, sampling_seed=2)
    with StandIn() as other:
        assert first == ids(other, sampling_seed=1)
    cut = post(server, sampling_seed=1, max_new_tokens=7).json()
    assert cut["output_ids"] == first[:7]
    assert cut["meta_info"]["finish_reason"] == {"type": "length", "length": 7}


def test_answers_end_with_the_stop_id_and_count_it(server: StandIn) -> None:
    for seed in range(20):
        answer = post(server, sampling_seed=seed).json()
        ids, meta = answer["output_ids"], answer["meta_info"]
        assert meta["finish_reason"] == {"type": "stop", "matched": EOS}
        assert meta["completion_tokens"] == len(ids) and ids.count(EOS) == 1 and ids[-1] == EOS
        assert 17 <= len(ids) <= 65 and all(1000 <= i <= 50000 for i in ids[:-1])
        assert meta["prompt_tokens"] == 50


def test_an_open_thinking_part_is_closed(server: StandIn) -> None:
    ids = post(server, [*PROMPT, THINK, 198]).json()["output_ids"]
    assert ids.count(CLOSE) == 1 and 16 <= ids.index(CLOSE) <= 64 and ids[-1] == EOS
    stopped = post(server, [*PROMPT, THINK, 198], stop_token_ids=[EOS, CLOSE]).json()
    assert stopped["output_ids"] == ids[: ids.index(CLOSE) + 1]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": CLOSE}
    cut = post(server, [*PROMPT, THINK, 198], max_new_tokens=5).json()
    assert cut["output_ids"] == ids[:5]
    for closed in (PROMPT, [*PROMPT, THINK, 271, CLOSE, 271]):
        assert CLOSE not in post(server, closed).json()["output_ids"]


# --- places, queue, aborts, disconnects


def test_queue(slow: StandIn, pool: ThreadPoolExecutor) -> None:
    start = time.monotonic()
    calls = [pool.submit(post, slow, PROMPT, rid=f"q{i}") for i in range(5)]
    wait_for(lambda: slow.requests()["queued"] == 3)
    load = get(slow, "/v1/loads")["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["token_usage"]) == (2, 3, 1.0)
    metrics = HTTP.get(f"{slow.url}/metrics").text
    assert re.search(r"sglang:num_running_reqs\{.*\} 2.0\n", metrics)
    assert re.search(r"sglang:num_queue_reqs\{.*\} 3.0\n", metrics)
    assert HTTP.post(f"{slow.url}/flush_cache").status_code == 400
    assert all(call.result().status_code == 200 for call in calls)
    assert time.monotonic() - start >= 3 * 21 * 0.05
    waits = sorted(call.result().json()["meta_info"]["queue_time"] for call in calls)
    assert waits[1] < 0.5 < waits[2] and waits[4] > 1.5
    counts = slow.requests()
    assert (counts["peak_running"], counts["running"], counts["queued"]) == (2, 0, 0)
    assert HTTP.post(f"{slow.url}/flush_cache").status_code == 200


def test_abort(slow: StandIn, pool: ThreadPoolExecutor) -> None:
    def abort(**body: Any) -> None:
        answer = HTTP.post(f"{slow.url}/abort_request", json=body)
        assert (answer.status_code, answer.text) == (200, "")

    running = [pool.submit(post, slow, PROMPT, rid=rid) for rid in ("a", "b")]
    wait_for(lambda: slow.requests()["running"] == 2)
    queued = pool.submit(post, slow, PROMPT, rid="b1")
    wait_for(lambda: slow.requests()["queued"] == 1)
    time.sleep(0.2)
    abort(rid="nope")
    abort(rid="b")  # takes "b1" too: the scheduler compares the beginning
    answer = running[1].result().json()
    assert answer["meta_info"]["finish_reason"] == {
        "type": "abort", "message": "Aborted", "status_code": None, "err_type": None
    }  # fmt: skip
    assert 0 < len(answer["output_ids"]) == answer["meta_info"]["completion_tokens"] < 20
    meta = queued.result().json()["meta_info"]
    assert meta["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert "prompt_tokens" not in meta and queued.result().json()["output_ids"] == []
    abort(abort_all=True)
    answer = running[0].result()
    assert answer.status_code == 200
    assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert re.search(r"aborted_requests_total\{.*\} 3.0\n", HTTP.get(f"{slow.url}/metrics").text)


def test_a_request_id_is_used_once_at_a_time(slow: StandIn, pool: ThreadPoolExecutor) -> None:
    first = pool.submit(post, slow, rid="same")
    wait_for(lambda: slow.requests()["running"] == 1)
    second = post(slow, rid="same")
    assert second.status_code == 400
    assert second.json() == {"error": {"message": "Duplicate request ID detected: same"}}
    assert first.result().status_code == 200


def test_disconnect() -> None:
    with StandIn(max_running=1, token_seconds=10) as server:
        body = json.dumps({"input_ids": PROMPT}).encode()
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        sockets = []
        for _ in range(2):
            sockets.append(
                socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
            )
            sockets[-1].sendall(head.encode() + body)
        wait_for(lambda: server.requests()["queued"] == 1)
        sockets[0].close()
        assert wait_for(lambda: server.requests()["queued"] == 0) < 2.5
        assert (server.requests()["running"], server.requests()["dropped"]) == (1, 1)
        sockets[1].close()
        assert wait_for(lambda: server.requests()["running"] == 0) < 2.5


# --- the program


def test_command_line(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    command = [sys.executable, "-m", "tests.stand_ins.sglang", "--port-file", str(port_file)]
    start = time.monotonic()
    with subprocess.Popen(
        [*command, "--start-delay", "0.5"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert time.monotonic() - start > 0.5
        assert told == {"ready": True, "url": told["url"], "pid": process.pid}
        assert told["url"] == f"http://127.0.0.1:{int(port_file.read_text())}"
        assert os.listdir(tmp_path) == ["port"]
        process.terminate()
    assert process.returncode == 0
    wrong = [*command, "--tokens-from", "0", "248046"]
    assert subprocess.run(wrong, capture_output=True).returncode == 2

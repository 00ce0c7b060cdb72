"""The stand-in breaks as its rules say."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.stand_ins.asking import EOS, HTTP, PROMPT, post, wait_for
from tests.stand_ins.client import StandIn
from tests.stand_ins.engine import input_hash
from tests.stand_ins.reports import recording


def test_faults_on_the_wire(pool: ThreadPoolExecutor) -> None:
    good = {"token_seconds": 0.001, "answer_tokens": (20, 20)}
    with StandIn(**good) as server:
        whole = post(server).json()["output_ids"]

        def broken(fault: str, **rule: Any) -> httpx.Response:
            server.faults([{"fault": fault, **rule}])
            return post(server)

        full = broken("status")
        assert (full.status_code, full.json()) == (503, {
            "object": "error", "message": "The request queue is full.", "type": "503",
            "param": None, "code": 503,
        })  # fmt: skip
        late = broken("status", code=429, retry_after=2, message="slow down")
        assert (late.status_code, late.headers["retry-after"]) == (429, "2")
        assert late.json()["message"] == "slow down"
        assert broken("status", code=400, message="no").json() == {"error": {"message": "no"}}
        page = broken("status", code=502, body="<html>")
        assert (page.status_code, page.text) == (502, "<html>")
        for after in (0.5, 0):
            with pytest.raises(httpx.RemoteProtocolError):
                broken("reset", after=after)
        cut = broken("truncated_json")
        assert cut.status_code == 200 and cut.text.startswith('{"text"')
        with pytest.raises(ValueError):
            cut.json()
        nothing = broken("null_fields").json()
        assert nothing.keys() == recording("generate").keys()
        assert nothing["output_ids"] is None and nothing["meta_info"] is None
        assert broken("null_fields", fields=["output_ids"]).json()["meta_info"] is not None

        answer = broken("abort_200").json()
        assert answer["output_ids"] == whole[:11]
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        answer = broken("nan_stop").json()
        assert answer["output_ids"] == [*whole[:11], EOS]
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "NaN happened"}
        answer = broken("length_zero").json()
        assert (answer["output_ids"], answer["meta_info"]["completion_tokens"]) == ([], 0)
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
        answer = broken("garbage").json()
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS}
        assert len(answer["output_ids"]) == len(whole) and max(answer["output_ids"][:-1]) > 50000
        answer = broken("slow", factor=10, seconds=0.1).json()
        assert answer["output_ids"] == whole
        assert answer["meta_info"]["e2e_latency"] > 0.3
        counts = server.requests()
        assert counts["by_fault"]["status"] == counts["rejected"] == 4
        assert counts["by_fault"]["reset"] == 2 and counts["received"] == 15


def test_hang_and_stuck(pool: ThreadPoolExecutor) -> None:
    with StandIn(max_running=1, faults=[{"fault": "hang", "rid": "^lost$"}]) as server:
        with pytest.raises(httpx.ReadTimeout):
            body = {"rid": "lost", "input_ids": PROMPT}
            HTTP.post(f"{server.url}/generate", json=body, timeout=0.3)
        assert post(server).status_code == 200
        assert wait_for(lambda: server.requests()["dropped"] == 1) < 2.5
        server.faults([{"fault": "stuck", "nth": [3]}])
        calls = [pool.submit(post, server, rid=f"s{i}") for i in range(3)]
        wait_for(lambda: server.requests()["queued"] == 2)
        before = HTTP.get(f"{server.url}/metrics").text
        HTTP.post(f"{server.url}/abort_request", json={"abort_all": True})
        time.sleep(0.3)
        assert HTTP.get(f"{server.url}/health").status_code == 200
        assert HTTP.get(f"{server.url}/metrics").text == before
        assert not any(call.done() for call in calls)
        start = time.monotonic()
        server.process.terminate()
        assert server.process.wait(5) == 0 and time.monotonic() - start < 1
        assert all(isinstance(call.exception(), httpx.RemoteProtocolError) for call in calls)


def test_which_requests_a_rule_takes(server: StandIn) -> None:
    def hit(rules: list[dict[str, Any]], prompts: list[list[int]]) -> list[bool]:
        server.faults([{"fault": "length_zero", **rule} for rule in rules])
        answers = [post(server, ids, rid=f"r{i}").json() for i, ids in enumerate(prompts)]
        server.faults([])
        return [answer["output_ids"] == [] for answer in answers]

    prompts = [[7, i] for i in range(6)]
    assert hit([{"rid": "r[24]"}], prompts) == [False, False, True, False, True, False]
    assert hit([{"input": input_hash([7, 3])}], prompts) == [i == 3 for i in range(6)]
    assert hit([{"input": [input_hash([7, 3]), input_hash([7, 4])]}], prompts)[3:5] == [True, True]
    assert hit([{"times": 2}], prompts) == [True, True, False, False, False, False]
    ordinal = server.requests()["received"]
    assert hit([{"nth": [ordinal + 1, ordinal + 6]}], prompts) == [i in (0, 5) for i in range(6)]
    assert hit([{"nth": ordinal + 8}], prompts) == [i == 1 for i in range(6)]
    assert hit([{"attempts": 2}], [[8], [9], [8], [8]]) == [True, True, True, False]
    assert hit([{"attempts": 1, "rid": "r0"}, {"times": 1}], [[10], [10]]) == [True, True]
    many = [[11, i] for i in range(100)]
    share = hit([{"share": 0.2}], many)
    assert share == hit([{"share": 0.2}], many) and 8 <= sum(share) <= 34


@pytest.mark.parametrize("rule", [{}, {"fault": "no"}, {"fault": "kill", "when": 1}, 5])
def test_wrong_rules_are_refused(server: StandIn, rule: Any) -> None:
    assert HTTP.post(f"{server.url}/stand_in/faults", json=[rule]).status_code == 400
    assert post(server).status_code == 200


def test_the_log_survives_a_kill_and_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rules = [{"fault": "kill", "input": input_hash([3]), "attempts": 1}]
    with StandIn(log=log, faults=rules) as server:
        for ids in ([1], [2]):
            post(server, ids, rid=f"r{ids[0]}", sampling_seed=5)
        assert post(server, []).status_code == 400
        with pytest.raises(httpx.RemoteProtocolError):
            post(server, [3], rid="bad")
        assert server.process.wait(5) == -signal.SIGKILL
        with pytest.raises(httpx.ConnectError):
            post(server, [4])
    with StandIn(log=log, faults=rules) as server:
        assert post(server, [3], rid="again").status_code == 200
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["n"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["fault"] for line in lines] == [None, None, None, "kill", None]
    assert lines[0].keys() == {"t", "rid", "n", "input", "prompt_tokens", "seed", "fault"}
    assert (lines[0]["rid"], lines[0]["seed"], lines[0]["prompt_tokens"]) == ("r1", 5, 1)
    assert lines[3]["input"] == lines[4]["input"] == input_hash([3])
    assert abs(lines[0]["t"] - time.time()) < 60

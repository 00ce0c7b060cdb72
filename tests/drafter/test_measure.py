"""Measuring with a stand-in server: whose weights are in it when, and what a run leaves behind."""

import argparse
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drafter.measure import ALONE, Results, agreement, many_servers, one_server

ACCEPTED = {"a-0": 4, "b-0": 8}  # drafts of an answer's 4 steps


class Handler(BaseHTTPRequestHandler):
    """Answers as SGLang does; what it accepts tells which drafter it has."""

    def do_GET(self) -> None:
        self.say('sglang:spec_accept_length{a="b"} 2.0\n')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server: Any = self.server
        if self.path == "/update_weights_from_disk":
            server.drafter = Path(body["model_path"]).name
            self.say(json.dumps({"success": server.drafter in ACCEPTED, "message": ""}))
            return
        meta: dict[str, Any] = {"finish_reason": {"type": "stop"}, "completion_tokens": 9}
        if server.drafter != ALONE:
            meta |= {"spec_verify_ct": 4, "spec_accepted_drafts": ACCEPTED[server.drafter]}
        self.say(json.dumps({"output_ids": body["input_ids"], "meta_info": meta}))

    def say(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


class Http(ThreadingHTTPServer):
    drafter = ""


class StandIn:
    def __init__(self, drafter: str):
        self.http = Http(("127.0.0.1", 0), Handler)
        self.http.drafter = drafter
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def wait(self, _seconds: float) -> None:
        pass


@contextmanager
def boot(name: str, _number: int) -> Iterator[StandIn]:
    server = StandIn(name)
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()


def results(out: Path, servers: int = 0, limit: float = 1e9) -> Results:
    rows = [{"set": "held_out", "id": str(k), "prompt_ids": [k, k]} for k in range(3)]
    (out / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (out / "records").mkdir(exist_ok=True)
    given = {"prompts": 3, "in_flight": 2, "alone": 1, "max_new_tokens": 8}
    return Results(argparse.Namespace(out=out, servers=servers, limit=limit, **given))


@pytest.mark.parametrize("way, servers", [(one_server, 0), (many_servers, 2)])
def test_each_drafter_is_measured_with_its_own_weights(
    tmp_path: Path, way: Any, servers: int
) -> None:
    if way is one_server:
        way(results(tmp_path), ["a-0", "b-0"], [ALONE], boot)
    else:
        way(results(tmp_path, servers), [ALONE, "a-0", "b-0"], boot)
    told = json.loads((tmp_path / "records/measured.json").read_text())
    accepted = {name: {one.get("accept_length") for one in told[name]} for name in told}
    again = {"again a-0": {2.0}} if way is one_server else {}
    assert accepted == {ALONE: {None}, "a-0": {2.0}, "b-0": {3.0}} | again
    assert [one["in_flight"] for one in told["a-0"]] == [2, 1, 2, 1]
    assert told["b-0"][0]["agreement"] == 1.0


def test_what_is_measured_is_not_measured_again(tmp_path: Path) -> None:
    one_server(results(tmp_path), ["a-0"], [ALONE], boot)
    before = (tmp_path / "records/measured.json").read_text()
    late = results(tmp_path, limit=-1)
    one_server(late, ["a-0", "b-0"], [ALONE], boot)
    assert (tmp_path / "records/measured.json").read_text() == before
    assert "b-0" not in late.told


def test_agreement_is_the_share_before_the_first_other_token() -> None:
    assert agreement([[1, 2, 3, 4], [7]], [[1, 2, 9, 4], [7, 8]]) == pytest.approx((0.5 + 1) / 2)

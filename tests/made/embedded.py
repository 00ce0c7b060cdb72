"""The embedded engine in a process of its own, and what its model is made from."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.made.paths import ROOT

PACKAGE = ROOT / "models" / ".package"

needs_package = pytest.mark.skipif(
    not PACKAGE.is_dir(), reason="models/.package is absent, the embedded engine is not installed"
)


class Server:
    """An embedded_server process and an HTTP client for it."""

    def __init__(self, model: Path, *options: str):
        command = [sys.executable, "-m", "workflow_scripts.embedded.server", "--model", str(model)]
        started = time.monotonic()
        self.process = subprocess.Popen(
            [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.start_seconds = time.monotonic() - started
        self.client = httpx.Client(base_url=self.ready["url"], timeout=120, trust_env=False)

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def complete(self, ids: list[int], **settings: Any) -> dict[str, Any]:
        body = {"prompt": ids, "return_tokens": True, "cache_prompt": False, "n_predict": 24}
        return self.post("/completion", **(body | settings))

    def busy(self) -> bool:
        return any(slot["is_processing"] for slot in self.client.get("/slots").json())

    def end(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

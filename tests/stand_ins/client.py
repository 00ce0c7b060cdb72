"""The stand-in server as a test starts it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from typing import Any

from tests.made.paths import ROOT


class StandIn:
    """A server in a process of its own: `with StandIn(max_running=4, faults=[...]) as server:`.

    The keywords are the command line's options, with underscores; `faults` takes the rules.
    """

    url: str
    process: subprocess.Popen[str]

    def __init__(self, **options: Any) -> None:
        self.command = [sys.executable, "-m", "tests.stand_ins.sglang"]
        for name, value in options.items():
            value = json.dumps(value) if name == "faults" else value
            values = value if isinstance(value, (list, tuple)) else [value]
            self.command += ["--" + name.replace("_", "-"), *map(str, values)]

    def __enter__(self) -> StandIn:
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            line = lines.readline()
        if not line:
            raise RuntimeError(f"the stand-in did not start: exit status {self.process.wait()}")
        self.url = json.loads(line)["url"]
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def requests(self) -> dict[str, Any]:
        """Return the server's counters."""
        with urllib.request.urlopen(f"{self.url}/stand_in/requests", timeout=10) as response:
            return json.load(response)

    def faults(self, rules: list[dict[str, Any]]) -> None:
        """Replace the server's rules."""
        body = json.dumps(rules).encode()
        urllib.request.urlopen(f"{self.url}/stand_in/faults", data=body, timeout=10).close()

"""Pretended GPUs for the tests of whole runs."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stand_ins.gpus import Gpus


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    made = Gpus(tmp_path, monkeypatch)
    yield made
    for pid in made.alive():
        os.kill(pid, signal.SIGKILL)

"""Fixtures, and what holds for every test."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.made.watched_run import Made
from tests.made.workspace import Log, stand_in
from tests.stand_ins.client import StandIn

# A run starts some twenty Python programs; where none may keep what it compiles, each compiles all
# of the workflow's modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Slow, shared machines: no example fails for its time.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StandIn, Log]]:
    log = tmp_path_factory.mktemp("server") / "requests.jsonl"
    with stand_in(log=log, max_running=8) as running:
        yield running, Log(log)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.chdir(tmp_path)
    return Made()

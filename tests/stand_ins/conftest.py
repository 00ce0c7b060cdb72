"""Fixtures of the stand-in's own tests."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.stand_ins.client import StandIn


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with StandIn(model_path="qwen3.6-27b-shape") as server:
        yield server


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool

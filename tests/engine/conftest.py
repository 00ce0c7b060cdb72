"""Fixtures of the engine's tests."""

import pytest

from tests.made.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of the places, the requests and the stall clocks, by hand."""
    made = Clock()
    for module in ("own_places", "pool", "stall"):
        monkeypatch.setattr(f"workflow_scripts.engine.{module}.time", made)
    return made

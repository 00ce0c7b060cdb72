"""When a server counts as standing still, worked out by hand for a limit of 10 seconds."""

import pytest

from tests.made.clock import Clock
from workflow_scripts.engine.stall import StallClock


@pytest.fixture
def stall(clock: Clock) -> StallClock:
    return StallClock(10)


def test_a_server_that_shows_no_change_stands_still_after_the_limit(
    clock: Clock, stall: StallClock
) -> None:
    clock.now += 9
    assert not stall.look([1, 2])  # the first thing seen is a change
    clock.now += 10
    assert not stall.look([1, 2])  # the limit itself is not longer than the limit
    clock.now += 1
    assert stall.look([1, 2])
    clock.now += 1
    assert stall.look([1, 2])  # and goes on to, until something moves
    assert not stall.look([1, 3])
    clock.now += 10
    assert not stall.look([1, 3])


def test_no_answer_shows_no_change(clock: Clock, stall: StallClock) -> None:
    assert not stall.look(5)
    clock.now += 6
    assert not stall.look(None)
    clock.now += 5
    assert not StallClock(10).look(None)  # one that has just begun to look
    assert stall.look(None)


def test_what_was_seen_before_a_silence_still_counts(clock: Clock, stall: StallClock) -> None:
    assert not stall.look(5)
    clock.now += 6
    assert not stall.look(None)
    clock.now += 5
    assert stall.look(5)  # the same as eleven seconds ago
    assert not stall.look(6)


def test_a_server_that_never_answers_stands_still(clock: Clock, stall: StallClock) -> None:
    clock.now += 10
    assert not stall.look(None)
    clock.now += 1
    assert stall.look(None)


def test_while_nobody_waits_it_may_stand_still(clock: Clock, stall: StallClock) -> None:
    assert not stall.look(5)
    clock.now += 1000
    assert not stall.look(5, waited_for=False)
    clock.now += 10  # counted from the last look for which nobody waited
    assert not stall.look(5)
    clock.now += 1
    assert stall.look(5)
    assert not stall.look(None, waited_for=False)


def test_restart_gives_it_the_whole_limit_again(clock: Clock, stall: StallClock) -> None:
    assert not stall.look(5)
    clock.now += 11
    assert stall.look(5)
    stall.restart()
    clock.now += 10
    assert not stall.look(5)
    clock.now += 1
    assert stall.look(5)

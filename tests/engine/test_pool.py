"""The dispatcher's rules, one by one, at an engine made by hand."""

import asyncio
import random
from typing import Any

import pytest

from tests.made.clock import Clock
from tests.made.engines import GOOD, MadeEngine, Step
from workflow_scripts.config.sections import Generate, Sampling
from workflow_scripts.engine.places import NoServer, Place
from workflow_scripts.engine.pool import Failure, Pool
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.model.answers import Answer

PROMPT = [1, 2, 3, 4]
SAMPLING = Sampling(temperature=0.7, max_new_tokens=64, min_new_tokens=16, seed=3)
GENERATE = Generate(retries=3, stall_timeout_s=300, slowest_token_s=0.5)
VOCAB = 1000


class MadePlaces:
    """Places at one server, of which there are `left`; notes what is given back."""

    capacity = 9

    def __init__(self, engine: MadeEngine, context: int, left: int = 99):
        self.engine = engine
        self.context = context
        self.left = left
        self.lost = 0  # of the first places: the daemon took them with it
        self.taken: list[Place] = []
        self.freed: list[tuple[str, int, str | None]] = []  # rid, tokens, reason

    async def take(self) -> Place:
        if not self.left:
            raise NoServer("gone")
        self.left -= 1
        self.taken.append(Place(f"rid-{len(self.taken)}", self.engine, self.context))
        return self.taken[-1]

    async def free(self, place: Place, tokens: int, error: EngineError | None) -> bool:
        self.freed.append((place.rid, tokens, error.reason if error else None))
        return len(self.freed) > self.lost

    def give_up(self) -> None:
        """What the watcher of a server that stands still does with the last place."""
        place = self.taken[-1]
        assert place.task is not None
        place.given_up = True
        place.task.cancel()


class Asked:
    """Requests to an engine through a pool of their own."""

    def __init__(self, clock: Clock, *script: Step, context: int = 4096, left: int = 99):
        self.clock = clock
        self.engine = MadeEngine(script=script)
        self.places = MadePlaces(self.engine, context, left)
        self.settings, self.sampling = GENERATE, SAMPLING

    def pool(self) -> Pool:
        return Pool(self.places, self.settings, self.sampling, VOCAB)

    def __call__(self, prompt_ids: list[int] = PROMPT, **more: Any) -> Any:
        return self.clock.run(self.pool().ask(prompt_ids, 31, **more))


@pytest.fixture(autouse=True)
def no_spread(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Pauses without their random part; what it is drawn from."""
    asked: list[tuple[float, float]] = []

    def middle(low: float, high: float) -> float:
        asked.append((low, high))
        return (low + high) / 2

    monkeypatch.setattr(random, "uniform", middle)
    return asked


def error(reason: str, **more: Any) -> EngineError:
    return EngineError(reason, f"http://made:1: {reason}", **more)


def nothing() -> None:
    """The request hangs."""


# ---- a request without a fault ------------------------------------------------------------------


def test_an_answer(clock: Clock) -> None:
    asked = Asked(clock)
    assert asked(fixed=12) == (GOOD, 1)
    (ask,) = asked.engine.asked
    assert (ask.rid, ask.prompt_ids, ask.seed, ask.fixed) == ("rid-0", PROMPT, 31, 12)
    assert asked.engine.sampled == [None]  # as it is configured
    assert asked.places.freed == [("rid-0", 3, None)] and asked.engine.aborted == []


# ---- never sent ---------------------------------------------------------------------------------


def test_never_sent_is_no_attempt(clock: Clock) -> None:
    """More often than there are attempts, and without a pause: it goes where there is a server."""
    asked = Asked(clock, *[error("unreachable", sent=False)] * 5)
    assert asked() == (GOOD, 1)
    assert asked.places.freed[:5] == [(f"rid-{i}", 0, "unreachable") for i in range(5)]
    assert len({ask.rid for ask in asked.engine.asked}) == 6 and clock.now == 1000


def test_without_a_server_the_job_stops_and_the_row_has_not_failed(clock: Clock) -> None:
    asked = Asked(clock, error("unreachable", sent=False), left=1)
    with pytest.raises(NoServer):
        asked()


# ---- an attempt, asked again after a growing pause ----------------------------------------------


@pytest.mark.parametrize("reason", ["connection_lost", "server_error", "bad_answer"])
def test_a_lost_request_is_asked_again(
    clock: Clock, no_spread: list[tuple[float, float]], reason: str
) -> None:
    asked = Asked(clock, error(reason))
    assert asked() == (GOOD, 2)
    first, second = asked.engine.asked
    assert first.rid != second.rid and first.seed == second.seed == 31
    assert first.prompt_ids == second.prompt_ids == PROMPT
    assert clock.now == 1000.5 and no_spread == [(0.75, 1.25)]
    assert asked.places.freed == [("rid-0", 0, reason), ("rid-1", 3, None)]


def test_what_is_lost_with_the_daemon_is_no_attempt(clock: Clock) -> None:
    """Asked again at once, as often as that happens; a fault of the request itself still counts."""
    asked = Asked(clock, *[error("connection_lost")] * 9)
    asked.places.lost = 9
    assert asked() == (GOOD, 1) and clock.now == 1000
    asked = Asked(clock, error("server_error"))
    asked.places.lost = 1
    assert asked() == (GOOD, 2)


def test_the_pauses_double_up_to_half_a_minute(clock: Clock) -> None:
    asked = Asked(clock, *[error("server_error")] * 8)
    asked.settings = Generate(retries=9)
    assert asked() == (GOOD, 9)
    assert clock.now == 1000 + 0.5 + 1 + 2 + 4 + 8 + 16 + 30 + 30


def test_the_last_attempt_leaves_its_failure(clock: Clock) -> None:
    asked = Asked(clock, error("connection_lost"), error("bad_answer"), error("server_error"))
    assert asked() == Failure(
        reason="server_error",
        message="http://made:1: server_error",
        attempts=3,
        server="http://made:1",
        server_age_s=101.5,  # a hundred, and the pauses of 0.5 and 1 s
        running_requests=7,
        cache_use=0.25,
    )
    assert len(asked.engine.asked) == 3


def test_a_server_that_says_nothing_of_itself_is_no_further_failure(clock: Clock) -> None:
    asked = Asked(clock, *[error("server_error")] * 3)
    asked.engine.loaded = error("connection_lost")
    found = asked()
    assert (found.reason, found.running_requests, found.cache_use) == ("server_error", None, None)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer([97, 98], "abort"), "aborted the request"),
        (Answer([97, 99], "stop", "NaN happened"), "'NaN happened'"),
        (Answer([], "length"), "no token"),
        (Answer([97, VOCAB], "stop", 99), "outside the vocabulary of 1000"),
    ],
)
def test_a_fault_sent_as_an_answer(clock: Clock, answer: Answer, said: str) -> None:
    tokens = len(answer.output_ids)
    passing = Asked(clock, answer)
    assert passing() == (GOOD, 2)
    assert passing.places.freed == [("rid-0", tokens, "engine_error"), ("rid-1", 3, None)]
    failed = Asked(clock, *[answer] * 3)()
    assert (failed.reason, failed.attempts, failed.server) == ("engine_error", 3, "http://made:1")
    assert failed.message.startswith("http://made:1: ") and said in failed.message


def test_an_id_at_the_end_of_the_vocabulary_is_an_answer(clock: Clock) -> None:
    last = Answer([97, VOCAB - 1], "length")
    assert Asked(clock, last)() == (last, 1)


# ---- the server asks to wait --------------------------------------------------------------------


@pytest.mark.parametrize(("after_s", "pause"), [(7, 7), (0.1, 0.5)])
def test_an_overloaded_server_gets_the_pause_it_asks_for(
    clock: Clock, after_s: float, pause: float
) -> None:
    asked = Asked(clock, error("overloaded", after_s=after_s))
    assert asked() == (GOOD, 2)
    assert clock.now == 1000 + pause


def test_an_overloaded_server_is_an_attempt(clock: Clock) -> None:
    found = Asked(clock, *[error("overloaded", after_s=7)] * 3)()
    assert (found.reason, found.attempts, clock.now) == ("overloaded", 3, 1014)


# ---- the request itself is refused --------------------------------------------------------------


def test_a_refused_request_is_not_asked_again(clock: Clock) -> None:
    asked = Asked(clock, error("refused", retry=False))
    found = asked()
    assert (found.reason, found.attempts, clock.now) == ("refused", 1, 1000)
    assert len(asked.engine.asked) == 1 and asked.engine.aborted == []


# ---- given up -----------------------------------------------------------------------------------


def test_requests_of_a_server_that_stands_still_are_aborted_and_asked_again(clock: Clock) -> None:
    asked = Asked(clock)
    asked.engine.script = iter([asked.places.give_up])
    assert asked() == (GOOD, 2)
    assert asked.engine.aborted == ["rid-0"]
    assert asked.places.freed == [("rid-0", 0, "stalled"), ("rid-1", 3, None)]

    stuck = Asked(clock)
    stuck.engine.script = iter([stuck.places.give_up] * 3)
    found = stuck()
    assert (found.reason, found.attempts) == ("stalled", 3)
    assert found.message == "http://made:1: no progress for 300 s"
    assert stuck.engine.aborted == ["rid-0", "rid-1", "rid-2"]


def test_a_request_given_up_does_not_count_as_cancelled(clock: Clock) -> None:
    """Else the task would look stopped to whatever it does next."""
    asked = Asked(clock)
    asked.engine.script = iter([asked.places.give_up])

    async def ask() -> int:
        task = asyncio.current_task()
        assert task is not None
        await asked.pool().ask(PROMPT, 31)
        return task.cancelling()

    assert clock.run(ask()) == 0


def test_a_request_beyond_its_own_time_is_given_up_alone(clock: Clock) -> None:
    """By hand: 300 s, and 0.5 s for each of 64 tokens. One that is asked meanwhile is answered."""
    asked = Asked(clock, nothing)
    pool = asked.pool()

    async def both() -> tuple[Any, Any]:
        late = asyncio.create_task(pool.ask(PROMPT, 31))
        await asyncio.sleep(166)
        other = await pool.ask([5], 32)
        assert not late.done() and asked.engine.aborted == []
        return await late, other

    assert clock.run(both()) == ((GOOD, 2), (GOOD, 1))
    assert clock.now == pytest.approx(1000 + 332 + 0.5)
    assert asked.engine.aborted == ["rid-0"]
    assert [ask.rid for ask in asked.engine.asked] == ["rid-0", "rid-1", "rid-2"]

    found = Asked(clock, *[nothing] * 3)()
    assert (found.reason, found.attempts) == ("timeout", 3)
    assert found.message == "http://made:1: no answer within 332 s"


def test_a_job_that_is_stopped_frees_its_place_on_the_server(clock: Clock) -> None:
    asked = Asked(clock, nothing)
    pool = asked.pool()

    async def stop() -> None:
        task = asyncio.create_task(pool.ask(PROMPT, 31))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    clock.run(stop())
    assert asked.engine.aborted == ["rid-0"] and len(asked.engine.asked) == 1
    assert [rid for rid, _, _ in asked.places.freed] == ["rid-0"]


# ---- what fits into the context -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "most"),
    [(36, None), (37, 63), (84, 16)],  # of 100 tokens; an answer has 16 to 64
)
def test_an_answer_gets_what_the_prompt_leaves(clock: Clock, length: int, most: int | None) -> None:
    asked = Asked(clock, context=100)
    assert asked([1] * length) == (GOOD, 1)
    (sent,) = asked.engine.sampled
    if most is None:
        assert sent is None
    else:
        assert sent is not None
        assert sent.model_dump() == SAMPLING.model_dump() | {"max_new_tokens": most}


def test_a_prompt_that_leaves_too_little_is_never_sent(clock: Clock) -> None:
    asked = Asked(clock, context=100)
    found = asked([1] * 85)
    assert (found.reason, found.attempts) == ("over_context", 0)
    assert found.message == (
        "the prompt's 85 tokens leave 15 of the server's context of 100; "
        "sampling.min_new_tokens are needed"
    )
    assert asked.engine.asked == [] and asked.engine.aborted == []
    assert asked.places.freed == [("rid-0", 0, "over_context")]


def test_answers_shorter_than_the_least_need_only_their_own_room(clock: Clock) -> None:
    asked = Asked(clock, context=100)
    asked.sampling = Sampling(max_new_tokens=8)  # the least stays 256
    assert asked([1] * 92) == (GOOD, 1) and asked.engine.sampled == [None]
    assert asked([1] * 93).reason == "over_context"

"""Requests to servers: bounded in flight, given to the least loaded, asked again by rule.

The rules:

- never sent (connection refused): no attempt of the row; the server is set aside until it answers
  again. No server for `engine.reconnect_s`: the job stops, unanswered rows wait for the next run.
- connection lost because the host's daemon ended, and its servers with it: no attempt either.
- connection lost otherwise, 5xx, an answer that cannot be read or is another's, an abort or a NaN
  sent as an answer: an attempt; asked again after a growing pause.
- 429 and 503: an attempt, after the pause that the server asks for.
- any other 4xx: the request itself is refused; asking again cannot help, and it says nothing of the
  server.
- a server without progress for `generate.stall_timeout_s`: its requests are given up, aborted there
  and asked again.
- one request beyond its own time limit: the same, for it alone.
- a prompt that leaves less than `sampling.min_new_tokens` of the context: not sent, failed as
  `over_context`; one that leaves less than max_new_tokens gets what is left.
"""

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass

from workflow_scripts.config.sections import Generate, Sampling
from workflow_scripts.engine.places import Place, Places, abort
from workflow_scripts.engine.protocol import Ask, Backend, EngineError
from workflow_scripts.model.answers import Answer, fault

PAUSE_S = 0.5  # before the second attempt; doubled each time
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no usable answer, and how the server was at that moment."""

    reason: str
    message: str
    attempts: int
    server: str
    server_age_s: float
    running_requests: int | None
    cache_use: float | None


class Pool:
    """A job's requests.

    Args:
        places: where requests can go.
        settings: the configuration's `generate`.
        sampling: the configuration's `sampling`.
        vocab_size: number of the model's ids; others are faults.
    """

    def __init__(self, places: Places, settings: Generate, sampling: Sampling, vocab_size: int):
        self.places = places
        self.settings = settings
        self.sampling = sampling
        self.vocab_size = vocab_size
        self.request_s = (
            settings.stall_timeout_s + settings.slowest_token_s * sampling.max_new_tokens
        )

    async def ask(
        self, prompt_ids: list[int], seed: int, fixed: int | None = None
    ) -> tuple[Answer, int] | Failure:
        """Ask until there is a usable answer or no attempt is left.

        Returns:
            The answer and the number of attempts, or the failure.

        Raises:
            NoServer: see the module's rules.
        """
        attempts = 0
        while True:
            place = await self.places.take()
            error: EngineError | None = None
            answer: Answer | None = None
            try:
                answer = await self._once(place, prompt_ids, seed, fixed)
                if what := fault(answer, self.vocab_size):
                    error = EngineError("engine_error", f"{place.engine.url}: {what}")
            except EngineError as caught:
                error = caught
            finally:
                tokens = len(answer.output_ids) if answer else 0
                held = await self.places.free(place, tokens, error)
            if error is None:
                assert answer is not None
                return answer, attempts + 1
            if error.retry and (not error.sent or (not held and error.reason == "connection_lost")):
                continue
            attempts += error.sent
            if not error.retry or attempts >= self.settings.retries:
                return await failure(place.engine, error, attempts)
            pause = min(PAUSE_S * 2 ** (attempts - 1), LONGEST_PAUSE_S) * random.uniform(0.75, 1.25)
            await asyncio.sleep(max(pause, error.after_s))

    def _fitted(self, length: int, context: int) -> Sampling | None:
        """Sampling for a prompt of `length` tokens, None for the configured one.

        Raises:
            EngineError: the context leaves too little room; never sent.
        """
        most = self.sampling.max_new_tokens
        room = context - length
        if room >= most:
            return None
        if room < min(self.sampling.min_new_tokens, most):
            raise EngineError(
                "over_context",
                f"the prompt's {length} tokens leave {room} of the server's context of {context}; "
                "sampling.min_new_tokens are needed",
                retry=False,
                sent=False,
            )
        return self.sampling.model_copy(update={"max_new_tokens": room})

    async def _once(
        self, place: Place, prompt_ids: list[int], seed: int, fixed: int | None
    ) -> Answer:
        sampling = self._fitted(len(prompt_ids), place.context)
        task = asyncio.current_task()
        assert task is not None
        place.task = task
        try:
            async with asyncio.timeout(self.request_s):
                return await place.engine.ask(Ask(place.rid, prompt_ids, seed, fixed), sampling)
        except TimeoutError:
            await abort(place)
            what = f"{place.engine.url}: no answer within {self.request_s:.0f} s"
            raise EngineError("timeout", what) from None
        except asyncio.CancelledError:
            if not place.given_up:
                await asyncio.shield(abort(place))  # the job stops: free its place on the server
                raise
            task.uncancel()
            await abort(place)
            what = f"{place.engine.url}: no progress for {self.settings.stall_timeout_s:.0f} s"
            raise EngineError("stalled", what) from None


async def failure(engine: Backend, error: EngineError, attempts: int) -> Failure:
    running, cache = None, None
    with suppress(Exception):  # the failure counts, not what can be said of the server
        async with asyncio.timeout(5):
            running, cache = await engine.load()
    age = round(time.monotonic() - engine.since, 1)
    return Failure(error.reason, str(error), attempts, engine.url, age, running, cache)

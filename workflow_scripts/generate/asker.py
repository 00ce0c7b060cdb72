"""One row's turns: taken from the journal where they are answered, else asked for."""

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

from workflow_scripts.config.sections import Config
from workflow_scripts.engine.pool import Failure, Pool
from workflow_scripts.generate.course import ANSWERED, Course
from workflow_scripts.generate.journal import Journal, Span
from workflow_scripts.generate.rows import GeneratedTurn, Row
from workflow_scripts.identity import digest, rehearsal_length, request_seed
from workflow_scripts.model.answers import Answer, classify, texts
from workflow_scripts.model.codec import HUGE
from workflow_scripts.model.folder import UNKNOWN_CONTEXT, context_limit, model_vocab_size
from workflow_scripts.model.prompts import PromptError, Prompts

# Prompts that no server can hold are not even encoded: whole, their ids take gigabytes. A server
# can be told to go beyond the model's context; these are so many times as long.
BEYOND = 4


class Asker:
    """Brings rows from turn to turn.

    Whatever renders, encodes or decodes runs in another thread, so that answers that arrive
    meanwhile are journalled at once.

    Args:
        retry_failed: ask rows again whose failure was final.

    Raises:
        ConfigError: calls are to be asked, and the form in which the model writes them is unknown.
    """

    def __init__(
        self,
        config: Config,
        prompts: Prompts,
        run_hash: str,
        journal: Journal,
        retry_failed: bool = False,
    ):
        self.prompts = prompts
        self.course = Course.of(config, prompts)
        self.run_hash = run_hash
        self.journal = journal
        self.seed = config.sampling.seed
        self.rehearsal = config.engine.rehearsal_tokens
        self.vocab_size = model_vocab_size(config) or prompts.vocab_size
        self.most = BEYOND * (context_limit(config) or UNKNOWN_CONTEXT)
        self.final = {} if retry_failed else dict(journal.failed)

    # ---- in another thread ----

    def prepare(self, rows: Sequence[Row]) -> None:
        """Go to each row's next assistant turn and make its prompt."""
        rendered, owners = [], []
        for row in rows:
            while not row.over and not self.course.asks(row.conversation[row.at]):
                row.at += 1
            if row.over:
                continue
            try:
                text = self.prompts.render(row.conversation[: row.at], given=row.given)
            except PromptError as error:
                row.failure = _unasked("template_refused", str(error))
                continue
            if len(text) > HUGE and self.prompts.measured(text, self.most) > self.most:
                what = f"the prompt's {len(text):,} characters are more than {self.most:,} tokens"
                row.failure = _unasked("over_context", f"{what}; no server's context holds it")
                continue
            rendered.append(text)
            owners.append(row)
        for row, ids in zip(owners, self.prompts.encode(rendered), strict=True):
            row.next_prompt = ids
            row.next_seed = request_seed(self.seed, row.row_id, len(row.turns))
            row.next_request = self._request(row, ids)

    def _request(self, row: Row, prompt_ids: list[int]) -> str:
        """Identity of the row's next request."""
        turn, ids = len(row.turns), array("i", prompt_ids).tobytes()
        return digest(self.run_hash, row.row_id, str(turn), str(row.next_seed), ids)

    def recall(self, row: Row) -> None:
        """Take a prepared row's turns from the journal as far as they go; then it is over, or its
        next prompt is to be asked."""
        while not row.over:
            if place := self.journal.done.get(row.next_request):
                self._take(row, place, self.journal.read(place))
                self.prepare([row])
            elif place := self.final.get(row.next_request):
                row.failure = self.journal.read(place)
            else:
                return

    def _take(self, row: Row, place: Span, record: dict[str, Any]) -> None:
        """Add an answer to the conversation; stop where there is none to go on from."""
        assert row.next_prompt is not None
        prompt_ids, output_ids = row.next_prompt, record["output_ids"]
        row.turns.append(GeneratedTurn(array("i", prompt_ids).tobytes(), row.next_request, place))
        row.tokens += len(output_ids)
        row.next_prompt = None
        if not row.last and record["class"] in ANSWERED:
            ((reasoning, answer),) = texts(self.prompts, [(prompt_ids, output_ids)])
            old, kind = row.conversation[row.at], record["class"]
            step = self.course.step(old, reasoning, answer, kind, False, row.tools)
            row.conversation[row.at] = step.message
            if step.ended is None:
                row.at += 1
                return
        row.at = len(row.conversation)  # a later turn would answer one that never took place

    def _go_on(self, row: Row, place: Span, record: dict[str, Any]) -> None:
        self._take(row, place, record)
        self.prepare([row])
        self.recall(row)

    # ---- on the event loop ----

    async def ask(self, row: Row, pool: Pool) -> None:
        """Ask for a prepared row's turns until the conversation is over."""
        while not row.over:
            row.fresh = True
            record = await self._answered(row, pool)
            record |= {"request": row.next_request, "row_id": row.row_id}
            place = self.journal.append(record)
            if "output_ids" not in record:
                row.failure = record
            elif row.last:  # nothing to render or decode
                self._take(row, place, record)
            else:
                await asyncio.to_thread(self._go_on, row, place, record)

    async def _answered(self, row: Row, pool: Pool) -> dict[str, Any]:
        """The journal's record of the row's next request: an answer or a failure."""
        prompt_ids = row.next_prompt
        assert prompt_ids is not None
        if prompt_ids and max(prompt_ids) >= self.vocab_size:
            # no server may see it: one id outside the vocabulary ends an SGLang server
            message = f"the prompt has the id {max(prompt_ids)}; the model has {self.vocab_size}"
            return _unasked("id_outside_vocabulary", message)
        spread = self.rehearsal
        fixed = rehearsal_length(spread, row.row_id, len(row.turns)) if spread else None
        found = await pool.ask(prompt_ids, row.next_seed, fixed)
        if isinstance(found, Failure):
            return {name: getattr(found, name) for name in Failure.__slots__}
        return self._record(prompt_ids, *found)

    def _record(self, prompt_ids: list[int], answer: Answer, attempts: int) -> dict[str, Any]:
        return {
            "output_ids": answer.output_ids,
            "finish": answer.finish,
            "class": classify(self.prompts, prompt_ids, answer),
            "retractions": answer.retractions,
            "accept_length": answer.accept_length,
            "attempts": attempts,
        }


def _unasked(reason: str, message: str) -> dict[str, Any]:
    """The failure of a row whose prompt goes to no server."""
    return {"reason": reason, "message": message, "attempts": 0}

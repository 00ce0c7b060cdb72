"""The audit's counting of tokens: how long prompts and responses are, a batch of rows at a time."""

from dataclasses import dataclass
from typing import Any

from workflow_scripts.audit.turns import PROBE, REMEMBERED, SHORT_CHARS
from workflow_scripts.model.codec import HUGE
from workflow_scripts.model.folder import UNKNOWN_CONTEXT
from workflow_scripts.model.prompts import Prompts

EXACT = 2000  # characters of a prompt from which on it is always counted


@dataclass(slots=True)
class UncountedRow:
    """A row on its way: its columns, and what is still to be counted in tokens."""

    columns: dict[str, Any]
    response: str | None  # as the template writes it; None if it is counted
    prompt: str


class RowLengths:
    """Lengths of rows in tokens.

    Of a large input, the tokens of prompts under EXACT characters are estimated by those of every
    sixteenth of them: they only feed a distribution and totals. A text of a million characters is
    counted in pieces, and beyond the context by its characters: whole, its ids take gigabytes.

    Args:
        prompts: the model's template and tokenizer.
        large: whether the input is a large one.
        context: tokens that a prompt must stay below, where that is known.
    """

    def __init__(self, prompts: Prompts, large: bool, context: int | None = None):
        self.limit = context or UNKNOWN_CONTEXT
        self.prompts = prompts
        self.large = large
        self.overhead = self._overhead()
        self._known: dict[str, int] = {}

    def _overhead(self) -> int:
        """Tokens that the template adds to a question: what is around it and the opener."""
        whole, bare = self.prompts.encode([self.prompts.render([{**PROBE}]), PROBE["content"]])
        return len(whole) - len(bare)

    def fill(self, batch: list[UncountedRow]) -> None:
        """Give the batch's rows their `prompt_tokens` and `response_tokens`."""
        most = EXACT if self.large else 0
        estimated = [row for at, row in enumerate(batch) if at % 16 and len(row.prompt) < most]
        few = {id(row) for row in estimated}
        exact = [row for row in batch if id(row) not in few]
        for row, tokens in zip(exact, self._counted([row.prompt for row in exact]), strict=True):
            row.columns["prompt_tokens"] = tokens + self.overhead
        chars = sum(len(row.prompt) for row in exact)
        counted = sum(row.columns["prompt_tokens"] - self.overhead for row in exact)
        for row in estimated:
            tokens = round(len(row.prompt) * counted / max(chars, 1))
            row.columns["prompt_tokens"] = tokens + self.overhead
        rendered = [row for row in batch if isinstance(row.response, str)]
        texts = [str(row.response) for row in rendered]
        for row, tokens in zip(rendered, self._counted(texts), strict=True):
            row.columns["response_tokens"] = tokens

    def _counted(self, texts: list[str]) -> list[int]:
        """Tokens of rendered texts; short ones are remembered."""
        known = self._known
        unknown = list({t: None for t in texts if t not in known and len(t) < HUGE})
        fresh = dict(zip(unknown, map(len, self.prompts.encode(unknown)), strict=True))
        fresh |= {t: self.prompts.measured(t, self.limit) for t in texts if len(t) >= HUGE}
        if len(known) < REMEMBERED:
            known.update((t, n) for t, n in fresh.items() if len(t) <= SHORT_CHARS)
        return [fresh[t] if t in fresh else known[t] for t in texts]

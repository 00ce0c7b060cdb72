"""Whether text would give the ids back: prompts rendered again, completions encoded again.

Training on ids that were encoded from text again trains on other tokens than the model wrote,
wherever it did not choose the tokenizer's own segmentation. The dataset keeps the engine's ids;
this only counts how often the other way would have changed them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from workflow_scripts.dataset.samples import Sample
from workflow_scripts.model.prompts import PromptError, Prompts

LEAST = 256  # rows that are checked, and ...
SHARE = 64  # ... of large sets one of so many: a check takes some six times as long as a row


class TemplateChanged(Exception):
    """A prompt renders to other ids than when its answer was generated."""


@dataclass
class Drift:
    """Counts over a sample of the rows: those whose row id, a hash, falls below a share.

    Args:
        share: of all rows that are checked.
    """

    share: float = 1.0
    turns: int = 0  # completions checked
    differing: int = 0  # of them, those that their text would not give back
    tokens: int = 0  # of the checked completions
    longer: int = 0  # ids that encoding again gives more, or less, in all
    example: str | None = None

    @classmethod
    def of(cls, completions: Path) -> "Drift":
        rows = pq.read_metadata(completions).num_rows
        return cls(min(1.0, max(LEAST, rows / SHARE) / max(rows, 1)))

    def chosen(self, sample: Sample) -> bool:
        generated = sample.fields["origin"] == "generated"
        return generated and int(sample.fields["row_id"][:8], 16) / 2**32 < self.share

    def check(self, sample: Sample, prompts: Prompts) -> None:
        """Compare one generated turn with what its text gives.

        Raises:
            TemplateChanged: the prompt's ids are not what the template gives now.
        """
        where = f"{sample.fields['source']}:{sample.fields['line']}, turn {sample.fields['turn']}"
        try:
            now = prompts.prompt_ids(sample.messages[:-1], sample.given)
        except PromptError as error:
            raise TemplateChanged(f"{where}: {error}") from None
        if now != sample.prompt_ids.tolist():
            raise TemplateChanged(
                f"{where}: the prompt now has {len(now)} ids, {len(sample.prompt_ids)} when it was "
                "answered, or others; the chat template renders differently at generation and at "
                "tokenization. Make model.chat_template independent of date and surroundings, "
                "and generate again"
            )
        ids = sample.output_ids.tolist()
        again = encode_text(prompts, prompts.decode([ids])[0])
        self.turns += 1
        self.tokens += len(ids)
        if again != ids:
            self.differing += 1
            self.longer += len(again) - len(ids)
            self.example = self.example or where

    def as_dict(self) -> dict[str, Any]:
        return {
            "turns_checked": self.turns,
            "turns_differing": self.differing,
            "tokens_checked": self.tokens,
            "tokens_longer": self.longer,
            "example": self.example,
        }


def encode_text(prompts: Prompts, text: str) -> list[int]:
    """A completion's text to ids as trainers do it: control tokens recognised in the text."""
    return prompts.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

"""A page of sample rows: every token with what the loss mask makes of it, and what was dropped."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workflow_scripts.dataset.samples import Ids, Sample
from workflow_scripts.model.given import name_of
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.pages.text import environment

TEMPLATE = Path(__file__).with_name("page.html.j2")
KEPT = 6  # samples shown of each side and class
DROPPED = 3  # of each reason
HEAD, TAIL = 260, 120  # ids shown of a prompt, and of a completion
BROKEN = "\ufffd"


@dataclass(frozen=True)
class Piece:
    """What one token writes; several where one character takes several.

    Args:
        ids: as many as it takes.
        control: whether it is a token of the chat template or of a reasoning's marks.
        supervised: whether the loss mask is 1 on it.
    """

    text: str
    ids: list[int]
    control: bool
    supervised: bool


def pieces(prompts: Prompts, ids: Ids, supervised: bool) -> Iterator[Piece]:
    """The ids of one part of a row, token by token."""
    held: list[int] = []
    for token in ids.tolist():
        if token in prompts.control_ids:
            if held:
                yield Piece(prompts.decode([held])[0], held, False, supervised)
                held = []
            yield Piece(prompts.decode([[token]])[0], [token], True, supervised)
            continue
        held.append(token)
        text = prompts.decode([held])[0]
        if not text.endswith(BROKEN) or len(held) > 8:
            yield Piece(text, held, False, supervised)
            held = []
    if held:
        yield Piece(prompts.decode([held])[0], held, False, supervised)


def part(prompts: Prompts, ids: Ids, supervised: bool) -> dict[str, Any]:
    """Beginning and end of a prompt or a completion, and how much is left out between them."""
    if len(ids) <= HEAD + TAIL:
        head, tail = ids, np.array([], dtype=np.int32)
    else:
        head, tail = ids[:HEAD], ids[len(ids) - TAIL :]
    return {
        "head": list(pieces(prompts, head, supervised)),
        "left_out": len(ids) - len(head) - len(tail),
        "tail": list(pieces(prompts, tail, supervised)),
    }


class Gallery:
    """Keeps the first samples of each kind; row ids are hashes, so they are a random choice."""

    def __init__(self, prompts: Prompts):
        self.prompts = prompts
        self._kept: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._dropped: dict[str, list[dict[str, Any]]] = {}

    def keep(self, sample: Sample, side: str) -> None:
        shelf = self._kept.setdefault((side, sample.fields["class"]), [])
        if len(shelf) < KEPT:
            shelf.append(self._entry(sample))

    def drop(self, sample: Sample, reason: str, message: str) -> None:
        shelf = self._dropped.setdefault(reason, [])
        if len(shelf) < DROPPED:
            shelf.append(self._entry(sample) | {"message": message})

    def _entry(self, sample: Sample) -> dict[str, Any]:
        names = ("source", "line", "turn", "class", "origin", "reasoning_length", "loop_score")
        return {
            **{name: sample.fields[name] for name in names},
            "tools": [name_of(tool) for tool in sample.given.tools or ()],
            "documents": len(sample.given.documents or ()),
            "prompt_length": len(sample.prompt_ids),
            "completion_length": len(sample.output_ids),
            "parts": [
                part(self.prompts, sample.prompt_ids, False),
                part(self.prompts, sample.output_ids, True),
            ],
        }

    def page(self, stats: dict[str, Any]) -> str:
        """The page as HTML; whatever is not marked as safe is escaped."""
        made = environment()
        return made.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
            stats=stats, kept=sorted(self._kept.items()), dropped=self._dropped
        )

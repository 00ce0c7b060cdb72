"""What an engine's answer is worth: its class, its reasoning and its answer text.

Everything is decided on token ids: where the reasoning ends is where the id of </think> stands.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workflow_scripts.model.prompts import Prompts

Ids = Sequence[int] | np.ndarray[Any, np.dtype[np.int32]]

CLASSES = (
    "complete",
    "truncated_in_thinking",
    "truncated_in_answer",
    "no_answer",
    "unclosed_thinking",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine returned for one request.

    `output_ids` holds every generated id, the end token included. `finish` is the engine's finish
    reason (`stop`, `length` or `abort`); `matched` the id (or, on a fault, the text) it stopped at.
    """

    output_ids: list[int]
    finish: str
    matched: int | str | None = None
    retractions: int = 0
    accept_length: float | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """Id ranges of a completion: reasoning [0, reasoning_end), answer [answer_start, answer_end).

    `closed` is False while the reasoning, if there is one, has not ended.
    """

    reasoning_end: int
    answer_start: int
    answer_end: int
    closed: bool


def split(prompts: Prompts, prompt_ids: Ids, output_ids: Ids) -> Parts:
    """Find reasoning and answer in a completion by the ids of the think tokens.

    Args:
        prompts: the model's think and end tokens.
        prompt_ids, output_ids: ids as lists or one-dimensional arrays.
    """
    end = len(output_ids)
    if end and output_ids[-1] in prompts.end_ids:
        end -= 1
    opened = prompts.opens_thinking(prompt_ids)
    if not opened and end and prompts.think_open is not None:
        # some models open the reasoning themselves, at the very start
        opened = bool(output_ids[0] == prompts.think_open)
    if not opened:
        return Parts(0, 0, end, True)
    closes = np.flatnonzero(np.asarray(output_ids[:end]) == prompts.think_close)
    if not len(closes):
        return Parts(end, end, end, False)
    return Parts(int(closes[0]), int(closes[0]) + 1, end, True)


def fault(answer: Answer, vocab_size: int) -> str | None:
    """Why an answer with status 200 is no answer, or None.

    Args:
        answer: what the engine returned.
        vocab_size: number of ids of the model.
    """
    if answer.finish == "abort":
        return "the engine aborted the request"
    if isinstance(answer.matched, str):
        return f"the engine stopped with {answer.matched!r}"  # e.g. "NaN happened"
    if answer.finish not in ("stop", "length"):
        return f"unknown finish reason {answer.finish!r}"
    if not answer.output_ids:
        return "no token was generated"
    try:
        ids = np.frombuffer(array("i", answer.output_ids), np.int32)
    except (TypeError, OverflowError):
        return "an output id is no 32-bit integer"
    if ids.min() < 0 or ids.max() >= vocab_size:
        return f"an id outside the vocabulary of {vocab_size}"
    return None


def classify(prompts: Prompts, prompt_ids: Sequence[int], answer: Answer) -> str:
    """The class of an answer without a fault, one of CLASSES."""
    parts = split(prompts, prompt_ids, answer.output_ids)
    if answer.finish == "length":
        return "truncated_in_answer" if parts.closed else "truncated_in_thinking"
    if not parts.closed:
        return "unclosed_thinking"
    answer_ids = answer.output_ids[parts.answer_start : parts.answer_end]
    for some in (answer_ids[:8], answer_ids):  # a few ids nearly always tell
        if some and prompts.decode([some])[0].strip():
            return "complete"
    return "no_answer"


def texts(
    prompts: Prompts, turns: Sequence[tuple[Sequence[int], list[int]]]
) -> list[tuple[str | None, str]]:
    """Reasoning (None where there is none) and answer as text, for turns given as prompt ids and
    output ids."""
    pieces: list[list[int]] = []
    opened = []
    for prompt_ids, output_ids in turns:
        parts = split(prompts, prompt_ids, output_ids)
        start = 1 if output_ids and output_ids[0] == prompts.think_open else 0
        pieces.append(output_ids[start : parts.reasoning_end])
        pieces.append(output_ids[parts.answer_start : parts.answer_end])
        opened.append(parts.answer_start > 0)
    decoded = iter(prompts.decode(pieces))
    return [
        (reasoning.strip("\n"), answer.lstrip("\n")) if has_reasoning else (None, answer)
        for has_reasoning, reasoning, answer in zip(opened, decoded, decoded, strict=True)
    ]

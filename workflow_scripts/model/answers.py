"""What an engine's answer is worth: its class, its reasoning and its answer text.

Where a reasoning ends is decided by the marks that the model's chat template writes (marks.py).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workflow_scripts.model.marks import Ids, Parts
from workflow_scripts.model.prompts import Prompts

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


def split(prompts: Prompts, prompt_ids: Ids, output_ids: Ids) -> Parts:
    """Find reasoning and answer in a completion.

    Args:
        prompts: the model's end tokens and marks of a reasoning.
        prompt_ids, output_ids: ids as lists or one-dimensional arrays.
    """
    end = _end(prompts, output_ids)
    if prompts.marks is None:
        return Parts(0, 0, 0, end, True, False)
    return prompts.marks.parts(prompt_ids, output_ids[:end])


def _end(prompts: Prompts, output_ids: Ids) -> int:
    """Ids without the end token."""
    return len(output_ids) - (len(output_ids) > 0 and int(output_ids[-1]) in prompts.end_ids)


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
    marks = prompts.marks
    pieces: list[list[int]] = []
    found: list[Parts] = []
    for prompt_ids, output_ids in turns:
        parts = split(prompts, prompt_ids, output_ids)
        found.append(parts)
        reasoning_ids = output_ids[parts.reasoning_start : parts.reasoning_end]
        pieces.append(marks.seamless(reasoning_ids) if marks else reasoning_ids)
        pieces.append(output_ids[parts.answer_start : parts.answer_end])
    decoded = iter(prompts.decode(pieces))
    told: list[tuple[str | None, str]] = []
    for turn, parts, reasoning, answer in zip(turns, found, decoded, decoded, strict=True):
        if marks is None or not parts.reasons:
            told.append((None, answer))
            continue
        if marks.plain:
            reasoning, answer = marks.texts(turn[0], turn[1][: _end(prompts, turn[1])])
        told.append((reasoning.strip("\n"), answer.lstrip("\n")))
    return told

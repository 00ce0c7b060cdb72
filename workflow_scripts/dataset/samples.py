"""Training samples: the turns of merged rows, with the engine's own ids.

A sample's ids are the prompt's as they were sent and the completion's as they came back. A kept
response has no ids of an engine: it is tokenized from text as the chat template writes it, and
marked off-policy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from workflow_scripts.model.answers import split
from workflow_scripts.model.given import NAMES, NOTHING, Given
from workflow_scripts.model.prompts import Message, PromptError, Prompts, is_asked
from workflow_scripts.texts.loops import Loop

Ids = np.ndarray[Any, np.dtype[np.int32]]
COMMON = ("row_id", "source", "line", "id", "run_hash", "origin", *NAMES)


@dataclass(slots=True)
class Sample:
    """One turn on its way to a training row.

    Args:
        fields: columns of the training table, those of ids and lengths left out.
        row: number of its row in merged/completions.parquet, from 0.
        messages: the conversation up to and including the turn.
        prompt_ids, output_ids: int32 ids; empty where `fault` says why there are none.
        loop: the worst repetition in the completion, once it was looked for.
    """

    fields: dict[str, Any]
    row: int
    messages: list[Message]
    prompt_ids: Ids
    output_ids: Ids
    fault: str | None = None
    loop: Loop | None = None

    @property
    def given(self) -> Given:
        return Given.read(self.fields)

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def question(self) -> str:
        """The last user turn before the answer."""
        asked = (m["content"] for m in reversed(self.messages[:-1]) if m["role"] == "user")
        return next(asked, "")

    @property
    def answer(self) -> str:
        return self.messages[-1]["content"] or ""

    @property
    def reasoning(self) -> str | None:
        return self.messages[-1].get("reasoning_content")


def read_samples(
    batch: pa.RecordBatch, first: int, prompts: Prompts, calls_too: bool = False
) -> Iterator[Sample]:
    """The samples of merged rows.

    Args:
        batch: rows of merged/completions.parquet.
        first: number of its first row.
        calls_too: whether old turns that call tools were asked, or are to be kept, too.
    """
    columns = [batch.column(name).to_pylist() for name in (*COMMON, "messages")]
    turns = batch.column("turns")
    starts = turns.offsets.to_numpy() - turns.offsets[0].as_py()
    turn = _Turns(turns.flatten())
    for index, (*values, text) in enumerate(zip(*columns, strict=True)):
        common = dict(zip(COMMON, values, strict=True))
        messages = orjson.loads(text)
        answers = answered(messages, calls_too)
        if common["origin"] == "kept":
            for number, at in enumerate(answers):
                given = messages[: at + 1]
                yield _kept(prompts, common | {"turn": number}, first + index, given)
            continue
        own = range(starts[index], starts[index + 1])
        for k, at in zip(own, answers, strict=True):
            given = messages if at + 1 == len(messages) else messages[: at + 1]
            fields = common | {name: turn.columns[name][k] for name in turn.columns}
            raw = text if given is messages else orjson.dumps(given).decode()
            yield _sample(
                prompts, fields, first + index, given, raw, turn.prompt(k), turn.output(k)
            )


def answered(messages: list[Message], calls_too: bool) -> list[int]:
    """The places of a merged row's answers. The last message is one, whatever it calls."""
    last = len(messages) - 1
    return [i for i, m in enumerate(messages) if is_asked(m, calls_too or i == last)]


class _Turns:
    """The turns of a batch: their ids as views of the batch's memory."""

    def __init__(self, turns: pa.StructArray):
        by_name = dict(zip((f.name for f in turns.type), turns.flatten(), strict=True))
        names = ("turn", "class", "calls", "ended", "finish_reason", "retractions")
        self.columns = {name: by_name[name].to_pylist() for name in names}
        self._ids = {
            name: (by_name[name].offsets.to_numpy(), by_name[name].values.to_numpy())
            for name in ("prompt_ids", "output_ids")
        }

    def prompt(self, k: int) -> Ids:
        offsets, values = self._ids["prompt_ids"]
        return values[offsets[k] : offsets[k + 1]]

    def output(self, k: int) -> Ids:
        offsets, values = self._ids["output_ids"]
        return values[offsets[k] : offsets[k + 1]]


def _kept(prompts: Prompts, fields: dict[str, Any], row: int, messages: list[Message]) -> Sample:
    calls = messages[-1].get("tool_calls")
    fields |= {"class": "kept", "finish_reason": None, "retractions": 0, "ended": None}
    fields["calls"] = orjson.dumps(calls).decode() if calls else None
    fault, ids = None, ([], [])  # type: tuple[str | None, tuple[list[int], list[int]]]
    try:
        ids = kept_ids(prompts, messages, Given.read(fields))
    except PromptError as error:
        fault = str(error)
    arrays = [np.asarray(part, dtype=np.int32) for part in ids]
    text = orjson.dumps(messages).decode()
    sample = _sample(prompts, fields, row, messages, text, arrays[0], arrays[1])
    sample.fault = fault
    return sample


def _sample(
    prompts: Prompts,
    fields: dict[str, Any],
    row: int,
    messages: list[Message],
    text: str,
    prompt_ids: Ids,
    output_ids: Ids,
) -> Sample:
    fields["on_policy"] = fields["origin"] == "generated"
    parts = split(prompts, prompt_ids, output_ids)
    fields["reasoning_length"] = parts.answer_start if parts.reasons else 0
    fields["messages"] = text
    return Sample(fields, row, messages, prompt_ids, output_ids)


def kept_ids(
    prompts: Prompts, messages: list[Message], given: Given = NOTHING
) -> tuple[list[int], list[int]]:
    """Prompt and completion ids of a conversation that ends with a kept response.

    The completion is what the template adds to the prompt, up to its first end token. Where the
    template writes a response without the reasoning that the prompt opens, the prompt ends with the
    line before it.

    Raises:
        PromptError: the template refuses it, or does not write a response after its prompt.
    """
    history = prompts.render(messages[:-1], answer_next=False, given=given)
    asked = prompts.render(messages[:-1], given=given)
    whole = prompts.render(messages, answer_next=False, given=given)
    cut = len(asked) if whole.startswith(asked) else 0
    if not cut and whole.startswith(history):
        same = next((i for i, (a, b) in enumerate(zip(asked, whole, strict=False)) if a != b), 0)
        cut = asked.rfind("\n", len(history), same) + 1
    if not cut:
        raise PromptError("the template writes the response in another form than its prompt")
    prompt_ids, output_ids = prompts.encode([whole[:cut], whole[cut:]])
    for index, token in enumerate(output_ids):
        if token in prompts.end_ids:
            return prompt_ids, output_ids[: index + 1]
    return prompt_ids, output_ids

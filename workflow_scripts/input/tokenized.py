"""Already tokenized rows back to conversations, with the response's ids as they stand.

A row is cut into turns at the control token ids that the chat template writes around them
(`template_marks.py`, `marked_turns.py`); its own columns say which of them are responses
(`supervised.py`).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from workflow_scripts.config.audit import Columns
from workflow_scripts.input.dialects import LISTS, PROMPT_COLUMNS
from workflow_scripts.input.ids import ID_COLUMNS
from workflow_scripts.input.marked_turns import MarkedTurn, cut
from workflow_scripts.input.media import check_columns
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.supervised import KINDS, one_an_id, supervised
from workflow_scripts.input.template_marks import ROLES, TemplateMarks
from workflow_scripts.model.answers import split, texts
from workflow_scripts.model.prompts import Message, PromptError, Prompts

CONVERSATIONS = (*LISTS, "instruction", *PROMPT_COLUMNS)


def is_tokenized(record: dict[str, Any], columns: Columns) -> bool:
    """Whether a record has token ids and no conversation. Ids that the configuration names count
    even beside a conversation, unless it names that one too."""
    ids = record.get(columns.input_ids or "input_ids")
    if not isinstance(ids, list) or (ids and type(ids[0]) is not int):
        return False
    named = [name for name in (columns.messages, *columns.prompts) if name]
    others = named if columns.input_ids else [*named, *CONVERSATIONS]
    return all(record.get(name) is None for name in others)


def tokenized_columns(columns: Columns) -> frozenset[str]:
    """The columns that are read of a tokenized row."""
    named = (columns.loss_mask, columns.labels, columns.response_start)
    masks = [name for name in named if name] or KINDS
    ids = [columns.id] if columns.id else ID_COLUMNS
    return frozenset({columns.input_ids or "input_ids", "attention_mask", *masks, *ids})


@dataclass(slots=True)
class Tokenized:
    """A tokenized row as a conversation that ends with the last turn that has supervised ids.

    `response_ids` are the last supervised ids as they stand in the row, at most to the white space
    after the end token. A row that is only a prompt has none, and content None in its last message.
    `spans` counts the row's supervised spans. `same_prompt`: rendering the messages again gives the
    ids before the response.
    """

    messages: list[Message]
    response_ids: list[int]
    spans: int
    same_prompt: bool


class Detokenizer:
    """Cuts token ids into the turns of a model's chat template."""

    def __init__(self, prompts: Prompts):
        self.prompts = prompts
        self.marks = TemplateMarks(prompts)
        self.vocab_size = prompts.size

    def conversation(self, record: dict[str, Any], columns: Columns) -> Tokenized:
        """The conversation of a record that `is_tokenized`.

        Raises:
            Reject: with the reason class that the audit counts.
        """
        check_columns(record)
        name = columns.input_ids or "input_ids"
        ids = record.get(name)
        if not isinstance(ids, list) or not ids:
            raise Reject("bad_ids", f"`{name}` is no list of ids, or an empty one")
        if {*map(type, ids)} != {int} or min(ids) < 0 or max(ids) >= self.vocab_size:
            wrong = (i for i in ids if type(i) is not int or not 0 <= i < self.vocab_size)
            message = f"`{name}` holds {next(wrong)!r}, which is no id of {self.vocab_size}"
            raise Reject("bad_ids", message)
        real = self._real(record, ids)
        taught = supervised(record, columns, ids)[real]
        ids = ids[real]
        turns, fault = cut(self.marks.read(ids), self.marks)
        if not any(taught):
            return self._unanswered(turns, fault, ids)
        answers = [n for n, turn in enumerate(turns) if any(taught[turn.begin : turn.after])]
        if not answers or (fault and any(taught[turns[answers[-1]].after :])):
            what = fault or "the supervised ids lie outside the assistant's turns"
            raise Reject("not_this_template", what)
        last = turns[answers[-1]]
        edges = [n for n, (a, b) in enumerate(pairwise([False, *taught, False])) if a != b]
        spans = [*zip(edges[::2], edges[1::2], strict=True)]
        start, end = [(a, b) for a, b in spans if a < last.after and b > last.begin][-1]
        response = ids[max(start, last.begin) : min(end, last.after)]
        messages = [self._message(turn, ids, taught) for turn in turns[: answers[-1] + 1]]
        same = self._same(messages[:-1], ids[: last.begin])
        return Tokenized(messages, response, len(spans), same)

    def _unanswered(self, turns: list[MarkedTurn], fault: str | None, ids: list[int]) -> Tokenized:
        last = turns[-1] if turns and not fault else MarkedTurn("", "")
        if last.role != "a" or self.marks.think.sub("", last.text).strip():
            raise Reject("no_response_ids", "no id is supervised, and the row asks for no answer")
        messages = [self._message(turn, ids, [False] * len(ids)) for turn in turns[:-1]]
        same = self._same(messages, ids[: last.begin])
        return Tokenized([*messages, {"role": "assistant", "content": None}], [], 0, same)

    def _real(self, record: dict[str, Any], ids: list[int]) -> slice:
        """Where the ids are that are no padding."""
        real = [1] * len(ids)
        if record.get("attention_mask") is not None:
            real = one_an_id(record, "attention_mask", ids)
        kept = [n for n, value in enumerate(real) if value]
        while kept and self.marks.is_foreign(ids[kept[-1]]):
            kept.pop()
        return slice(kept[0], kept[-1] + 1) if kept else slice(0)

    def _message(self, turn: MarkedTurn, ids: list[int], taught: list[bool]) -> Message:
        message: Message = {"role": ROLES[turn.role]}
        start, stop = turn.begin, turn.stop
        if any(taught[start : turn.after]):
            known = [n for n in range(start, stop) if taught[n]]
            start, stop = (known[0], known[-1] + 1) if known else (stop, stop)
        whole = (start, stop) == (turn.begin, turn.stop)
        if turn.role != "a" or (whole and not self.marks.think.search(turn.text)):
            return {**message, "content": self.marks.spelled(turn.text)}
        before, output = ids[turn.begin : start], ids[start:stop]
        if split(self.prompts, before, output).closed:
            [(reasoning, answer)] = texts(self.prompts, [(before, output)])
        else:
            reasoning, answer = None, self.prompts.decode([output])[0]
        message["content"] = answer
        return message if reasoning is None else {**message, "reasoning_content": reasoning}

    def _same(self, messages: list[Message], ids: list[int]) -> bool:
        """Whether the messages' prompt is these ids and, at most, marks of a reasoning."""
        try:
            ours = self.prompts.prompt_ids(messages)
        except PromptError:
            return False
        rest = self.marks.read(ours[len(ids) :]).text
        return ours[: len(ids)] == ids and not self.marks.think.sub("", rest).strip()

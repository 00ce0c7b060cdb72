"""Tokenized rows made by hand, and a detokenizer for the small model.

Byte tokens make every id checkable by eye: a character is its own id.
"""

import json
from typing import Any

from tests.made.model import (
    END_OF_TEXT,
    IM_END,
    IM_START,
    TEMPLATE,
    THINK,
    THINK_CLOSE,
    byte_tokenizer,
)
from tests.made.prompts import tiny_prompts
from workflow_scripts.config.audit import Columns
from workflow_scripts.input.tokenized import Detokenizer, Tokenized
from workflow_scripts.model.prompts import Message, Prompts

ANY = Columns()
ASKED = [IM_START, *b"user\nHi", IM_END, 10, IM_START, *b"assistant\n"]
OPEN = [*ASKED, THINK, 10]
EMPTY = [THINK, 10, 10, THINK_CLOSE, 10, 10, IM_END, 10]  # an empty answer, with its think block
USER = {"role": "user", "content": "Hi"}


def detokenizer(thinking: bool = True, template: str = TEMPLATE) -> Detokenizer:
    return Detokenizer(tiny_prompts(thinking, template, [IM_END, END_OF_TEXT]))


def detokenizer_with(
    control: tuple[str, ...], end: str, template: str, thinking: bool = False
) -> Detokenizer:
    """For a byte tokenizer that has these control tokens, from id 256 on."""
    raw = json.loads(byte_tokenizer().to_str())
    one = raw["added_tokens"][0]
    raw["added_tokens"] = [{**one, "id": n, "content": t} for n, t in enumerate(control, 256)]
    ends = [256 + control.index(end)]
    return Detokenizer(Prompts(json.dumps(raw), template, {}, thinking, ends))


TINY = detokenizer()
OFF = detokenizer(thinking=False)


def masked(*parts: tuple[list[int], int], **more: Any) -> dict[str, Any]:
    """A row of id runs, each supervised or not."""
    ids = [i for run, _ in parts for i in run]
    return {"input_ids": ids, "loss_mask": [m for run, m in parts for _ in run], **more}


def read(row: dict[str, Any], by: Detokenizer = TINY, columns: Columns = ANY) -> Tokenized:
    return by.conversation(row, columns)


def answer(content: str | None, reasoning: str | None = None) -> Message:
    found: Message = {"role": "assistant", "content": content}
    return found if reasoning is None else {**found, "reasoning_content": reasoning}

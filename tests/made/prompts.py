"""Prompts of the small model."""

from collections.abc import Sequence

from tests.made.model import IM_END, TEMPLATE, byte_tokenizer
from workflow_scripts.model.prompts import Prompts


def tiny_prompts(
    thinking: bool = True,
    template: str = TEMPLATE,
    end_ids: Sequence[int] = (IM_END,),
    keep_reasoning: bool = False,
) -> Prompts:
    tokenizer = byte_tokenizer().to_str()
    return Prompts(tokenizer, template, {}, thinking, end_ids, keep_reasoning)

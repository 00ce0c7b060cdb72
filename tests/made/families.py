"""Families of models: a template each (tests/data/templates, of our own wording) and a tokenizer of
bytes with the family's control tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tests.made.model import byte_tokenizer

FOLDER = Path("tests/data/templates")
IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
THINK = ("<think>", "</think>")
CALL = ("<tool_call>", "</tool_call>")
RESPONSE = ("<tool_response>", "</tool_response>")


@dataclass(frozen=True)
class Family:
    """A template and what its tokenizer knows.

    `special` are control tokens; `added` tokens that the tokenizer does not call special, though
    templates write them (as Qwen's <think>); `words` such tokens that are ordinary text. `names`
    are those that a template may name, `end` ends an answer. `reasoning` is what opens and closes
    it in a model's own text, None where the family has none; `switch` the variable that turns it
    on, None where there is no such thing. `variables` are further ones that a template takes.
    """

    name: str
    special: tuple[str, ...]
    end: str
    added: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    switch: str | None = None
    reasoning: tuple[str, str] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    takes_white_space: bool = False

    @property
    def control(self) -> tuple[str, ...]:
        return self.special + self.added

    @property
    def thinking(self) -> tuple[bool, ...]:
        """What `model.thinking` can be: a family without a switch reasons always or never."""
        return (True, False) if self.switch else (self.reasoning is not None,)

    @cached_property
    def template(self) -> str | dict[str, str]:
        """Its text, or several by name."""
        path = FOLDER / f"{self.name}.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        several = FOLDER.glob(f"{self.name}.*.jinja")
        return {p.name.split(".")[1]: p.read_text(encoding="utf-8") for p in several}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = byte_tokenizer((), self.words)
        for texts, special in ((self.special, True), (self.added + self.words, False)):
            tokens = [
                AddedToken(text, special=special, normalized=False, rstrip=self.takes_white_space)
                for text in texts
            ]
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(tokens)
        return tokenizer


FAMILIES = {
    family.name: family
    for family in (
        Family("qwen25", IM, "<|im_end|>", CALL),
        Family(
            "qwen3",
            IM,
            "<|im_end|>",
            (*THINK, *CALL, *RESPONSE),
            switch="enable_thinking",
            reasoning=THINK,
        ),
        Family(
            "qwen35",
            (*IM, "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
            "<|im_end|>",
            (*THINK, *CALL, *RESPONSE),
            switch="enable_thinking",
            reasoning=THINK,
        ),
        Family(
            "llama3",
            (
                *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
                *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
            ),
            "<|eot_id|>",
            names={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
            variables={"date_string": "26 Jul 2024"},
        ),
        Family(
            "gpt_oss",
            (
                *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>"),
                *("<|end|>", "<|call|>", "<|return|>"),
            ),
            "<|return|>",
            reasoning=("<|channel|>analysis<|message|>", "<|end|>"),
            variables={"reasoning_effort": "high"},
        ),
        Family(
            "deepseek_v31",
            (
                *(
                    "<｜begin▁of▁sentence｜>",
                    "<｜end▁of▁sentence｜>",
                    "<｜User｜>",
                    "<｜Assistant｜>",
                ),
                *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
                *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
                *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
            ),
            "<｜end▁of▁sentence｜>",
            THINK,
            names={"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
            switch="thinking",
            reasoning=THINK,
        ),
        Family(
            "deepseek_r1",
            (
                *(
                    "<｜begin▁of▁sentence｜>",
                    "<｜end▁of▁sentence｜>",
                    "<｜User｜>",
                    "<｜Assistant｜>",
                ),
                *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
                *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
                *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
                *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
            ),
            "<｜end▁of▁sentence｜>",
            THINK,
            names={"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
            reasoning=THINK,
        ),
        Family(
            "glm46",
            ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
            "<|user|>",
            (
                *(*THINK, *CALL, *RESPONSE, "/nothink"),
                *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
            ),
            switch="enable_thinking",
            reasoning=THINK,
        ),
        Family(
            "kimi_k2",
            (
                *(
                    "<|im_end|>",
                    "<|im_user|>",
                    "<|im_assistant|>",
                    "<|im_system|>",
                    "<|im_middle|>",
                ),
                *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
                *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
                *("<|media_start|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"),
            ),
            "<|im_end|>",
        ),
        Family(
            "gemma3",
            ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>"),
            "<end_of_turn>",
            words=("\n\n", "\n\n\n", "<table>", "</table>"),
            names={"bos_token": "<bos>", "eos_token": "<eos>"},
        ),
        Family(
            "gemma4",
            (
                *("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"),
                *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>"),
                *("<|tool_response>", "<tool_response|>", '<|"|>'),
            ),
            "<turn|>",
            names={"bos_token": "<bos>", "eos_token": "<eos>"},
            switch="enable_thinking",
            reasoning=("<|channel>thought\n", "<channel|>"),
        ),
        Family(
            "mistral",
            (
                *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
                *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
            ),
            "</s>",
            names={"bos_token": "<s>", "eos_token": "</s>"},
        ),
        Family("phi4", (*IM, "<|im_sep|>"), "<|im_end|>", reasoning=None, takes_white_space=True),
        Family(
            "minimax_m2",
            ("]~!b[", "]~b]", "[e~["),
            "[e~[",
            (*THINK, "<minimax:tool_call>", "</minimax:tool_call>"),
            reasoning=THINK,
        ),
        Family(
            "nemotron2",
            ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"),
            "<SPECIAL_12>",
            THINK,
            reasoning=THINK,
        ),
        Family(
            "nemotron3",
            IM,
            "<|im_end|>",
            (*THINK, *CALL),
            switch="enable_thinking",
            reasoning=THINK,
        ),
        Family(
            "command_r",
            (
                *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
                *("<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
                *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>"),
                *("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
                *("<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
            ),
            "<|END_OF_TURN_TOKEN|>",
            names={"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
            switch="enable_thinking",
            reasoning=("<|START_THINKING|>", "<|END_THINKING|>"),
        ),
        Family(
            "seed_oss",
            (
                *("<seed:bos>", "<seed:eos>", "<seed:think>", "</seed:think>"),
                *("<seed:tool_call>", "</seed:tool_call>"),
            ),
            "<seed:eos>",
            reasoning=("<seed:think>", "</seed:think>"),
            variables={"thinking_budget": 512},
        ),
        Family("smollm3", IM, "<|im_end|>", THINK, switch="enable_thinking", reasoning=THINK),
        Family(
            "granite",
            ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>"),
            "<|end_of_text|>",
            names={"bos_token": "<|end_of_text|>", "eos_token": "<|end_of_text|>"},
            variables={"controls": {"citations": True}},
        ),
    )
}

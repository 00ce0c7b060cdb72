"""Families of models: a template each (tests/data/templates, of our own wording) and a tokenizer of
bytes with the family's control tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tests.made.model import byte_tokenizer
from workflow_scripts.model.prompts import Prompts

FOLDER = Path("tests/data/templates")
TODAY = date(2026, 1, 31)


@dataclass(frozen=True, eq=False)
class Family:
    """A template and what its tokenizer knows.

    Args:
        special: control tokens, apart by spaces, as all tokens here.
        added: tokens that the tokenizer does not call special, though templates write them.
        words: such tokens that are ordinary text.
        names: tokens that a template may name.
        ends: what ends an answer.
        writes: what a model writes that thinks; without, it never does.
        switch: the variable that turns thinking on, None where there is no such thing.
        variables: further ones that the template takes.
        form: that of its calls, by the name of SGLang's parser; None where it writes none.
    """

    name: str
    special: str
    ends: str
    added: str = ""
    words: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    writes: str | None = None
    switch: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    form: str | None = None
    takes_white_space: bool = False

    @property
    def control(self) -> list[str]:
        return f"{self.special} {self.added}".split()

    @property
    def thinking(self) -> tuple[bool, ...]:
        """What `model.thinking` can be: a family without a switch reasons always or never."""
        return (True, False) if self.switch else (self.writes is not None,)

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

        def tokens(texts: list[str], special: bool) -> list[AddedToken]:
            options = {"normalized": False, "rstrip": self.takes_white_space}
            return [AddedToken(text, special=special, **options) for text in texts]

        tokenizer.add_special_tokens(tokens(self.special.split(), True))
        tokenizer.add_tokens(tokens([*self.added.split(), *self.words], False))
        return tokenizer


IM = "<|im_start|> <|im_end|> <|endoftext|>"
THINK = "<think> </think>"
CALL = "<tool_call> </tool_call>"
RESPONSE = "<tool_response> </tool_response>"
OPENED = "{reasoning}\n</think>\n\n{answer}"  # by the prompt
DEEPSEEK = (
    "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <｜tool▁sep｜> "
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> "
    "<｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
)
DEEPSEEK_NAMES = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
GEMMA_WORDS = ("\n\n", "\n\n\n", "<table>", "</table>")
FAMILIES = (
    Family("qwen25", IM, "<|im_end|>", CALL, form="qwen"),
    Family(
        "qwen3",
        IM,
        "<|im_end|>",
        f"{THINK} {CALL} {RESPONSE}",
        writes="<think>\n{reasoning}\n</think>\n\n{answer}",
        switch="enable_thinking",
        form="qwen",
    ),
    Family(
        "qwen35",
        f"{IM} <|vision_start|> <|image_pad|> <|vision_end|>",
        "<|im_end|>",
        f"{THINK} {CALL} {RESPONSE}",
        writes=OPENED,
        switch="enable_thinking",
        form="qwen3_coder",
    ),
    Family(
        "llama3",
        "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> "
        "<|python_tag|>",
        "<|eot_id|> <|eom_id|>",
        names={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        variables={"tools_in_user_message": False},
        form="llama3",
    ),
    Family(
        "gpt_oss",
        "<|start|> <|message|> <|channel|> <|constrain|> <|end|> <|call|> <|return|>",
        "<|return|> <|call|>",
        writes="<|channel|>analysis<|message|>{reasoning}<|end|>"
        "<|start|>assistant<|channel|>final<|message|>{answer}",
        variables={"reasoning_effort": "high", "builtin_tools": ["python"]},
        form="gpt-oss",
    ),
    Family(
        "deepseek_v31",
        DEEPSEEK,
        "<｜end▁of▁sentence｜>",
        THINK,
        names=DEEPSEEK_NAMES,
        writes="{reasoning}</think>{answer}",
        switch="thinking",
        form="deepseekv31",
    ),
    Family(
        "deepseek_r1",
        DEEPSEEK,
        "<｜end▁of▁sentence｜>",
        THINK,
        names=DEEPSEEK_NAMES,
        writes=OPENED,
        form="deepseekv3",
    ),
    Family(
        "glm46",
        "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>",
        "<|user|> <|observation|>",
        f"{THINK} {CALL} {RESPONSE} /nothink <arg_key> </arg_key> <arg_value> </arg_value>",
        writes="\n<think>{reasoning}</think>\n{answer}",
        switch="enable_thinking",
        form="glm45",
    ),
    Family(
        "kimi_k2",
        "<|im_end|> <|im_user|> <|im_assistant|> <|im_system|> <|im_middle|> "
        "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> "
        "<|tool_call_argument_begin|> <|tool_call_end|> "
        "<|media_start|> <|media_content|> <|media_pad|> <|media_end|>",
        "<|im_end|>",
        form="kimi_k2",
    ),
    Family(
        "gemma3",
        "<bos> <eos> <start_of_turn> <end_of_turn> <start_of_image>",
        "<end_of_turn>",
        words=GEMMA_WORDS,
        names={"bos_token": "<bos>", "eos_token": "<eos>"},
    ),
    Family(
        "gemma4",
        "<bos> <eos> <|turn> <turn|> <|channel> <channel|> <|think|> <|tool> <tool|> "
        '<|tool_call> <tool_call|> <|tool_response> <tool_response|> <|"|>',
        "<turn|> <|tool_response>",
        words=GEMMA_WORDS,
        names={"bos_token": "<bos>", "eos_token": "<eos>"},
        writes="<|channel>thought\n{reasoning}\n<channel|>{answer}",
        switch="enable_thinking",
        form="gemma4",
    ),
    Family(
        "mistral",
        "<s> </s> [INST] [/INST] [TOOL_CALLS] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] "
        "[TOOL_RESULTS] [/TOOL_RESULTS]",
        "</s>",
        names={"bos_token": "<s>", "eos_token": "</s>"},
        form="mistral",
    ),
    Family("phi4", f"{IM} <|im_sep|>", "<|im_end|>", takes_white_space=True),
    Family(
        "minimax_m2",
        "]~!b[ ]~b] [e~[",
        "[e~[",
        f"{THINK} <minimax:tool_call> </minimax:tool_call>",
        writes=OPENED,
        form="minimax-m2",
    ),
    Family(
        "nemotron2",
        "<SPECIAL_10> <SPECIAL_11> <SPECIAL_12>",
        "<SPECIAL_12>",
        THINK,
        writes=OPENED,
        form="nemotron",
    ),
    Family(
        "nemotron3",
        IM,
        "<|im_end|>",
        f"{THINK} {CALL}",
        writes="{reasoning}\n</think>\n{answer}",
        switch="enable_thinking",
        form="qwen3_coder",
    ),
    Family(
        "command_r",
        "<BOS_TOKEN> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|USER_TOKEN|> "
        "<|CHATBOT_TOKEN|> <|SYSTEM_TOKEN|> <|START_THINKING|> <|END_THINKING|> "
        "<|START_ACTION|> <|END_ACTION|> <|START_RESPONSE|> <|END_RESPONSE|> "
        "<|START_TOOL_RESULT|> <|END_TOOL_RESULT|>",
        "<|END_OF_TURN_TOKEN|>",
        names={"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
        writes="<|START_THINKING|>{reasoning}<|END_THINKING|>{answer}",
        switch="enable_thinking",
        form="cohere_command4",
    ),
    Family(
        "seed_oss",
        "<seed:bos> <seed:eos> <seed:think> </seed:think> <seed:tool_call> </seed:tool_call>",
        "<seed:eos>",
        writes="<seed:think>{reasoning}</seed:think>{answer}",
        variables={"thinking_budget": 512},
        form="seed_oss",
    ),
    Family(
        "smollm3",
        IM,
        "<|im_end|>",
        THINK,
        writes="<think>\n{reasoning}\n</think>\n{answer}",
        switch="enable_thinking",
    ),
    Family(
        "granite",
        "<|start_of_role|> <|end_of_role|> <|end_of_text|> <|tool_call|>",
        "<|end_of_text|>",
        names={"bos_token": "<|end_of_text|>", "eos_token": "<|end_of_text|>"},
        form="phi4",
    ),
)


@cache
def prompts_of(family: Family, thinking: bool) -> Prompts:
    added = {token.content: id for id, token in family.tokenizer.get_added_tokens_decoder().items()}
    return Prompts(
        family.tokenizer.to_str(),
        family.template,
        family.names,
        thinking,
        [added[end] for end in family.ends.split()],
        variables=family.variables,
        today=TODAY,
    )

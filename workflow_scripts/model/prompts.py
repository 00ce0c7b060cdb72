"""Prompts: a conversation through the model's chat template to token ids, and back.

Text that merely spells a control token never becomes one. The template is rendered with such
spellings masked, the result is cut at the control tokens that the template itself wrote, and each
piece is encoded by a copy of the tokenizer that knows no control tokens. Without such spellings,
which is nearly always, the whole text is encoded at once; both ways give the same ids.
"""

import json
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.model.fast_bpe import Encode, fast_bpe
from workflow_scripts.model.folder import (
    NO_THINKING,
    THINK_TOKENS,
    chat_template,
    end_token_ids,
    special_tokens,
    tokenizer_file,
)
from workflow_scripts.model.given import NOTHING, Given
from workflow_scripts.model.spellings import MASK, Spellings
from workflow_scripts.model.template import compile_template

Message = dict[str, Any]
# What templates call it: Qwen3.6 and GLM-4.7.
KEEP_REASONING = {"preserve_thinking": True, "clear_thinking": False}
PROBE_REASONING = "reasoning of an earlier turn"
PROBE_HISTORY = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b", "reasoning_content": PROBE_REASONING},
    {"role": "user", "content": "c"},
]


def is_asked(message: Message, calls_too: bool = False) -> bool:
    """Whether a turn is the model's to generate: an assistant's, one that calls tools only where
    those are asked too."""
    return message["role"] == "assistant" and (calls_too or not message.get("tool_calls"))


class PromptError(Exception):
    """The chat template refuses a conversation; the message is the template's own."""


class Prompts:
    """A model's chat template and tokenizer.

    Args:
        tokenizer_json: the text of tokenizer.json.
        template: the Jinja text of the chat template.
        special: the tokens a template may name (`bos_token`, `eos_token`, ...).
        thinking: passed to the template as `enable_thinking`.
        end_ids: token ids that end a completion.
        keep_reasoning: ask the template to leave earlier turns' reasoning in later prompts.

    Raises:
        ConfigError: thinking is asked of a model without think tokens, or kept reasoning of a
            template that leaves it out.
    """

    def __init__(
        self,
        tokenizer_json: str,
        template: str,
        special: dict[str, str],
        thinking: bool,
        end_ids: Sequence[int],
        keep_reasoning: bool = False,
    ):
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self._json = tokenizer_json
        self._fast: Encode | None = None
        raw = json.loads(tokenizer_json)
        self.added = {t["content"]: t["id"] for t in raw.get("added_tokens", [])}
        self.spellings = Spellings(self.added)
        self._template = compile_template(template)
        self._variables = {**special, "enable_thinking": thinking}
        if keep_reasoning:
            self._variables |= KEEP_REASONING
        self.vocab_size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        self.think_open, self.think_close = (self.added.get(token) for token in THINK_TOKENS)
        self.end_ids = frozenset(end_ids)
        # ids that structure a conversation and are no text of a turn
        self.control_ids = {t["id"] for t in raw.get("added_tokens", []) if t.get("special")}
        self.control_ids -= {self.think_open, self.think_close}
        if keep_reasoning and PROBE_REASONING not in self.render(PROBE_HISTORY):
            raise ConfigError(
                "model.history_reasoning: the chat template leaves earlier reasoning out even "
                f"with {', '.join(KEEP_REASONING)}; set it to `template`, or model.chat_template "
                "to a copy of the template that keeps it"
            )
        if thinking and (self.think_open is None or self.think_close is None):
            raise ConfigError(NO_THINKING)

    @classmethod
    def from_config(cls, config: Config) -> "Prompts":
        return cls(
            tokenizer_file(config).read_text(encoding="utf-8"),
            chat_template(config),
            special_tokens(config),
            config.model.thinking,
            end_token_ids(config),
            config.model.history_reasoning == "keep",
        )

    @cached_property
    def _plain(self) -> Tokenizer:
        """The tokenizer without control tokens: made when a text spells one."""
        return Tokenizer.from_str(json.dumps({**json.loads(self._json), "added_tokens": []}))

    def hasten(self) -> bool:
        """Encode four times as fast from now on, where the tokenizer allows it; costs seconds and
        memory to prepare, so it pays for many texts. Returns whether it does."""
        self._fast = fast_bpe(self._json, self.tokenizer)
        return self._fast is not None

    # ---- to ids ----

    def render(
        self, messages: Sequence[Message], answer_next: bool = True, given: Given = NOTHING
    ) -> str:
        """The template's text, spellings of control tokens in what it is given masked.

        Raises:
            PromptError: the template refuses the conversation.
        """
        try:
            return self._template.render(
                messages=[self.spellings.masked(message) for message in messages],
                add_generation_prompt=answer_next,
                **self.spellings.masked(given.variables()),
                **self._variables,
            )
        except ConfigError:
            raise
        except Exception as error:  # a template can raise anything its expressions can
            raise PromptError(f"the chat template refuses it: {error}") from None

    def encode(self, rendered: Sequence[str]) -> list[list[int]]:
        """Ids of rendered texts."""
        found: list[list[int]] = [[] for _ in rendered]
        plain = []
        for i, text in enumerate(rendered):
            if MASK in text:
                continue
            if self._fast and (text.isascii() or unicodedata.is_normalized("NFC", text)):
                found[i] = self._encode_pieces(text, self._fast)
            else:
                plain.append(i)
        batch = self.tokenizer.encode_batch_fast(
            [rendered[i] for i in plain], add_special_tokens=False
        )
        for i, encoding in zip(plain, batch, strict=True):
            found[i] = encoding.ids
        for i, text in enumerate(rendered):
            if MASK in text:
                found[i] = self._encode_pieces(text, self._encode_unmasked)
        return found

    def _encode_pieces(self, text: str, encode: Encode) -> list[int]:
        """Ids of the control tokens that the template wrote, and of what stands between them."""
        ids: list[int] = []
        for piece in self.spellings.cut(text):
            if piece in self.added:
                ids.append(self.added[piece])
            elif piece:
                ids += encode(piece)
        return ids

    def prompt_ids(self, messages: Sequence[Message], given: Given = NOTHING) -> list[int]:
        """Ids of the prompt that asks for the answer to the last message."""
        return self.encode([self.render(messages, given=given)])[0]

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text; spelled control tokens stay text."""
        return self._plain.encode(text, add_special_tokens=False).ids

    def _encode_unmasked(self, text: str) -> list[int]:
        return self.encode_text(self.spellings.unmasked(text))

    # ---- back ----

    def decode(self, ids: Sequence[list[int]]) -> list[str]:
        """Texts of id sequences, control tokens spelled out."""
        return self.tokenizer.decode_batch(ids, skip_special_tokens=False)

    def opens_thinking(
        self, prompt_ids: Sequence[int] | np.ndarray[Any, np.dtype[np.int32]]
    ) -> bool:
        """Whether the prompt, a list or an array of ids, ends inside an open reasoning."""
        if self.think_open is None:
            return False
        ids = np.asarray(prompt_ids)
        marks = np.flatnonzero((ids == self.think_open) | (ids == self.think_close))
        return bool(len(marks) and ids[marks[-1]] == self.think_open)

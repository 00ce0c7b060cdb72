"""Prompts: a conversation through the model's chat template to token ids, and back.

Text that merely spells a control token never becomes one. The template is rendered with such
spellings masked, the result is cut at the control tokens that the template itself wrote, and each
piece is encoded by a copy of the tokenizer that knows no control tokens. Without such spellings,
which is nearly always, the whole text is encoded at once; both ways give the same ids.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.model.fast_bpe import Encode, fast_bpe
from workflow_scripts.model.folder import (
    DEFAULT,
    chat_templates,
    end_token_ids,
    special_tokens,
    tokenizer_file,
)
from workflow_scripts.model.given import NOTHING, Given
from workflow_scripts.model.marks import Ids, Marks
from workflow_scripts.model.reasoning import (
    OF_REASONING,
    SWITCHES,
    Reasoning,
    contradiction,
    find_reasoning,
    written_by,
)
from workflow_scripts.model.spellings import MASK, Spellings
from workflow_scripts.model.template import Templates

Message = dict[str, Any]
PIECE = 1 << 16  # characters encoded at once where a text is measured
BLANK = re.compile(r"\S(?=\s)")
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


class TemplateRunsOver(PromptError):
    """The chat template does not end in time."""


def _as_transformers(message: dict[str, Any]) -> dict[str, Any]:
    """A message as transformers hands it to a template: no keys without a value, and a reasoning
    under the other name that templates know."""
    found = {key: value for key, value in message.items() if value is not None}
    if "reasoning_content" in found:
        found.setdefault("thinking", found["reasoning_content"])
    return found


def _is_text(token: dict[str, Any], model: dict[str, Any], written: str) -> bool:
    """Whether an added token is ordinary text that anybody may write: white space, or a piece of
    the model's own vocabulary (Gemma has <b> and <table>) that no template writes."""
    text = token["content"]
    if token.get("special"):
        return False
    if not text.strip():
        return True
    return text not in written and not OF_REASONING.search(text) and _in_vocabulary(token, model)


def _in_vocabulary(token: dict[str, Any], model: dict[str, Any]) -> bool:
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, dict):
        return token["content"] in vocabulary
    return 0 <= token["id"] < len(vocabulary)  # Unigram's list


def _unheard(token: dict[str, Any]) -> str:
    """A spelling that no text has, of an id that must not be given to another token."""
    return f"{MASK}{MASK}{token['id']}"


def _pieces(text: str) -> Iterator[str]:
    """A text cut before white space, about every PIECE characters."""
    start = 0
    while start < len(text):
        end = start + PIECE
        if end < len(text):
            cut = BLANK.search(text, end, end + PIECE)
            end = cut.start() + 1 if cut else end + PIECE
        yield text[start:end]
        start = end


class Prompts:
    """A model's chat template and tokenizer.

    Args:
        tokenizer_json: the text of tokenizer.json.
        template: the Jinja text of the chat template, or several by name.
        special: the tokens a template may name (`bos_token`, `eos_token`, ...).
        thinking: passed to the template under the names that templates know (`SWITCHES`).
        end_ids: token ids that end a completion.
        keep_reasoning: ask the template to leave earlier turns' reasoning in later prompts.
        variables: others to pass to the template.
        today: the date that it prints where it prints one.
        reasoning: the marks of a reasoning, where they are not to be found out.

    Attributes:
        reasoning, marks: what a reasoning is written with, None for a model without.
        switches: those of `SWITCHES` that the template reads.
        control_ids: ids that structure a conversation and are no text of a turn.

    Raises:
        ConfigError: the template is not valid; `thinking` contradicts what it writes; it leaves
            out the reasoning that is to be kept.
    """

    def __init__(
        self,
        tokenizer_json: str,
        template: str | Mapping[str, str],
        special: Mapping[str, Any],
        thinking: bool,
        end_ids: Sequence[int],
        keep_reasoning: bool = False,
        variables: Mapping[str, Any] | None = None,
        today: date | None = None,
        reasoning: Reasoning | None = None,
    ):
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self._json = tokenizer_json
        self._fast: Encode | None = None
        texts = {DEFAULT: template} if isinstance(template, str) else template
        raw = json.loads(tokenizer_json)
        tokens = raw.get("added_tokens", [])
        self.added = {t["content"]: t["id"] for t in tokens}
        marks = (reasoning.open, reasoning.close) if reasoning else ()
        written = "\0".join((*texts.values(), *marks))
        self._text_tokens = {t["content"] for t in tokens if _is_text(t, raw["model"], written)}
        self.spellings = Spellings(token for token in self.added if token not in self._text_tokens)
        self._templates = Templates(texts, self.spellings, today)
        self._variables = {**special, **(variables or {}), **dict.fromkeys(SWITCHES, thinking)}
        if keep_reasoning:
            self._variables |= KEEP_REASONING
        self.vocab_size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        self.end_ids = frozenset(end_ids)
        self._learn(reasoning, texts, thinking)
        self.control_ids = {t["id"] for t in tokens if t.get("special")}
        self.control_ids |= self.marks.control_ids if self.marks else set()
        if keep_reasoning and PROBE_REASONING not in self.render(PROBE_HISTORY):
            raise ConfigError(
                "model.history_reasoning: the chat template leaves earlier reasoning out even "
                f"with {', '.join(KEEP_REASONING)}; set it to `template`, or model.chat_template "
                "to a copy of the template that keeps it"
            )

    def _learn(self, reasoning: Reasoning | None, texts: Mapping[str, str], thinking: bool) -> None:
        """How the model reasons, and whether the template does as `model.thinking` says."""
        written = written_by(self._probe)
        self.switches = written.switches
        ends = [token for token, i in self.added.items() if i in self.end_ids]
        tokens = [token for token in self.added if token not in self._text_tokens]
        found = find_reasoning(written, texts.values(), tokens, ends)
        self.reasoning = reasoning.filled_up(found) if reasoning else found
        refused = contradiction(self.reasoning, written, thinking, self._templates.variables)
        if refused:
            raise ConfigError(refused)
        self.marks = None
        if self.reasoning is not None:
            control = {self.added[token] for token in tokens}
            self.marks = Marks(self.reasoning, self._encode_all, self.decode, control)

    def _probe(
        self, messages: Sequence[Mapping[str, Any]], answer_next: bool, switches: Mapping[str, bool]
    ) -> str | None:
        try:
            return self._render(messages, answer_next, NOTHING, switches)
        except TemplateRunsOver as error:
            raise ConfigError(f"model.chat_template: asked a plain question, {error}") from None
        except PromptError:
            return None

    @classmethod
    def from_config(cls, config: Config) -> "Prompts":
        model = config.model
        return cls(
            tokenizer_file(config).read_text(encoding="utf-8"),
            chat_templates(config),
            special_tokens(config),
            model.thinking,
            end_token_ids(config),
            model.history_reasoning == "keep",
            model.template_variables,
            model.date,
            Reasoning(**model.reasoning.model_dump()) if model.reasoning else None,
        )

    @cached_property
    def _plain(self) -> Tokenizer:
        """The tokenizer without control tokens: made when a text spells one."""
        raw = json.loads(self._json)
        # Ids go on where the last one ended, so a token outside the vocabulary keeps its place.
        raw["added_tokens"] = [
            token
            if token["content"] in self._text_tokens
            else {**token, "content": _unheard(token)}
            for token in raw.get("added_tokens", [])
            if self._text_tokens
            and (token["content"] in self._text_tokens or not _in_vocabulary(token, raw["model"]))
        ]
        return Tokenizer.from_str(json.dumps(raw))

    def hasten(self) -> bool:
        """Encode four times as fast from now on, where the tokenizer allows it; costs seconds and
        memory to prepare, so it pays for many texts. Returns whether it does."""
        self._fast = None if self._text_tokens else fast_bpe(self._json, self.tokenizer)
        return self._fast is not None

    # ---- to ids ----

    def render(
        self, messages: Sequence[Message], answer_next: bool = True, given: Given = NOTHING
    ) -> str:
        """The template's text, spellings of control tokens in what it is given masked.

        Raises:
            PromptError: the template refuses the conversation.
        """
        return self._render(messages, answer_next, given, {})

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        answer_next: bool,
        given: Given,
        switches: Mapping[str, bool],
    ) -> str:
        variables = {
            **{k: v for k, v in self._variables.items() if not switches or k not in SWITCHES},
            **switches,
            "add_generation_prompt": answer_next,
            **self.spellings.masked(given.variables()),
        }
        masked = [self.spellings.masked(message) for message in messages]
        turns = [_as_transformers(message) for message in masked]
        try:
            return self._templates.render({**variables, "messages": turns})
        except ConfigError:
            raise
        except TimeoutError as error:
            raise TemplateRunsOver(f"the chat template does not end: {error}") from None
        except Exception as error:  # a template can raise anything its expressions can
            if any("content" not in m for m in turns):
                # Many templates need one even beside calls; SGLang gives an empty one.
                filled = [
                    {**message, "content": message.get("content") or ""} for message in masked
                ]
                return self._render(filled, answer_next, given, switches)
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

    def _encode_all(self, text: str) -> list[int]:
        """Ids of a text, control tokens included."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _encode_unmasked(self, text: str) -> list[int]:
        return self.encode_text(self.spellings.unmasked(text))

    def longer_than(self, rendered: str, limit: int) -> bool:
        """Whether a rendered text has more ids than `limit`. It is encoded in pieces, and no
        further than it takes to know; a piece more or less is an id or two."""
        count = 0
        for piece in _pieces(rendered):
            count += len(self.encode([piece])[0])
            if count > limit:
                return True
        return False

    # ---- back ----

    def decode(self, ids: Sequence[list[int]]) -> list[str]:
        """Texts of id sequences, control tokens spelled out."""
        return self.tokenizer.decode_batch(ids, skip_special_tokens=False)

    def opens_thinking(self, prompt_ids: Ids) -> bool:
        """Whether the prompt, a list or an array of ids, ends inside an open reasoning."""
        return self.marks is not None and self.marks.opened_by(prompt_ids)

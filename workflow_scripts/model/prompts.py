"""Prompts: a conversation through the model's chat template, whose ids codec.py makes."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.model.codec import Codec
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
    SWITCHES,
    Reasoning,
    contradiction,
    find_reasoning,
    written_by,
)
from workflow_scripts.model.template import Templates

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


REFUSED = "the chat template refuses it: "


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


class Prompts(Codec):
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
        texts = {DEFAULT: template} if isinstance(template, str) else template
        marks = (reasoning.open, reasoning.close) if reasoning else ()
        super().__init__(tokenizer_json, "\0".join((*texts.values(), *marks)))
        self._templates = Templates(texts, self.spellings, today)
        self._variables = {**special, **(variables or {}), **dict.fromkeys(SWITCHES, thinking)}
        if keep_reasoning:
            self._variables |= KEEP_REASONING
        self.end_ids = frozenset(end_ids)
        self._learn(reasoning, texts, thinking)
        self.control_ids = self.special_ids | (self.marks.control_ids if self.marks else set())
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
        found = find_reasoning(written, texts.values(), self.control, ends)
        self.reasoning = reasoning.filled_up(found) if reasoning else found
        refused = contradiction(self.reasoning, written, thinking, self._templates.variables)
        if refused:
            raise ConfigError(refused)
        self.marks = None
        if self.reasoning is not None:
            control = {*self.control.values()}
            self.marks = Marks(self.reasoning, self.encode_all, self.decode, control)

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
        turns = [_as_transformers(self.spellings.masked(message)) for message in messages]
        try:
            return self._templates.render({**variables, "messages": turns})
        except ConfigError:
            raise
        except TimeoutError as error:
            raise TemplateRunsOver(f"the chat template does not end: {error}") from None
        except Exception as error:  # a template can raise anything its expressions can
            if any("content" not in m for m in turns):
                # Many templates need one even beside calls; SGLang gives an empty one.
                filled = [{**turn, "content": turn.get("content") or ""} for turn in messages]
                return self._render(filled, answer_next, given, switches)
            raise PromptError(f"{REFUSED}{error}") from None

    def prompt_ids(self, messages: Sequence[Message], given: Given = NOTHING) -> list[int]:
        """Ids of the prompt that asks for the answer to the last message."""
        return self.encode([self.render(messages, given=given)])[0]

    def opens_thinking(self, prompt_ids: Ids) -> bool:
        """Whether the prompt, a list or an array of ids, ends inside an open reasoning."""
        return self.marks is not None and self.marks.opened_by(prompt_ids)

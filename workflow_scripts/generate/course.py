"""How a conversation goes on after an answer: with the next old turn, or not at all.

Said by the row, the answer and the configuration alone: a row that is taken from the journal and a
table that is written at the end come to the same.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.model.calls import Form, Unparsed, form_of, same_calls
from workflow_scripts.model.given import Given
from workflow_scripts.model.prompts import Message, Prompts, is_asked

ANSWERED = ("complete", "truncated_in_answer")  # classes of answers with a text to go on from
NO_FORM = (
    "audit.rules.tool_turns: the chat template writes calls of tools in no form known here, or not "
    "at all, so they cannot be found in what the model writes; set it to `keep`, which asks the "
    "plain answers only, or model.chat_template to a template that writes calls"
)


@dataclass(frozen=True, slots=True)
class Step:
    """An answer in its conversation.

    Args:
        message: as it stands in the history and in the tables.
        ended: why no old turn follows, although the answer is one; None where one can.
    """

    message: Message
    ended: str | None = None

    @property
    def calls(self) -> list[Any] | None:
        return self.message.get("tool_calls")


class Course:
    """What is asked, and what becomes of answers.

    Args:
        calls_too: whether the turns that call tools are asked as well.

    Raises:
        ConfigError: they are, and the form of the model's calls is not known.
    """

    def __init__(self, prompts: Prompts, calls_too: bool):
        self.prompts = prompts
        self.calls_too = calls_too
        if calls_too and self.form is None:
            raise ConfigError(NO_FORM)

    @classmethod
    def of(cls, config: Config, prompts: Prompts) -> "Course":
        return cls(prompts, config.audit.rules.asks_calls)

    @cached_property
    def form(self) -> Form | None:
        """In which the model writes calls."""
        return form_of(self.prompts)

    def asks(self, message: Message) -> bool:
        """Whether a turn is the model's to generate."""
        return is_asked(message, self.calls_too)

    def step(
        self,
        old: Message,
        reasoning: str | None,
        answer: str,
        kind: str,
        last: bool,
        tools: list[Any] | None,
    ) -> Step:
        """What becomes of an answer.

        Args:
            old: the turn in whose place it stands.
            reasoning, answer: its texts.
            kind: its class.
            last: whether the old conversation ends with that turn.
            tools: those that the row offers; None: calls are not looked for.
        """
        message: Message = {"role": "assistant", "content": answer}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if kind not in ANSWERED:
            return Step(message)
        found = self.form.read(answer, tools) if tools is not None and self.form else None
        recorded = old.get("tool_calls")
        if found is None:
            return Step(message, "no_call" if recorded and not last else None)
        if isinstance(found, Unparsed) or kind != "complete":  # cut: there may be more of them
            return Step(message, "calls_unparsed")
        # a call without a text has the old turn's way to say so: templates tell "" and null apart
        empty = old["content"] if not old["content"] else ""
        message |= {"content": found.content or empty, "tool_calls": found.calls}
        if recorded and same_calls(found.calls, recorded):
            message["tool_calls"] = [*map(_as_recorded, found.calls, recorded)]
            return Step(message)
        if last:
            return Step(message)
        return Step(message, "calls_differ" if recorded else "call_not_recorded")


def tools_of(conversation: list[Message], given: Given) -> list[Any] | None:
    """The tools that a row offers, as `Course.step` takes them: an empty list where it shows calls
    without offering tools, None where it has nothing to do with tools."""
    if given.tools:
        return given.tools
    shown = any(m["role"] == "tool" or m.get("tool_calls") for m in conversation)
    return [] if shown else None


def _as_recorded(call: dict[str, Any], recorded: Any) -> dict[str, Any]:
    """A call under the id that the recorded result names."""
    own = {name: value for name, value in call.items() if name != "id"}
    known = recorded.get("id") if isinstance(recorded, dict) else None
    return own if known is None else {"id": known, **own}

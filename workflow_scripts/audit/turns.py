"""What the chat template makes of a response."""

from typing import Any

from workflow_scripts.input.turn import Turn
from workflow_scripts.model.prompts import Message, PromptError, Prompts

SHORT_CHARS = 200  # texts up to this length are encoded once and remembered
REMEMBERED = 200_000

PROBE = {"role": "user", "content": "Hello"}
# Responses without white space at their ends, as a template could treat them in ways of its own.
PROBES = (
    "a",
    "42.",
    "one\n\ntwo",
    "{{ x }} {% y %}",
    "# *b* `c`",
    "<a>&amp;</a>",
    "é東😀",
    "a" * 999,
)


class AssistantTurns:
    """What the template makes of a response: the text after the assistant's header, as training
    would see it. The empty response of a Qwen template is an empty reasoning and the end token,
    six tokens.

    Most templates write a response without reasoning between two fixed texts; where a few odd
    responses show that this one does, nothing has to be rendered for the others.
    """

    def __init__(self, prompts: Prompts):
        self.prompts = prompts
        self.before = prompts.render([PROBE], answer_next=False)
        opener = prompts.render([PROBE])[len(self.before) :]
        marks = prompts.reasoning
        self.header = self.before + (marks.before(opener) if marks else opener)
        # a content that spells one may be taken apart by the template
        self._marks = (marks.open.strip(), marks.close.strip()) if marks else ()
        self._known: dict[tuple[str | None, str], str] = {}
        self._around: tuple[str, str] | None = None
        before, _, after = self._rendered(None, "Hello").partition("Hello")
        if all(self._rendered(None, t) == before + t + after for t in PROBES):
            self._around = (before, after)

    def text(self, turn: Turn) -> str:
        """The rendered response; a missing one is rendered as an empty one."""
        content = turn.content or ""
        if turn.tool_calls:
            return self._rendered(turn.reasoning, content, turn.tool_calls)
        plain = turn.reasoning is None and content.strip() == content != ""
        if self._around and plain and not any(mark in content for mark in self._marks):
            return self._around[0] + self.prompts.spellings.masked(content) + self._around[1]
        key = (turn.reasoning, content)
        if (known := self._known.get(key)) is None:
            known = self._rendered(*key)
            if len(content) <= SHORT_CHARS and len(self._known) < REMEMBERED:
                self._known[key] = known
        return known

    def _rendered(self, reasoning: str | None, content: str, calls: list[Any] | None = None) -> str:
        message: Message = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = calls
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        try:
            whole = self.prompts.render([PROBE, message], answer_next=False)
        except PromptError:  # a template that refuses it: the text alone
            return self.prompts.spellings.masked(content)
        if whole.startswith(self.header):
            return whole[len(self.header) :]
        return whole.removeprefix(self.before)  # it writes the turn otherwise than it asks for it


def as_turn(message: dict[str, Any]) -> Turn:
    """A message of rows.parquet or of a tokenized row, tool calls aside."""
    return Turn(message["role"], message["content"], message.get("reasoning_content"))

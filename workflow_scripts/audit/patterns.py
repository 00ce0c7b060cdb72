"""What the chat template does with the input's conversations: which it refuses, what it leaves out.

Conversations with the same roles, calls and tools are one pattern, and a pattern is rendered once.
Rows that are more than text (tools, calls, documents) and those of a pattern that was refused are
each rendered for themselves, since a template looks into them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workflow_scripts.input.conversation import Conversation
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.turn import Turn
from workflow_scripts.model.given import NOTHING, Given
from workflow_scripts.model.prompts import Message, PromptError, Prompts, TemplateRunsOver

Key = tuple[tuple[tuple[str, int], ...], bool, bool]

# Words that stand for what a row holds, in a conversation of its pattern: none is part of another.
WORDS = {
    "system prompts": "qzsystemzq",
    "user turns": "qzuserzq",
    "earlier answers": "qzanswerzq",
    "calls of tools": "qzcallzq",
    "arguments of calls": "qzargumentzq",
    "results of tools": "qzresultzq",
    "tools": "qztoolzq",
    "documents": "qzdocumentzq",
}
OF_ROLE = {"system": "system prompts", "user": "user turns", "tool": "results of tools"}
PLAIN: Key = ((("user", 0), ("assistant", 0)), False, False)
CALL_ID = "qzcallid1"  # nine letters and digits, the form that Mistral's templates ask for


@dataclass(frozen=True, slots=True)
class Pattern:
    """What the template does with conversations of a pattern: its words where it refuses the first
    one, and which kinds of content (`WORDS`) it never writes. `endless`: it did not come to an end,
    and is not asked again, since each time costs the whole time limit."""

    refusal: str | None
    left_out: tuple[str, ...]
    endless: bool = False


class Patterns:
    """The patterns of the conversations that went by.

    Args:
        prompts: the model's template.
    """

    def __init__(self, prompts: Prompts):
        self.prompts = prompts
        self._known: dict[Key, Pattern] = {}

    def check(self, conversation: Conversation) -> tuple[str, ...]:
        """The kinds of content of a conversation that the template leaves out.

        Raises:
            Reject: the template refuses the conversation.
        """
        key = _key(conversation)
        known = self._known.get(key)
        more = key is not PLAIN and (key[1] or key[2] or any(calls for _, calls in key[0]))
        if known is not None and known.endless:
            raise Reject("template_refused", str(known.refusal))
        if known is None or known.refusal or more:
            refusal, endless = self._refusal(conversation)
            if known is None or endless:
                left_out = () if refusal else self._left_out(conversation)
                known = self._known[key] = Pattern(refusal, left_out, endless)
            if refusal:
                raise Reject("template_refused", refusal)
        return known.left_out

    def _refusal(self, conversation: Conversation) -> tuple[str | None, bool]:
        """Why the template refuses a prompt of the conversation, the first or the last one that is
        to be answered; and whether that is for its time."""
        messages = [turn.as_dict() for turn in conversation.turns]
        asked = {id(turn) for turn in conversation.responses()}
        places = [n for n, turn in enumerate(conversation.turns) if id(turn) in asked]
        for at in sorted({places[0], places[-1]}):
            try:
                self.prompts.render(messages[:at], given=conversation.given)
            except PromptError as error:
                return str(error), isinstance(error, TemplateRunsOver)
        return None, False

    def _left_out(self, conversation: Conversation) -> tuple[str, ...]:
        """From a conversation of the same pattern that is made of known words."""
        turns = conversation.turns[:-1]  # the prompt of the last answer
        messages = list(_messages(turns))
        given, told = _given(conversation.given)
        there = {OF_ROLE[turn.role] for turn in turns if turn.role in OF_ROLE} | told
        if any(turn.role == "assistant" and not turn.tool_calls for turn in turns):
            there.add("earlier answers")
        if any(turn.tool_calls for turn in turns):
            there |= {"calls of tools", "arguments of calls"}
        try:
            text = self.prompts.render(messages, given=given)
        except PromptError:  # the template wants more of them than words
            return ()
        return tuple(kind for kind, word in WORDS.items() if kind in there and word not in text)


def _key(conversation: Conversation) -> Key:
    plain = len(conversation.turns) == 2 and conversation.given is NOTHING
    if plain and not conversation.turns[1].tool_calls:  # as nearly all rows
        return PLAIN
    turns = tuple((turn.role, min(len(turn.tool_calls or ()), 2)) for turn in conversation.turns)
    given = conversation.given
    return turns, given.tools is not None, given.documents is not None


def _messages(turns: list[Turn]) -> Iterator[Message]:
    for turn in turns:
        word = WORDS[OF_ROLE.get(turn.role, "earlier answers")]
        message: Message = {"role": turn.role, "content": word, **turn.origin}
        if turn.role == "tool":
            message["tool_call_id"] = CALL_ID
        if turn.tool_calls:
            function = {
                "name": WORDS["calls of tools"],
                "arguments": {"key": WORDS["arguments of calls"]},
            }
            message["content"] = ""
            message["tool_calls"] = [{"id": CALL_ID, "type": "function", "function": function}]
        yield message


def _given(given: Given) -> tuple[Given, set[str]]:
    """Tools and documents of words, where there are any; and their names in `WORDS`."""
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    told = set()
    if given.tools is not None:
        told.add("tools")
        parameters = {"type": "object", "properties": {"key": {"type": "string"}}}
        function = {"name": WORDS["tools"], "description": "-", "parameters": parameters}
        tools = [{"type": "function", "function": function}]
    if given.documents is not None:
        told.add("documents")
        word = WORDS["documents"]
        first = given.documents[0] if given.documents else {}
        named = first if isinstance(first, dict) else {}
        documents = [{name: word for name in named} or {"title": word, "text": word}]
    return Given(tools, documents), told

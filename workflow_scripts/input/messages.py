"""One list of a record as turns: messages with roles, pairs, or texts of user and assistant."""

from typing import Any

from workflow_scripts.config.audit import Rules
from workflow_scripts.input.contents import kind_of, reasoning_of, text_of
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.tool_calls import (
    checked_calls,
    legacy_call,
    spelled_calls,
    tool_text,
    without_nulls,
)
from workflow_scripts.input.turn import Turn

# Roles as datasets spell them, in any case. Anything else is rejected, never guessed.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "chatgpt": "assistant",
    "ai": "assistant",
    "llm": "assistant",
}
CALL_ROLES = {"function_call", "tool_call", "tool_calls"}
TOOL_ROLES = CALL_ROLES | {"tool", "function", "observation", "ipython", "tool_response"}


class MessageReader:
    """Reads lists into turns, as they are.

    Args:
        rules: whether tool turns are kept.
        used: gets the names of the declared rules that were applied.
    """

    def __init__(self, rules: Rules, used: list[str]):
        self.rules = rules
        self.used = used

    def turns(self, value: Any, key: str) -> list[Turn]:
        """The turns of the list in column `key`, whose name decides what a list of texts means.

        Raises:
            Reject: it is no list, an empty one, or one with an element that is no turn.
        """
        if not isinstance(value, list):
            raise Reject("bad_content", f"`{key}` is a {kind_of(value)}, not a list")
        if not value:
            raise Reject("empty_conversation", f"`{key}` is an empty list")
        name = key.rsplit(".", 1)[-1]
        if name not in ("messages", "conversations"):
            if are_pairs(value):
                value = [text for pair in value for text in pair]
                return [_spoken(text, key, index) for index, text in enumerate(value)]
            if are_texts(value) and name != "conversation":
                if name == "turns":  # a user's only, the answers are wanted
                    value = [text for item in value for text in (item, None)]
                return [_spoken(text, key, index) for index, text in enumerate(value)]
        order = ("from", "role") if name == "conversations" else ("role", "from")
        return [self._message(item, f"{key}[{i}]", order) for i, item in enumerate(value)]

    def _message(self, item: Any, where: str, order: tuple[str, str]) -> Turn:
        if not isinstance(item, dict):
            raise Reject("bad_content", f"{where} is a {kind_of(item)}, not an object")
        # ShareGPT keys inside `messages`, and the other way round, are common
        name = next((item[key] for key in order if item.get(key) is not None), None)
        if not isinstance(name, str):
            raise Reject("unknown_role", f"{where} has no role")
        texts = ("value", "content") if order[0] == "from" else ("content", "value")
        content = next((item[key] for key in texts if item.get(key) is not None), None)
        spelled = name.lower()
        calls = without_nulls(item.get("tool_calls")) or legacy_call(item)
        if spelled in TOOL_ROLES or calls:
            if self.rules.tool_turns == "reject":
                raise Reject("tool_turn", f"{where} is a tool turn ({name})")
            self.used.append("tool_turns")
            return _tool_turn(item, spelled, content, calls, where)
        role = ROLES.get(spelled)
        if role is None:
            known = ", ".join(sorted(ROLES))
            raise Reject("unknown_role", f"{where} has the role {name!r}; known: {known}")
        if spelled == "developer":
            self.used.append("developer_as_system")
        if role == "assistant":
            return assistant_turn(content, where, reasoning_of(item))
        if content is None:
            raise Reject("null_content", f"{where} ({role}) has no content")
        return Turn(role, text_of(content, where))


# ---- what a list holds --------------------------------------------------------------------------


def are_messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and isinstance(value[0], dict)
        and any(isinstance(value[0].get(key), str) for key in ("role", "from"))
    )


def are_pairs(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    )


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


# ---- single turns -------------------------------------------------------------------------------


def assistant_turn(content: Any, where: str, reasoning: str | None) -> Turn:
    """An assistant's turn; reasoning beside the content counts before reasoning in its parts."""
    if content is None:
        return Turn("assistant", None, reasoning)
    thoughts: list[str] = []
    text = text_of(content, where, thoughts)
    return Turn("assistant", text, reasoning or "\n\n".join(thoughts) or None)


def _spoken(text: Any, key: str, index: int) -> Turn:
    """A turn of a list that names no roles: user and assistant take turns."""
    where = f"{key}, text {index}"
    if index % 2:
        return assistant_turn(text, where, None)
    if text is None:
        raise Reject("null_content", f"{where} (user) has no content")
    return Turn("user", text_of(text, where))


def _tool_turn(item: dict[str, Any], role: str, content: Any, calls: Any, where: str) -> Turn:
    if role in CALL_ROLES:
        return Turn("assistant", None, tool_calls=spelled_calls(content, where))
    if role in TOOL_ROLES:
        keys = ("name", "tool_call_id")
        origin = {key: item[key] for key in keys if isinstance(item.get(key), str)}
        return Turn("tool", tool_text(content, where), origin=origin)
    if ROLES.get(role) != "assistant":
        raise Reject("tool_turn", f"{where}: a {role} turn calls tools")
    turn = assistant_turn(content, where, reasoning_of(item))
    turn.tool_calls = checked_calls(calls, where)
    return turn

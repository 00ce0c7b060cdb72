"""One list of a record as turns: messages with roles, pairs, or texts of user and assistant."""

from typing import Any

from workflow_scripts.config.audit import Rules
from workflow_scripts.input.contents import text_of
from workflow_scripts.input.media import check_columns
from workflow_scripts.input.reasoning import reasoning_of
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.tool_calls import calls_of, checked_calls, spelled_calls, tool_text
from workflow_scripts.input.tools import TOOL_COLUMNS
from workflow_scripts.input.turn import Turn
from workflow_scripts.input.values import Told, from_json, is_nothing, kind_of

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
        told: gets the rules that were applied, and the keys that none used.

    `tools`: place and value of the schemas that stand in system messages.
    """

    def __init__(self, rules: Rules, told: Told):
        self.rules = rules
        self.told = told
        self.tools: list[tuple[str, Any]] = []

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
                return [self._spoken(text, key, index) for index, text in enumerate(value)]
            if are_texts(value) and name != "conversation":
                if name == "turns":  # a user's only, the answers are wanted
                    value = [text for item in value for text in (item, None)]
                return [self._spoken(text, key, index) for index, text in enumerate(value)]
        order = ("from", "role") if name == "conversations" else ("role", "from")
        return [self._message(item, f"{key}[{i}]", order) for i, item in enumerate(value)]

    def _message(self, item: Any, where: str, order: tuple[str, str]) -> Turn:
        if isinstance(item, str) and isinstance(found := from_json(item), dict):
            self.told.used.append("json_text_decoded")
            item = found
        if not isinstance(item, dict):
            raise Reject("bad_content", f"{where} is a {kind_of(item)}, not an object")
        # ShareGPT keys inside `messages`, and the other way round, are common
        speaker = next((key for key in order if item.get(key) is not None), order[0])
        name = item.get(speaker)
        if not isinstance(name, str):
            raise Reject("unknown_role", f"{where} has no role")
        check_columns(item, where)
        texts = ("value", "content") if order[0] == "from" else ("content", "value")
        holder = next((key for key in texts if item.get(key) is not None), texts[0])
        turn, known = self._turn(item, name, item.get(holder), where, f".{holder}")
        self.told.ignore(item, {speaker, holder, *known}, where)
        return turn

    def _turn(
        self, item: dict[str, Any], name: str, content: Any, where: str, parts: str
    ) -> tuple[Turn, set[str]]:
        """A message's turn, and the keys that were read beside its role and content."""
        spelled = name.lower()
        calls = calls_of(item)
        if spelled in TOOL_ROLES or calls is not None:
            if self.rules.tool_turns == "reject":
                raise Reject("tool_turn", f"{where} is a tool turn ({name})")
            self.told.used.append("tool_turns")
            return self._tool_turn(item, spelled, content, calls, where, parts)
        role = ROLES.get(spelled)
        if role is None:
            known = ", ".join(sorted(ROLES))
            raise Reject("unknown_role", f"{where} has the role {name!r}; known: {known}")
        if spelled == "developer":
            self.told.used.append("developer_as_system")
        if role == "assistant":
            reasoning, read = reasoning_of(item, where, self.told)
            return assistant_turn(content, where, reasoning, self.told, parts), read
        if content is None:
            raise Reject("null_content", f"{where} ({role}) has no content")
        read = self._system_tools(item, where) if role == "system" else set()
        return Turn(role, text_of(content, where, self.told, parts=parts)), read

    def _system_tools(self, item: dict[str, Any], where: str) -> set[str]:
        key = next((key for key in TOOL_COLUMNS if not is_nothing(item.get(key))), None)
        if key is None or self.tools:
            return set()
        self.tools.append((f"{where}.{key}", item[key]))
        return {key}

    def _spoken(self, text: Any, key: str, index: int) -> Turn:
        """A turn of a list that names no roles: user and assistant take turns."""
        where = f"{key}, text {index}"
        if index % 2:
            return assistant_turn(text, where, None, self.told)
        if text is None:
            raise Reject("null_content", f"{where} (user) has no content")
        return Turn("user", text_of(text, where, self.told))

    def _tool_turn(
        self, item: dict[str, Any], role: str, content: Any, calls: Any, where: str, parts: str
    ) -> tuple[Turn, set[str]]:
        if role in CALL_ROLES:
            return Turn("assistant", None, tool_calls=spelled_calls(content, where)), set()
        if role in TOOL_ROLES:
            keys = ("name", "tool_call_id")
            origin = {key: item[key] for key in keys if isinstance(item.get(key), str)}
            text = tool_text(content, where, self.told, parts)
            return Turn("tool", text, origin=origin), {*origin}
        if ROLES.get(role) != "assistant":
            raise Reject("tool_turn", f"{where}: a {role} turn calls tools")
        reasoning, read = reasoning_of(item, where, self.told)
        turn = assistant_turn(content, where, reasoning, self.told, parts)
        turn.tool_calls = checked_calls(calls, where)
        used = "function_call" if is_nothing(item.get("tool_calls")) else "tool_calls"
        return turn, {*read, used}


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


def assistant_turn(
    content: Any, where: str, reasoning: str | None, told: Told, parts: str = ""
) -> Turn:
    """An assistant's turn; reasoning beside the content counts before reasoning in its parts."""
    if content is None:
        return Turn("assistant", None, reasoning)
    thoughts: list[str] = []
    text = text_of(content, where, told, thoughts, parts)
    if reasoning and thoughts:
        told.ignore({"thinking": thoughts}, (), f"{where}{parts}[]")
    return Turn("assistant", text, reasoning or "\n\n".join(thoughts) or None)

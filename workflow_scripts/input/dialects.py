"""The turns of a record in any of the forms that datasets use, before any rule is applied."""

from typing import Any

from workflow_scripts.config.audit import Columns, Rules
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
LISTS = ("messages", "conversations", "conversation")
# Lists that are conversations only where nothing else is: the names are common.
OTHER_LISTS = ("items", "dialogue", "dialog", "turns", "data")
PROMPT_COLUMNS = ("prompt", "question", "query")
RESPONSE_COLUMNS = ("response", "completion", "answer", "output", "chosen")
SYSTEM_COLUMNS = ("system", "system_prompt")


class TurnReader:
    """Finds a record's turns, as they are."""

    def __init__(self, record: dict[str, Any], rules: Rules, columns: Columns, used: list[str]):
        self.record = record
        self.rules = rules
        self.columns = columns
        self.used = used

    def turns(self) -> list[Turn]:
        record = self.record
        if name := self.columns.messages:
            return self._with_columns(self._list(self._named(name), name), name)
        if name := self.columns.prompt:
            return self._with_columns(self._prompt(self._named(name), name), name, True)
        for key in LISTS:
            if record.get(key) is not None:
                return self._with_columns(self._list(record[key], key), key)
        if isinstance(record.get("instruction"), str):
            return self._with_columns(self._instruction(), "instruction", True)
        for key in PROMPT_COLUMNS:
            if record.get(key) is not None:
                return self._with_columns(self._prompt(record[key], key), key, True)
        if _are_messages(record.get("chosen")):
            return self._with_columns(self._list(record["chosen"], "chosen"), "chosen")
        for key in OTHER_LISTS:
            if any(are(record.get(key)) for are in (_are_messages, _are_pairs, _are_texts)):
                return self._with_columns(self._list(record[key], key), key)
        for key in LISTS:
            if key in record:
                raise Reject("null_conversation", f"`{key}` is null")
        for key in PROMPT_COLUMNS:
            if key in record:
                raise Reject("bad_content", f"`{key}` is a null, not text")
        names = ", ".join(sorted(record)[:8]) or "none"
        raise Reject("no_conversation", f"no known conversation or prompt column; columns: {names}")

    def _named(self, name: str) -> Any:
        value = _at(self.record, name)
        if value is None:
            names = ", ".join(sorted(self.record)[:8]) or "none"
            raise Reject("missing_column", f"no column `{name}`, or null; columns: {names}")
        return value

    def _instruction(self) -> list[Turn]:
        if isinstance(given := self.record.get("instances"), list) and given:
            self._take_instance(given)
        extra = self.record.get("input") or ""
        if not isinstance(extra, str):
            raise Reject("bad_content", f"`input` is a {type(extra).__name__}, not text")
        prompt = self.record["instruction"] + (f"\n\n{extra}" if extra else "")
        history = self.record.get("history")
        turns = self._list(history, "history") if _are_pairs(history) else []
        return [*turns, Turn("user", text_of(prompt, "instruction"))]

    def _take_instance(self, given: list[Any]) -> None:
        """Self-Instruct lists inputs with their outputs beside an instruction: the first counts."""
        first = given[0]
        if isinstance(first, dict) and not any(k in self.record for k in ("input", "output")):
            known = {key: first[key] for key in ("input", "output") if key in first}
            self.record = {**self.record, **known}
            if len(given) > 1:
                self.used.append("first_instance_taken")

    def _prompt(self, value: Any, key: str) -> list[Turn]:
        if _are_messages(value):
            return self._list(value, key)
        if not isinstance(value, str):
            raise Reject("bad_content", f"`{key}` is a {kind_of(value)}, not text")
        return [Turn("user", text_of(value, key))]

    def _with_columns(self, turns: list[Turn], key: str, prompt: bool = False) -> list[Turn]:
        """Add the response beside a prompt, and the system prompt beside anything."""
        name = self.columns.response
        if name or prompt:
            names = [name] if name else [k for k in RESPONSE_COLUMNS if k != key]
            turns = self._with_response(turns, names)
        names = [self.columns.system] if self.columns.system else list(SYSTEM_COLUMNS)
        name, value = self._first(names)
        if not value:
            return turns
        text = text_of(value, name)
        if all(turn.role != "system" for turn in turns):
            return [Turn("system", text), *turns]
        if all(turn.content != text for turn in turns):
            self.used.append("system_column_ignored")
        return turns

    def _with_response(self, turns: list[Turn], names: list[str]) -> list[Turn]:
        name, value = self._first(names)
        if _are_messages(value):
            answer = self._list(value, name)
            # `chosen` of preference data often repeats the prompt
            return answer if any(turn.role == "user" for turn in answer) else turns + answer
        reasoning = reasoning_of(self.record)
        if self.columns.reasoning:
            value_at = _at(self.record, self.columns.reasoning)
            reasoning = None if value_at is None else text_of(value_at, self.columns.reasoning)
        if value is None and reasoning is None:
            return turns
        return [*turns, self._assistant(value, name, reasoning)]

    def _first(self, names: list[str]) -> tuple[str, Any]:
        found = ((name, _at(self.record, name)) for name in names)
        return next((pair for pair in found if pair[1] is not None), (names[0], None))

    def _list(self, value: Any, key: str) -> list[Turn]:
        if not isinstance(value, list):
            raise Reject("bad_content", f"`{key}` is a {kind_of(value)}, not a list")
        if not value:
            raise Reject("empty_conversation", f"`{key}` is an empty list")
        name = key.rsplit(".", 1)[-1]
        if name not in ("messages", "conversations"):
            if _are_pairs(value):
                value = [text for pair in value for text in pair]
                return [self._spoken(text, key, index) for index, text in enumerate(value)]
            if _are_texts(value) and name != "conversation":
                if name == "turns":  # a user's only, the answers are wanted
                    value = [text for item in value for text in (item, None)]
                return [self._spoken(text, key, index) for index, text in enumerate(value)]
        order = ("from", "role") if name == "conversations" else ("role", "from")
        return [self._message(item, f"{key}[{i}]", order) for i, item in enumerate(value)]

    def _spoken(self, text: Any, key: str, index: int) -> Turn:
        """A turn of a list that names no roles: user and assistant take turns."""
        where = f"{key}, text {index}"
        if index % 2:
            return self._assistant(text, where, None)
        if text is None:
            raise Reject("null_content", f"{where} (user) has no content")
        return Turn("user", text_of(text, where))

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
            return self._tool_turn(item, spelled, content, calls, where)
        role = ROLES.get(spelled)
        if role is None:
            known = ", ".join(sorted(ROLES))
            raise Reject("unknown_role", f"{where} has the role {name!r}; known: {known}")
        if spelled == "developer":
            self.used.append("developer_as_system")
        if role == "assistant":
            return self._assistant(content, where, reasoning_of(item))
        if content is None:
            raise Reject("null_content", f"{where} ({role}) has no content")
        return Turn(role, text_of(content, where))

    def _assistant(self, content: Any, where: str, reasoning: str | None) -> Turn:
        if content is None:
            return Turn("assistant", None, reasoning)
        thoughts: list[str] = []
        text = text_of(content, where, thoughts)
        return Turn("assistant", text, reasoning or "\n\n".join(thoughts) or None)

    def _tool_turn(
        self, item: dict[str, Any], role: str, content: Any, calls: Any, where: str
    ) -> Turn:
        if role in CALL_ROLES:
            return Turn("assistant", None, tool_calls=spelled_calls(content, where))
        if role in TOOL_ROLES:
            keys = ("name", "tool_call_id")
            origin = {key: item[key] for key in keys if isinstance(item.get(key), str)}
            return Turn("tool", tool_text(content, where), origin=origin)
        if ROLES.get(role) != "assistant":
            raise Reject("tool_turn", f"{where}: a {role} turn calls tools")
        turn = self._assistant(content, where, reasoning_of(item))
        turn.tool_calls = checked_calls(calls, where)
        return turn


def _at(record: dict[str, Any], name: str) -> Any:
    """A column's value; a dotted name reaches into objects."""
    if name in record:
        return record[name]
    value: Any = record
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _are_messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and isinstance(value[0], dict)
        and any(isinstance(value[0].get(key), str) for key in ("role", "from"))
    )


def _are_pairs(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)

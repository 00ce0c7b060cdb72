"""The turns of a record in any of the forms that datasets use, before any rule is applied."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from workflow_scripts.config_audit import Columns, Rules

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
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "reasoning_text", "thought")
REASONING_PARTS = ("thinking", "reasoning")


class Reject(Exception):
    """A row that cannot be used: a reason class and a message."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(slots=True)
class Turn:
    """`content` None stands for a missing assistant response, or for none beside `tool_calls`.
    `origin` holds what a tool turn says of its call: `name` and `tool_call_id`."""

    role: str
    content: str | None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    origin: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"role": self.role, "content": self.content, **self.origin}
        if self.reasoning is not None:
            found["reasoning_content"] = self.reasoning
        if self.tool_calls:
            found["tool_calls"] = self.tool_calls
        return found


class Reader:
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
        return [*turns, Turn("user", _text(prompt, "instruction"))]

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
            raise Reject("bad_content", f"`{key}` is a {_kind(value)}, not text")
        return [Turn("user", _text(value, key))]

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
        text = _text(value, name)
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
        reasoning = _reasoning(self.record)
        if self.columns.reasoning:
            value_at = _at(self.record, self.columns.reasoning)
            reasoning = None if value_at is None else _text(value_at, self.columns.reasoning)
        if value is None and reasoning is None:
            return turns
        return [*turns, self._assistant(value, name, reasoning)]

    def _first(self, names: list[str]) -> tuple[str, Any]:
        found = ((name, _at(self.record, name)) for name in names)
        return next((pair for pair in found if pair[1] is not None), (names[0], None))

    def _list(self, value: Any, key: str) -> list[Turn]:
        if not isinstance(value, list):
            raise Reject("bad_content", f"`{key}` is a {_kind(value)}, not a list")
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
        return Turn("user", _text(text, where))

    def _message(self, item: Any, where: str, order: tuple[str, str]) -> Turn:
        if not isinstance(item, dict):
            raise Reject("bad_content", f"{where} is a {_kind(item)}, not an object")
        # ShareGPT keys inside `messages`, and the other way round, are common
        name = next((item[key] for key in order if item.get(key) is not None), None)
        if not isinstance(name, str):
            raise Reject("unknown_role", f"{where} has no role")
        texts = ("value", "content") if order[0] == "from" else ("content", "value")
        content = next((item[key] for key in texts if item.get(key) is not None), None)
        spelled = name.lower()
        calls = _without_nulls(item.get("tool_calls")) or _legacy_call(item)
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
            return self._assistant(content, where, _reasoning(item))
        if content is None:
            raise Reject("null_content", f"{where} ({role}) has no content")
        return Turn(role, _text(content, where))

    def _assistant(self, content: Any, where: str, reasoning: str | None) -> Turn:
        if content is None:
            return Turn("assistant", None, reasoning)
        thoughts: list[str] = []
        text = _text(content, where, thoughts)
        return Turn("assistant", text, reasoning or "\n\n".join(thoughts) or None)

    def _tool_turn(
        self, item: dict[str, Any], role: str, content: Any, calls: Any, where: str
    ) -> Turn:
        if role in CALL_ROLES:
            return Turn("assistant", None, tool_calls=_spelled_calls(content, where))
        if role in TOOL_ROLES:
            keys = ("name", "tool_call_id")
            origin = {key: item[key] for key in keys if isinstance(item.get(key), str)}
            return Turn("tool", _tool_text(content, where), origin=origin)
        if ROLES.get(role) != "assistant":
            raise Reject("tool_turn", f"{where}: a {role} turn calls tools")
        turn = self._assistant(content, where, _reasoning(item))
        turn.tool_calls = _checked_calls(calls, where)
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


def _reasoning(item: dict[str, Any]) -> str | None:
    for key in REASONING_KEYS:
        if isinstance(item.get(key), str) and item[key]:
            return item[key]
    return None


def _text(content: Any, where: str, thoughts: list[str] | None = None) -> str:
    """A content's text. Parts that are an assistant's reasoning go to `thoughts`."""
    if isinstance(content, str):
        _check_unicode(content, where)
        return content
    if not isinstance(content, list):
        raise Reject("bad_content", f"{where}: content is a {_kind(content)}, not text")
    texts = []
    for part in content:
        kind = part.get("type", "unknown") if isinstance(part, dict) else _kind(part)
        if isinstance(part, str):
            texts.append(part)
        elif thoughts is not None and kind in REASONING_PARTS:
            thought = next((part[k] for k in (kind, "text") if isinstance(part.get(k), str)), "")
            thoughts.append(thought)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise Reject("not_text", f"{where}: a content part of type {kind} is not text")
    text = "".join(texts)
    _check_unicode(text, where)
    return text


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"{where}: a lone surrogate at character {error.start} is no text"
        raise Reject("invalid_encoding", message) from None


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


# ---- tools --------------------------------------------------------------------------------------


def _without_nulls(value: Any) -> Any:
    """Without the nulls that a table puts where an object lacks a key that others have."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _legacy_call(item: dict[str, Any]) -> list[Any] | None:
    """The one call that messages had before `tool_calls`."""
    call = _without_nulls(item.get("function_call"))
    return [{"type": "function", "function": call}] if call else None


def _spelled_calls(content: Any, where: str) -> list[Any]:
    """The calls that a turn of their own holds as JSON."""
    try:
        found = orjson.loads(content) if isinstance(content, str) else content
    except orjson.JSONDecodeError:
        found = None
    calls = []
    for call in found if isinstance(found, list) else [found]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Reject("bad_tool_call", f"{where} is no call in JSON with a name")
        calls.append({"type": "function", "function": function})
    return _checked_calls(calls, where)


def _checked_calls(calls: Any, where: str) -> list[Any]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Reject("bad_tool_call", f"{where}: `tool_calls` is no list of objects")
    _json(calls, where)
    return calls


def _tool_text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, list):
        try:
            return _text(content, where)
        except Reject:
            return _json(content, where)
    return _text(content, where) if isinstance(content, str) else _json(content, where)


def _json(value: Any, where: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise Reject("bad_content", f"{where}: {error}") from None

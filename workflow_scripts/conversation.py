"""One conversation out of any of the forms that datasets use, or the reason why not."""

import re
from dataclasses import dataclass, field
from typing import Any

from workflow_scripts.config import Rules
from workflow_scripts.identity import digest

# Roles as datasets spell them. Anything else is rejected, never guessed.
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
    "chatgpt": "assistant",
}
TOOL_ROLES = {"tool", "function", "function_call", "observation", "ipython", "tool_response"}
PROMPT_COLUMNS = ("prompt", "question", "query")
RESPONSE_COLUMNS = ("response", "completion", "answer", "output")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
THINK = re.compile(r"\A\s*<think>(.*?)</think>(.*)\Z", re.DOTALL)


class Reject(Exception):
    """A row that cannot be used: a reason class and a message."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(slots=True)
class Turn:
    """`content` None stands for a missing assistant response."""

    role: str
    content: str | None
    reasoning: str | None = None

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            found["reasoning_content"] = self.reasoning
        return found


@dataclass(slots=True)
class Conversation:
    """An optional system turn, then user and assistant turns in strict alternation, ending with
    an assistant turn (content None where the input has no response). `used` names the declared
    rules that were applied."""

    turns: list[Turn]
    used: list[str] = field(default_factory=list)

    def responses(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.role == "assistant"]


def read_conversation(record: dict[str, Any], rules: Rules) -> Conversation:
    """Bring a record to the one internal form.

    Raises:
        Reject: with the reason class that the audit counts.
    """
    used: list[str] = []
    return Conversation(_ordered(_turns(record, used), rules, used), used)


def _turns(record: dict[str, Any], used: list[str]) -> list[Turn]:
    for key, role_key, text_key in (
        ("messages", "role", "content"),
        ("conversations", "from", "value"),
        ("conversation", "role", "content"),
    ):
        if key in record:
            return _from_list(record[key], key, role_key, text_key, used)
    if isinstance(record.get("instruction"), str):
        extra = record.get("input") or ""
        if not isinstance(extra, str):
            raise Reject("bad_content", f"`input` is a {type(extra).__name__}, not text")
        prompt = record["instruction"] + (f"\n\n{extra}" if extra else "")
        return _from_columns(record, prompt)
    for key in PROMPT_COLUMNS:
        if key in record:
            if not isinstance(record[key], str):
                raise Reject("bad_content", f"`{key}` is a {_kind(record[key])}, not text")
            return _from_columns(record, record[key])
    names = ", ".join(sorted(record)[:8]) or "none"
    raise Reject("no_conversation", f"no known conversation or prompt column; columns: {names}")


def _from_columns(record: dict[str, Any], prompt: str) -> list[Turn]:
    turns = []
    if record.get("system"):
        turns.append(Turn("system", _text(record["system"], "system")))
    turns.append(Turn("user", prompt))
    for key in RESPONSE_COLUMNS:
        if key in record:
            text = None if record[key] is None else _text(record[key], key)
            turns.append(Turn("assistant", text, _reasoning(record)))
            break
    return turns


def _from_list(value: Any, key: str, role_key: str, text_key: str, used: list[str]) -> list[Turn]:
    if value is None:
        raise Reject("null_conversation", f"`{key}` is null")
    if not isinstance(value, list):
        raise Reject("bad_content", f"`{key}` is a {_kind(value)}, not a list")
    if not value:
        raise Reject("empty_conversation", f"`{key}` is an empty list")
    turns = []
    for index, item in enumerate(value):
        where = f"{key}[{index}]"
        if not isinstance(item, dict):
            raise Reject("bad_content", f"{where} is a {_kind(item)}, not an object")
        # ShareGPT keys inside `messages`, and the other way round, are common
        name = item.get(role_key, item.get("role", item.get("from")))
        if not isinstance(name, str):
            raise Reject("unknown_role", f"{where} has no role")
        if name.lower() in TOOL_ROLES or item.get("tool_calls"):
            raise Reject("tool_turn", f"{where} is a tool turn ({name})")
        role = ROLES.get(name.lower())
        if role is None:
            known = ", ".join(sorted(ROLES))
            raise Reject("unknown_role", f"{where} has the role {name!r}; known: {known}")
        if name.lower() == "developer":
            used.append("developer_as_system")
        content = item.get(text_key, item.get("content", item.get("value")))
        if content is None and role != "assistant":
            raise Reject("null_content", f"{where} ({role}) has no content")
        text = None if content is None else _text(content, where)
        turns.append(Turn(role, text, _reasoning(item) if role == "assistant" else None))
    return turns


def _reasoning(item: dict[str, Any]) -> str | None:
    for key in REASONING_KEYS:
        if isinstance(item.get(key), str) and item[key]:
            return item[key]
    return None


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        _check_unicode(content, where)
        return content
    if not isinstance(content, list):
        raise Reject("bad_content", f"{where}: content is a {_kind(content)}, not text")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type", "unknown") if isinstance(part, dict) else _kind(part)
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


def _ordered(turns: list[Turn], rules: Rules, used: list[str]) -> list[Turn]:
    """Apply the declared rules until the turns alternate."""
    head: list[Turn] = []
    rest = list(turns)
    while rest and rest[0].role == "system":
        turn = rest.pop(0)
        if head:
            _declared(rules.second_system, "second_system", "a second system turn", used)
            head[0].content = f"{head[0].content}\n\n{turn.content}"
        else:
            head.append(Turn(turn.role, turn.content))
    out: list[Turn] = []
    for turn in rest:
        if turn.role == "system":
            raise Reject("system_in_the_middle", "a system turn after the first other turn")
        previous = out[-1].role if out else None
        if turn.role == "assistant" and previous is None:
            what = "the first turn is an assistant's"
            _declared(rules.leading_assistant, "leading_assistant", what, used)
        elif turn.role == previous == "user":
            _declared(rules.repeated_user, "repeated_user", "two user turns in a row", used)
            out[-1].content = f"{out[-1].content}\n\n{turn.content}"
        elif turn.role == previous == "assistant":
            what = "two assistant turns in a row"
            _declared(rules.repeated_assistant, "repeated_assistant", what, used)
            if rules.repeated_assistant == "last":
                out[-1] = turn
            else:
                texts = [t for t in (out[-1].content, turn.content) if t]
                reasons = [t for t in (out[-1].reasoning, turn.reasoning) if t]
                out[-1] = Turn("assistant", "\n\n".join(texts), "\n\n".join(reasons) or None)
        else:
            out.append(Turn(turn.role, turn.content, turn.reasoning))
    users = [turn for turn in out if turn.role == "user"]
    if not users:
        raise Reject("no_user_turn", "the conversation has no user turn")
    for turn in users:
        if not (turn.content or "").strip():
            raise Reject("empty_prompt", "a user turn is empty or only white space")
    if out[-1].role == "user":
        out.append(Turn("assistant", None))
    for turn in out:
        if turn.role == "assistant":
            _split_reasoning(turn, rules, used)
    if head and not (head[0].content or "").strip():
        head = []
        used.append("empty_system_dropped")
    return head + out


def _declared(choice: str, name: str, what: str, used: list[str]) -> None:
    if choice == "reject":
        raise Reject(name, f"{what}; audit.rules.{name} is `reject`")
    used.append(name)


def _split_reasoning(turn: Turn, rules: Rules, used: list[str]) -> None:
    """Reasoning in think tags goes to its own field. Only a leading <think> counts: tags inside
    an answer are the answer's text."""
    text = turn.content
    if text is None or turn.reasoning is not None:
        return
    match = THINK.match(text)
    if match:
        turn.reasoning, turn.content = match[1].strip("\n"), match[2].lstrip("\n")
    elif text.count("</think>") == 1 and "<think>" not in text:
        what = "an old response closes a reasoning that it never opened"
        _declared(rules.reasoning_closer_only, "reasoning_closer_only", what, used)
        before, _, after = text.partition("</think>")
        turn.reasoning, turn.content = before.strip("\n"), after.lstrip("\n")


def prompt_hash(messages: list[dict[str, Any]]) -> str:
    """Hash of the system and user texts: equal for conversations that ask the same."""
    return digest(*(f"{m['role']}\n{m['content']}" for m in messages if m["role"] != "assistant"))

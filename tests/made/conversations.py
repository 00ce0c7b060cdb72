"""Messages, and records read as conversations."""

from typing import Any

import pytest

from workflow_scripts.config.audit import Columns, Rules
from workflow_scripts.input.conversation import read_conversation
from workflow_scripts.input.reject import Reject

RULES = Rules()
KEEP = Rules(tool_turns="keep")
ALL = Rules(tool_turns="regenerate")
NO_COLUMNS = Columns()

HI: list[tuple[str, str | None]] = [("user", "hi"), ("assistant", "hello")]
CALL = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
READ_CALL = {"type": "function", "function": {"name": "add", "arguments": {}}}  # as it is read


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def turns(
    record: Any, rules: Rules = RULES, columns: Columns = NO_COLUMNS
) -> list[tuple[str, str | None]]:
    """Role and content of the turns that a record has as a conversation."""
    return [(t.role, t.content) for t in read_conversation(record, rules, columns).turns]


def rejected(record: Any, rules: Rules = RULES, columns: Columns = NO_COLUMNS) -> tuple[str, str]:
    """Reason class and message of the record's reject."""
    with pytest.raises(Reject) as caught:
        read_conversation(record, rules, columns)
    assert caught.value.message
    return caught.value.reason, caught.value.message


def reason(record: Any, rules: Rules = RULES, columns: Columns = NO_COLUMNS) -> str:
    return rejected(record, rules, columns)[0]

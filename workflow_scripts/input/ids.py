"""The user's own id of a row."""

from typing import Any

import orjson

from workflow_scripts.input.values import value_at

ID_COLUMNS = ("id", "uuid", "question_id")


def user_id(record: dict[str, Any], column: str | None = None) -> str | None:
    """The user's own id as JSON text, so that 7 and "7" stay apart.

    Args:
        column: the path that the configuration names.
    """
    for path in (column,) if column else ID_COLUMNS:
        if (value := value_at(record, path)) is not None:
            return orjson.dumps(value, default=str).decode()
    return None

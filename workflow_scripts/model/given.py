"""What a row gives the chat template beside its messages: tools and documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

NAMES = ("tools", "documents")  # columns of the tables, variables of the template


@dataclass(frozen=True, slots=True)
class Given:
    """Each a list of objects, or None, which is what transformers passes where there are none."""

    tools: list[Any] | None = None
    documents: list[Any] | None = None

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> "Given":
        """From a table's row, where each is JSON text or null."""
        found = {name: row.get(name) for name in NAMES}
        if not any(found.values()):
            return NOTHING
        return cls(**{name: orjson.loads(text) if text else None for name, text in found.items()})

    def columns(self) -> dict[str, str | None]:
        """As a table's row holds it."""
        return {
            name: None if (value := getattr(self, name)) is None else orjson.dumps(value).decode()
            for name in NAMES
        }

    def variables(self) -> dict[str, list[Any] | None]:
        return {name: getattr(self, name) for name in NAMES}


NOTHING = Given()


def name_of(tool: Any) -> str:
    """A tool's name, as its schema says it."""
    function = tool.get("function", tool) if isinstance(tool, dict) else {}
    return str(function.get("name", "?")) if isinstance(function, dict) else "?"

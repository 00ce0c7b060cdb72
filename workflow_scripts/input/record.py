"""A record while its turns are looked for, with what was used of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workflow_scripts.config.audit import Columns
from workflow_scripts.input.messages import MessageReader, are_messages
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.values import Told, from_json, is_nothing, value_at


@dataclass(slots=True)
class Record:
    """A record while its turns are looked for.

    Args:
        values: by column.
        columns: those that the configuration names.
        reader: reads a list of it.
        told: gets what the reading tells.
        has_tools: whether the record has schemas of tools.
        taken: the paths that a rule used.
    """

    values: dict[str, Any]
    columns: Columns
    reader: MessageReader
    told: Told
    has_tools: bool = False
    taken: set[str] = field(default_factory=set)

    def take(self, name: str) -> Any:
        """The value of a column that a rule uses, None where there is none; a dotted name reaches
        into objects."""
        value = value_at(self.values, name)
        if value is not None:
            self.taken.add(name)
        return value

    def first(self, names: Sequence[str]) -> tuple[str, Any]:
        """The first of the columns that is not null, with its value; else the first name."""
        name = next((n for n in names if value_at(self.values, n) is not None), names[0])
        return name, self.take(name)

    def filled(self, names: Sequence[str]) -> tuple[str, Any] | None:
        """The first of the columns that holds something, with its value. Those before it are empty,
        and that is all that there is to know of them."""
        for name in names:
            if (name in self.values or "." in name) and not is_nothing(value := self.take(name)):
                return name, value
        return None

    def forced(self, name: str) -> Any:
        """The value of a column that the configuration names.

        Raises:
            Reject: there is none, or a null.
        """
        value = self.take(name)
        if value is None:
            names = some_names(self.values)
            raise Reject("missing_column", f"no column `{name}`, or null; columns: {names}")
        return value

    def decoded(self, value: Any) -> Any:
        """What JSON text holds, told as a rule; any other value as it is."""
        found = from_json(value)
        if found is not value:
            self.told.used.append("json_text_decoded")
        return found

    def messages(self, value: Any) -> Any:
        """Messages that stand there as JSON text; any other value as it is."""
        return self.decoded(value) if are_messages(from_json(value)) else value

    def tops(self) -> frozenset[str]:
        """The columns that were used. What objects hold beside the paths that were used in them is
        told as ignored."""
        tops = set()
        for path in self.taken:
            if path in self.values:
                tops.add(path)
            else:
                top = path.split(".")[0]
                tops.add(top)
                if top not in self.taken:
                    self._beside(self.values[top], top)
        return frozenset(tops)

    def _beside(self, value: dict[str, Any], where: str) -> None:
        inner = {path for path in self.taken if path.startswith(f"{where}.")}
        known = {path[len(where) + 1 :].split(".")[0] for path in inner}
        self.told.ignore(value, known, where)
        for key in known:
            if f"{where}.{key}" not in self.taken:
                self._beside(value[key], f"{where}.{key}")


def some_names(values: dict[str, Any]) -> str:
    return ", ".join(sorted(values)[:8]) or "none"

"""Values as records hold them: JSON text, a table's nulls, paths, and what is told of them."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import orjson

INDEX = re.compile(r"\[\d+\]|, text \d+")


@dataclass(slots=True)
class Told:
    """What a reading tells beside the turns.

    Args:
        used: names of the declared rules that were applied.
        ignored: keys below the columns that no rule used, as `messages[].weight`.
    """

    used: list[str] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set)

    def ignore(self, item: dict[str, Any], known: Collection[str], where: str) -> None:
        """Note the keys of an object that hold something and are not known.

        Args:
            where: the object's place, as `messages[3]`.
        """
        for key, value in item.items():
            if key not in known and not is_nothing(value):
                self.ignored.add(f"{INDEX.sub('[]', where)}.{key}")


def is_nothing(value: Any) -> bool:
    """Null, or an empty text, list or object."""
    return value is None or value == "" or value == [] or value == {}


def value_at(values: dict[str, Any], path: str) -> Any:
    """A column's value, None where there is none; a dotted name reaches into objects."""
    if path in values or "." not in path:
        return values.get(path)
    value: Any = values
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def from_json(value: Any) -> Any:
    """What a text holds as a JSON list or object; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def without_nulls(value: Any) -> Any:
    """Without the nulls that a table puts where an object lacks a key that others have. Those in
    lists are values, as in an enum."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def is_json(value: Any) -> bool:
    """Whether a value can be written as JSON text in UTF-8."""
    try:
        return bool(orjson.dumps(value))
    except TypeError:
        return False


def kind_of(value: Any) -> str:
    return "null" if value is None else type(value).__name__

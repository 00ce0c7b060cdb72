"""Keys of the input's records: which of them no rule uses, and what they hold."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from workflow_scripts.audit.examples import beginning
from workflow_scripts.identity import key64

LEVELS = 4  # of lists and objects that are looked through for a text


@dataclass(slots=True)
class Unused:
    """A column that no rule uses: in how many rows it is, and what was seen of it.

    Args:
        first: key of its first value; `varies` if another value followed.
        text: whether any of its values holds a text.
        chars: of all its values as text.
    """

    first: int
    example: str
    where: str
    rows: int = 0
    chars: int = 0
    text: bool = False
    varies: bool = False

    def add(self, other: "Unused") -> None:
        self.varies |= other.varies or other.first != self.first
        self.text |= other.text
        self.rows += other.rows
        self.chars += other.chars


class Keys:
    """The keys of the rows that went by.

    `ignored` counts the rows with a key below their messages that nothing reads; `named` those in
    which a column that the configuration names is there.
    """

    def __init__(self) -> None:
        self.unused: dict[str, Unused] = {}
        self.ignored: Counter[str] = Counter()
        self.named: Counter[str] = Counter()
        self._of_shape: dict[tuple[tuple[str, ...], frozenset[str]], tuple[str, ...]] = {}

    def see(
        self,
        record: dict[str, Any],
        names: tuple[str, ...],
        taken: frozenset[str],
        ignored: frozenset[str],
        where: str,
    ) -> None:
        """Take a row's keys.

        Args:
            names: the record's keys.
            taken: those of them that a rule used.
            ignored: names below its messages that nothing reads.
        """
        shape = names, taken
        unused = self._of_shape.get(shape)
        if unused is None:
            unused = self._of_shape[shape] = tuple(name for name in names if name not in taken)
        for name in unused:
            value = record[name]
            if value is None:
                continue
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            found = self.unused.get(name)
            if found is None:
                found = self.unused[name] = Unused(key64(text), beginning(text), where)
            found.rows += 1
            found.chars += len(text)
            found.varies = found.varies or key64(text) != found.first
            found.text = found.text or holds_text(value)
        if ignored:
            self.ignored.update(ignored)

    def add(self, other: "Keys") -> None:
        for name, theirs in other.unused.items():
            if name in self.unused:
                self.unused[name].add(theirs)
            else:
                self.unused[name] = replace(theirs)
        self.ignored.update(other.ignored)
        self.named.update(other.named)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Unused columns by name, as audit/report.json holds them."""
        return {
            name: {
                "rows": found.rows,
                "text": found.text,
                "varies": found.varies,
                "mean_chars": round(found.chars / found.rows, 1),
                "example": found.example,
                "where": found.where,
            }
            for name, found in sorted(self.unused.items())
        }


def holds_text(value: Any, levels: int = LEVELS) -> bool:
    """Whether a value is a text that says something, or holds one."""
    if isinstance(value, str):
        return bool(value.strip())
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else ()
    inner = value if isinstance(value, list) else inner
    return levels > 0 and any(holds_text(one, levels - 1) for one in inner)

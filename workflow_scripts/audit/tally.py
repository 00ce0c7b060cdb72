"""What the audit counts while the lines go by."""

from collections import Counter
from dataclasses import dataclass, field

from workflow_scripts.audit.keys import Keys
from workflow_scripts.input.lines import Counts

COUNTERS = (
    "rejects", "rules", "damage", "personal", "control", "tokenized", "shapes", "refused",
    "left_out",
)  # fmt: skip
EXAMPLES = 5  # rows named for a finding, per part


@dataclass(slots=True)
class Tally:
    """What is counted while the lines go by; findings of parts are added up."""

    lines: Counts = field(default_factory=Counts)
    rejects: Counter[str] = field(default_factory=Counter)
    reject_examples: dict[str, str] = field(default_factory=dict)
    rejected: bytes = b""  # lines of audit/rejected.jsonl
    rules: Counter[str] = field(default_factory=Counter)
    shapes: Counter[tuple[tuple[str, ...], tuple[type, ...]]] = field(
        default_factory=Counter  # keys and types of their values -> rows
    )
    damage: Counter[str] = field(default_factory=Counter)  # rows by kind; "" counts rows
    personal: Counter[str] = field(default_factory=Counter)
    control: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    tokenized: Counter[str] = field(default_factory=Counter)
    keys: Keys = field(default_factory=Keys)
    refused: Counter[str] = field(default_factory=Counter)  # rows by the chat template's words
    left_out: Counter[str] = field(default_factory=Counter)  # rows by what it never writes

    def note(self, name: str, where: str) -> None:
        known = self.examples.setdefault(name, [])
        if len(known) < EXAMPLES:
            known.append(where)

    def columns(self) -> dict[str, dict[str, int]]:
        """Keys of the records, the types of their values, and how many rows have each."""
        found: dict[str, dict[str, int]] = {}
        for (keys, kinds), rows in self.shapes.items():
            for key, kind in zip(keys, kinds, strict=True):
                types = found.setdefault(key, {})
                types[kind.__name__] = types.get(kind.__name__, 0) + rows
        return found

    def add(self, other: "Tally") -> None:
        for name in ("lines", "blank", "bytes"):
            total = getattr(self.lines, name) + getattr(other.lines, name)
            setattr(self.lines, name, total)
        self.keys.add(other.keys)
        for name in COUNTERS:
            getattr(self, name).update(getattr(other, name))
        for reason, example in other.reject_examples.items():
            self.reject_examples.setdefault(reason, example)
        for name, named in other.examples.items():
            for where in named:
                self.note(name, where)

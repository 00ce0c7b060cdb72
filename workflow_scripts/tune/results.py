"""What a tune writes down: one JSON line a candidate, with everything that was measured."""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True)
class Answered:
    """One request of the load: tokens generated, whether it ended by itself or at its limit (not
    with the measurement), reached its limit, loops; the prompt's tokens."""

    tokens: int
    ended: bool
    at_limit: bool
    loops: bool
    prompt: int
    accept_length: float | None = None
    retractions: int = 0


@dataclass
class Result:
    """One candidate, with everything that was measured. Written as one JSON line.

    `samples` are dictionaries with `t` (seconds since the load began), `decoded`, `running`,
    `queued`, `kv_use`, `state_use`, `accept_length`, `retractions`, `util` and `watts`.
    """

    key: str
    name: str
    why: str
    server: dict[str, Any]
    changes: dict[str, Any]
    speculative: bool
    predicted: dict[str, Any] | None
    problem: str = ""  # why there is no prediction
    status: str = "failed"  # measured, stopped (early), not full, failed, wrong
    reason: str = ""
    reported: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    boot_s: float | None = None
    greedy: list[list[int]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    steady_s: float | None = None  # when the server counted as full
    rates: list[float] = field(default_factory=list)  # tokens/s of each interval since then
    answers: list[Answered] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    cycles: int = 0  # how often the sample was used up
    finished_at: float = 0.0

    @classmethod
    def read(cls, found: dict[str, Any]) -> "Result":
        return cls(**found | {"answers": [Answered(**one) for one in found["answers"]]})

    @property
    def measured(self) -> bool:
        return self.status in ("measured", "stopped")

    @property
    def drafts(self) -> int:
        """Most tokens that a step can give, 1 without speculation."""
        return int((self.predicted or {}).get("drafts") or 1)


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a line and force it to the disk."""
    torn = b"" if _ends_whole(path) else b"\n"
    with path.open("ab") as f:
        f.write(torn + orjson.dumps(record) + b"\n")
        f.flush()
        os.fsync(f.fileno())


def _ends_whole(path: Path) -> bool:
    """Whether the file's last line is whole; a killed tune may have left a torn one."""
    try:
        with path.open("rb") as f:
            f.seek(-1, os.SEEK_END)
            return f.read(1) == b"\n"
    except OSError:
        return True


def read_results(path: Path) -> list[Result]:
    """The results in a candidates.jsonl, torn and foreign lines left out."""
    results = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(ValueError, TypeError, KeyError):
            record = orjson.loads(line)
            if record.pop("kind") == "result":
                results.append(Result.read(record))
    return results

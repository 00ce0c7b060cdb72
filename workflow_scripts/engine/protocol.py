"""The engine protocol.

Prompt ids go in, output ids come out; nothing is tokenized on the way. Every request carries an id
of ours, so that it can be aborted, and every sampling parameter, so that no default of an engine
applies.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from workflow_scripts.config.sections import Sampling
from workflow_scripts.model.answers import Answer


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: `rid` is unique per attempt, `seed` belongs to the row and its turn. `fixed` is
    the exact number of tokens to generate, in rehearsals."""

    rid: str
    prompt_ids: list[int]
    seed: int
    fixed: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of itself: requests that it runs at once, context in tokens (prompt and
    completion together), and all of its own account."""

    max_running: int
    context: int
    raw: dict[str, Any]


class EngineError(Exception):
    """A request without a usable answer.

    Attributes:
        reason: class of the failure, recorded with the row.
        retry: whether another attempt can succeed.
        sent: whether the request can have reached the server; one that cannot have is no attempt.
        after_s: seconds the server asks to wait.
    """

    def __init__(
        self, reason: str, message: str, retry: bool = True, sent: bool = True, after_s: float = 0
    ):
        super().__init__(message)
        self.reason = reason
        self.retry = retry
        self.sent = sent
        self.after_s = after_s


class Backend(Protocol):
    """One server. `since` is when it was first seen alive, in seconds of `time.monotonic`."""

    url: str
    since: float

    async def describe(self) -> Facts: ...
    async def ask(self, ask: Ask, sampling: Sampling | None = None) -> Answer: ...
    async def abort(self, rid: str) -> None: ...
    async def progress(self) -> object:
        """Anything that changes while the server generates."""

    async def load(self) -> tuple[int | None, float | None]:
        """Requests running and share of the cache in use, None where unknown."""

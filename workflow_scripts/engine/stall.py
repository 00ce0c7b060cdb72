"""When a server counts as standing still."""

import time


class StallClock:
    """Runs while nothing moves.

    Args:
        limit_s: seconds without a change after which a server stands still.
    """

    def __init__(self, limit_s: float):
        self.limit_s = limit_s
        self.changed = False  # whether the last look showed a change
        self._seen: object = None
        self._moved = time.monotonic()

    def look(self, now: object, waited_for: bool = True) -> bool:
        """Take in what a look at the server showed.

        Args:
            now: anything that changes while the server works; None where it did not answer, which
                shows no change.
            waited_for: whether anybody waits for the server; while nobody does, it may stand still.

        Returns:
            Whether it has stood still for longer than the limit.
        """
        self.changed = now is not None and now != self._seen
        if self.changed or not waited_for:
            self.restart()
        if now is not None:
            self._seen = now
        return time.monotonic() - self._moved > self.limit_s

    def restart(self) -> None:
        self._moved = time.monotonic()

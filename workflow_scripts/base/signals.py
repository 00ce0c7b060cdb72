"""Signals, handled so that a program ends in order."""

import _thread
import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def handle_apart(number: signal.Signals, first: Callable[[], None] | None = None) -> None:
    """Let a thread of its own run the signal's handler, and `first` before it.

    Snakemake's scheduler (9.27) handles SIGTERM by taking a lock that the interrupted main thread
    may itself hold; it then waits for ever, deaf to a second signal.
    """
    handler = signal.getsignal(number)
    if not callable(handler):
        return

    def handle(*told: Any) -> None:
        if first is not None:
            with suppress(OSError):
                first()
        handler(*told)

    signal.signal(number, lambda *told: _thread.start_new_thread(handle, told))


def cancel_on_signals() -> None:
    """Cancel the calling task on SIGTERM and SIGINT, so that it ends in order."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)

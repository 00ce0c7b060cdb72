"""Signals, handled so that a program ends in order."""

import _thread
import asyncio
import signal


def handle_apart(number: signal.Signals) -> None:
    """Let a thread of its own run the signal's handler.

    Snakemake's scheduler (9.27) handles SIGTERM by taking a lock that the interrupted main thread
    may itself hold; it then waits for ever, deaf to a second signal.
    """
    handler = signal.getsignal(number)
    if callable(handler):
        signal.signal(number, lambda *told: _thread.start_new_thread(handler, told))


def cancel_on_signals() -> None:
    """Cancel the calling task on SIGTERM and SIGINT, so that it ends in order."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)

"""A limit on the seconds that a piece of work in Python may take, in any thread.

A chat template is a program of somebody else's, and its loops need not end. Signals reach only the
main thread, and a process a render costs more than the render; so one thread a process looks at the
work that is going on and raises an exception in the thread of what runs over.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

Result = TypeVar("Result")
LOOK_S = 0.2  # how often the thread looks
ARRIVAL_S = 10.0  # an exception arrives in a thread at its next bytecode


class _TimeIsUp(BaseException):
    """Raised in the thread whose work runs over; no `except Exception` on the way takes it."""


@dataclass(eq=False, slots=True)
class _Work:
    until: float
    thread: int = field(default_factory=threading.get_ident)


_going_on: dict[_Work, None] = {}
_starting = threading.Lock()
_watcher: threading.Thread | None = None


def limited(work: Callable[[], Result], seconds: float) -> Result:
    """What `work` returns.

    Raises:
        TimeoutError: it takes longer than `seconds`. It is stopped between two bytecodes, not
            inside a call of C.
    """
    _watch()
    entry = _Work(time.monotonic() + seconds)
    try:
        _going_on[entry] = None
        try:
            result = work()
        except Exception:
            _settle(entry)
            raise
        _settle(entry)
        return result
    except _TimeIsUp:
        raise TimeoutError(f"it took longer than {seconds:g} seconds") from None
    finally:
        _going_on.pop(entry, None)


def _settle(entry: _Work) -> None:
    """End the watch. Whoever takes the entry out, here or in the watching thread, has decided (a
    `pop` is atomic): if that was the watching thread, its exception is on the way to this one, and
    must arrive here rather than in what follows."""
    if _going_on.pop(entry, _TAKEN) is _TAKEN:
        until = time.monotonic() + ARRIVAL_S
        while time.monotonic() < until:
            time.sleep(0.001)


_TAKEN = object()


def _watch() -> None:
    """Start this process's watching thread where there is none yet."""
    global _watcher
    if _watcher is None:
        with _starting:
            if _watcher is None:
                _watcher = threading.Thread(target=_look, name="time limit", daemon=True)
                _watcher.start()


def _look() -> None:
    while True:
        time.sleep(LOOK_S)
        now = time.monotonic()
        for entry in list(_going_on):
            if entry.until < now and _going_on.pop(entry, _TAKEN) is not _TAKEN:
                thread = ctypes.c_ulong(entry.thread)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_TimeIsUp))


def _forked() -> None:
    """A forked process has none of its parent's threads, nor their work but the forking one's."""
    global _watcher, _starting
    _watcher, _starting = None, threading.Lock()
    mine = threading.get_ident()
    for entry in list(_going_on):
        if entry.thread != mine:
            _going_on.pop(entry, None)


os.register_at_fork(after_in_child=_forked)

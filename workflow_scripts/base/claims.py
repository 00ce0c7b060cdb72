"""Names that one process of a host can hold at a time.

A name is an abstract Unix socket. Unlike a file, whose folder can be a job's own /tmp or another
user's, it reaches as far as the network namespace: to all users of a host, and to containers that
share the host's network. The kernel frees it when its process ends, whatever ends it.
"""

import errno
import os
import pwd
import socket
import struct
import weakref
from contextlib import suppress

MOST_ASKED = 4096  # times that a holder can be asked who it is, since it never answers

_held: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def claim(name: str) -> socket.socket | None:
    """Hold a name until the socket is closed; None where another process holds it. Programs that
    this process starts do not hold it, nor do those that it forks."""
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0{name}")
    except OSError as error:
        held.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    held.listen(MOST_ASKED)
    _held.add(held)
    return held


def holder(name: str) -> str | None:
    """Who holds a name, in words; None where nobody does."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(f"\0{name}")
        except ConnectionRefusedError:
            return None
        except OSError:
            return "a process"  # that has been asked too often
        return peer(asking)


def peer(connected: socket.socket) -> str:
    """The process at the other end of a Unix socket, in words, by what the kernel says."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", told)
    process = f"process {pid}" if pid else "a process of another container"
    if user == os.getuid():
        return process
    name = str(user)
    with suppress(KeyError):
        name = pwd.getpwuid(user).pw_name
    return f"{process} of user {name}"


def _forked() -> None:
    """A forked process has copies of its parent's sockets, and may outlive it."""
    for held in list(_held):
        held.close()


os.register_at_fork(after_in_child=_forked)

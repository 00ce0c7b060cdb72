"""TCP ports of servers, claimed before they listen."""

import socket
from contextlib import suppress

from workflow_scripts.base.claims import claim
from workflow_scripts.serve.errors import StartFailed

PORTS = range(20_000, 30_000)  # below the range that the system takes ports from by itself


def claim_port(offset: int) -> tuple[int, socket.socket]:
    """A TCP port that nobody listens on, searched from PORTS[offset] on, and a claim to it.

    A server takes half a minute until it listens, and another daemon of this host may look for a
    port meanwhile.
    """
    for step in range(len(PORTS)):
        port = PORTS[(offset + step) % len(PORTS)]
        if (claimed := claim(f"tracemill-port-{port}")) is None:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port, claimed
        claimed.close()
    raise StartFailed(f"no free port from {PORTS[0]} to {PORTS[-1]}")

"""TCP ports of servers, claimed before they listen."""

import socket
from contextlib import suppress

from workflow_scripts.serve.errors import StartFailed

PORTS = range(20_000, 30_000)  # below the range that the system takes ports from by itself


def claim_port(offset: int) -> tuple[int, socket.socket]:
    """A TCP port that nobody listens on, searched from PORTS[offset] on, and a claim to it.

    A server takes half a minute until it listens, and another daemon of this host may look for a
    port meanwhile. The claim is an abstract Unix socket: like ports, and unlike a file in a job's
    private /tmp, it belongs to the network namespace, and it is gone when its process is.
    """
    for step in range(len(PORTS)):
        port = PORTS[(offset + step) % len(PORTS)]
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, suppress(OSError):
            claim.bind(f"\0tracemill-port-{port}")
            probe.bind(("127.0.0.1", port))
            return port, claim
        claim.close()
    raise StartFailed(f"no free port from {PORTS[0]} to {PORTS[-1]}")

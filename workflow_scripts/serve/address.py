"""Where a run's daemon, its sockets and its logs are found."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import own_folder
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import canonical, digest

# Set inside a cluster's job: its servers are its own, and end with it.
CLUSTER_VARIABLE = "TRACEMILL_CLUSTER_JOB"


def logs_of(output_dir: str, shard: str | None) -> Path:
    """Folder for the logs and metrics of a daemon: the host's, or that of one shard's job on a
    cluster, where every file has one writer at a time."""
    logs = Path(output_dir) / "logs"
    return logs if shard is None else logs / "servers" / shard


def spec(config: Config, run_hash: str) -> str:
    """Identity of the servers a configuration wants; another one needs other servers."""
    keys = ("python", "gpus", "server", "canary", "rehearsal", "stage")
    wanted = {key: getattr(config.engine, key) for key in keys}
    return digest(canonical(wanted), config.model.path, run_hash)


def private_dir() -> Path:
    """A new folder for the socket of a daemon of one's own; a short name, since socket paths are
    limited and a cluster's TMPDIR may be deep."""
    deep = len(tempfile.gettempdir()) > 60
    return Path(tempfile.mkdtemp(prefix="tracemill-", dir="/tmp" if deep else None))


def runtime_dir(out: str) -> Path:
    """Where the daemon of a run listens on this host; short, since socket paths are limited."""
    allocation = os.environ.get("SLURM_JOB_ID", "")
    name = digest(str(Path(out).resolve()), socket.gethostname(), allocation)[:12]
    return Path(tempfile.gettempdir()) / f"tracemill-{os.getuid()}-{name}"


def note_of(out: str, snakemake: int) -> Path:
    """The note that a run is stopping, and why; empty where nothing but a signal stops it. A
    process id tells it from those that killed runs left behind."""
    return Path(out) / f".stopping.{snakemake}"


def host_runs(out: str) -> bool:
    """Whether the daemon of a run listens on this host."""
    with _connected(out) as client:
        return client is not None


def stop_host(out: str, wait_s: float = 60.0) -> None:
    """Stop the daemon of a run on this host, if there is one, and wait until it is gone."""
    with suppress(OSError), _connected(out, wait_s) as client:
        if client is None:
            return
        client.sendall(b'{"op": "stop"}\n')
        while client.recv(4096):  # the daemon closes it by ending
            pass


@contextmanager
def _connected(out: str, wait_s: float = 5.0) -> Iterator[socket.socket | None]:
    """A connection to a run's daemon, None where there is none."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(wait_s)
        try:
            # somebody else's folder is a ConfigError: nothing of this run listens there
            folder = runtime_dir(out)
            client.connect(str((own_folder(folder) if folder.exists() else folder) / "socket"))
        except (OSError, ConfigError):
            yield None
            return
        yield client

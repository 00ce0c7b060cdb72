"""What the Snakefile needs: the checked configuration, parameters of the stages, limits, locks."""

import _thread
import fcntl
import json
import os
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from workflow_scripts.config import Config, ConfigError, canonical
from workflow_scripts.config_dataset import Filters
from workflow_scripts.gpus import Gpu, usable_gpus
from workflow_scripts.identity import digest, run_hash, run_identity
from workflow_scripts.progress import write_atomically
from workflow_scripts.read_input import input_files
from workflow_scripts.tuned import resolve


def open_shards(gpus: int) -> int:
    """Shards open at once with this many GPUs.

    An open shard ends with its longest answer, and until then the next ones feed the servers. With
    F requests in flight and R rows a shard, about F / R * (longest / mean answer) shards wait so at
    once; the longest answer is some ten times the mean. On two H200s with F = 294 and R = 275,
    seven open shards ran dry every hundred seconds (docs/benchmarks.md).
    """
    return 12 + 3 * gpus


RETRY_TARGET = "retry_failed"
RETRY_VARIABLE = "TRACEMILL_RETRY_FAILED"
# Set inside a cluster's job: its servers are its own, and end with it.
CLUSTER_VARIABLE = "TRACEMILL_CLUSTER_JOB"
SMALL_BYTES = 16 << 20  # of input: some 20,000 prompts, minutes of work for one core in all


class Run:
    """One configured run, as the rules see it.

    `params` holds a canonical text per stage of what changes its result: Snakemake runs a stage
    again when its text changes, and only then. `workflow` is Snakemake's own object.
    """

    def __init__(self, config: Config, workflow: Any = None):
        config, self.tuned = resolve(config, _gpus_here(config))
        self.config = config
        self.workflow = workflow
        self.inputs = input_files(config.input)
        self.identity = run_identity(config)
        self.hash = run_hash(self.identity)
        self.out = config.output_dir.rstrip("/")
        self.file = f"{self.out}/run.json"
        self.shards = [f"{k:04d}" for k in range(config.shards)]
        self.params = {
            "audit": canonical(
                {
                    "input": config.input,
                    "input_format": config.input_format,
                    "audit": config.audit.model_dump(mode="json", exclude=_GATE_ONLY),
                    **{k: self.identity[k] for k in ("tokenizer", "chat_template", "thinking")},
                }
            ),
            "audit_gate": canonical(config.audit.model_dump(mode="json", include=_GATE_ONLY)),
            "shard": canonical({"regenerate": config.regenerate, "shards": config.shards}),
            "generate": self.hash,
            "merge": self.hash,
            "dataset": canonical(
                {
                    "dataset": config.dataset.model_dump(mode="json"),
                    "audit": config.audit.model_dump(mode="json", include=_OF_DATASET),
                    "user_filter": _checked(config.dataset.filters),
                    "run": self.hash,
                }
            ),
            "verify": self.hash,
            "report": self.hash,
        }

    def start(self) -> None:
        """Take the run's folder for this process and write run.json.

        The lock is kept open as long as this object lives; the kernel frees it whatever ends the
        process, so there is nothing to unlock after a crash.

        Raises:
            ConfigError: another process holds it.
        """
        handle_apart(signal.SIGTERM)
        self._lock = hold(Path(self.out) / ".lock")
        found: dict[str, Any] = {
            "config": self.config.model_dump(mode="json"),
            "identity": {**self.identity, "run_hash": self.hash},
        }
        if self.tuned is not None:  # the daemon checks that its machine is the one tuned for
            found["tuned"] = self.tuned
        write_atomically(Path(self.file), json.dumps(found, indent=2).encode())

    def results(self) -> list[str]:
        """What a whole run leaves. Merged tables, and results of shards that are gone, are named
        although other files depend on them: Snakemake makes a deleted intermediate file again only
        if it is asked for. Those that are there need no naming, and each name costs time."""
        names = ["report.html", "gates/dataset.ok", "gates/verify.ok", "verify.json"]
        names += ["merged/completions.parquet", "merged/failed.parquet", *self.gone_rows]
        if Path(f"{self.out}/merged/completions.parquet").exists():  # else merging needs all
            names += self.gone_results
        return [f"{self.out}/{name}" for name in names]

    @cached_property
    def gone_results(self) -> list[str]:
        """Results of shards that are gone, or were never there."""
        return self._gone(f"generate/{self.hash}")

    @cached_property
    def gone_rows(self) -> list[str]:
        """Rows of cut shards that are gone and still needed."""
        if not Path(f"{self.out}/shards/manifest.json").exists():  # all of them will be made
            return []
        needed = {Path(name).name for name in self.gone_results}
        return [name for name in self._gone("shards") if Path(name).name in needed]

    def _gone(self, folder: str) -> list[str]:
        """The shards' tables that a folder of the run lacks."""
        there = set(os.listdir(path)) if (path := Path(self.out) / folder).is_dir() else set()
        names = [f"shard-{shard}.parquet" for shard in self.shards]
        return [f"{folder}/{name}" for name in names if name not in there]

    def limit(self) -> None:
        """Limit `place`, the shards generated at once, to what this host has; a value that is set
        on the command line wins.

        More than there are GPUs, so that the last requests of a shard never leave a server short
        of work. On a cluster, where Snakemake is given no cores, `jobs` is the limit.
        """
        if self.workflow.remote_exec:  # one job on a cluster's node
            os.environ[CLUSTER_VARIABLE] = "1"
            return
        if self.workflow.resource_settings.cores is None:
            return
        if self.config.engine.kind != "sglang":
            places = 1
        else:
            try:
                places = open_shards(len(usable_gpus(self.config.engine.gpus)))
            except ConfigError:
                return
        self.workflow.global_resources.setdefault("place", places)

    @property
    def cores(self) -> int:
        """Threads of a rule that uses all cores. On a cluster the profile says how many a job gets
        (set-threads); the cores of whatever node it runs on are not all its own."""
        given = self.workflow.resource_settings.cores
        return 1 if given is None or self.workflow.remote_exec else given

    @property
    def small(self) -> bool:
        """Whether all stages but generation may run where Snakemake runs, which on a cluster is
        the login node: they take less time than their jobs would wait."""
        return sum(Path(path).stat().st_size for path in self.inputs) <= SMALL_BYTES

    @property
    def gpu(self) -> int:
        """GPUs of a generating job on a cluster; on one host the daemon shares them out."""
        return 1 if self.config.engine.kind == "sglang" else 0

    def threads(self) -> int:
        """Cores that a generating job counts for: with servers elsewhere it only waits, and more
        shards than cores may be open."""
        return 1 if self.config.engine.kind == "embedded" else 0

    def stop(self) -> None:
        """Stop this host's servers at the end of a run, whatever it was."""
        if self.config.engine.kind == "sglang":
            stop_host(self.out)

    def retry_rounds(self) -> Any:
        """For `generate`: `retry_round`, or 0 where nothing was asked yet."""
        asked = Path(f"{self.out}/generate/{self.hash}/journal").is_dir()
        return self.retry_round if asked else 0

    def retry_round(self, wildcards: Any) -> int:
        """A parameter of the shard that grows whenever `retry_failed` asks its failed rows again.

        Args:
            wildcards: Snakemake's, with the shard's number as it stands in file names.
        """
        shard, targets = wildcards.shard, self.workflow.dag_settings.targets
        folder = Path(f"{self.out}/generate/{self.hash}")
        done = read_round(folder / "journal", shard, self.config.shards)
        asked = RETRY_TARGET in (targets or ())
        if not asked and not (self.workflow.remote_exec and RETRY_VARIABLE in os.environ):
            return done
        os.environ[RETRY_VARIABLE] = "1"  # jobs on other machines inherit it
        try:
            failed = json.loads((folder / f"shard-{shard}.json").read_text())["failed"]
        except (OSError, ValueError, KeyError):
            return done + 1
        return done + 1 if failed else done


_GATE_ONLY = {"stop_on", "max_rejected_fraction"}
_OF_DATASET = {
    "held_out", "contamination_ngram", "repeated_min_prompts", "repeated_min_share",
    "repeated_max_chars",
}  # fmt: skip


def _checked(filters: Filters) -> str | None:
    """Check the user's own filters, if there are any; returns the hash of the Python file."""
    if not (filters.expressions or filters.python):
        return None
    from workflow_scripts.user_filters import check  # takes a while to import

    return check(filters)


def _gpus_here(config: Config) -> list[Gpu]:
    """The GPUs that servers would use; none on a login node."""
    if config.engine.server != "auto":
        return []
    try:
        return usable_gpus(config.engine.gpus)
    except ConfigError:
        return []


def stage_function(root: str) -> str:
    """A shell function for the rules: `stage NAME ...` runs a script with the Python that runs
    Snakemake, not with whatever `python` the path has. Braces are doubled for Snakemake, whose own
    prefix this one replaces: without pipefail a script that fails before `tee` would pass."""
    path = f"{root}${{{{PYTHONPATH:+:$PYTHONPATH}}}}"
    python = f'PYTHONPATH="{path}" "{sys.executable}" -m workflow_scripts."$@"'
    return f"set -euo pipefail; stage() {{{{ {python}; }}}}; "


def round_path(journals: Path, shard: str, shards: int) -> Path:
    return journals / f"shard-{shard}.n{shards}.round"


def read_round(journals: Path, shard: str, shards: int) -> int:
    try:
        return int(round_path(journals, shard, shards).read_text())
    except (OSError, ValueError):
        return 0


def hold(path: Path) -> IO[str]:
    """Lock a file for this process.

    Raises:
        ConfigError: another process holds it, or files cannot be locked there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise ConfigError(
            f"{path.parent}: another run works there (process and host: {lock.read().strip()}); "
            "wait for it to end, or set another output_dir"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path}: the file system cannot lock files ({error.strerror}); a Lustre client must "
            "be mounted with -o flock; else set output_dir to another file system"
        ) from None
    lock.seek(0)
    lock.truncate()
    lock.write(f"{os.getpid()} {socket.gethostname()}")
    lock.flush()
    return lock


def is_held(path: Path) -> bool:
    """Whether a living process holds a lock file."""
    try:
        with path.open("r") as lock:  # NFS grants a file open for reading only shared locks
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def runtime_dir(out: str) -> Path:
    """Where the daemon of a run listens on this host; short, since socket paths are limited."""
    allocation = os.environ.get("SLURM_JOB_ID", "")
    name = digest(str(Path(out).resolve()), socket.gethostname(), allocation)[:12]
    return Path(tempfile.gettempdir()) / f"tracemill-{os.getuid()}-{name}"


def handle_apart(number: signal.Signals) -> None:
    """Let a thread of its own run the signal's handler.

    Snakemake's scheduler (9.27) handles SIGTERM by taking a lock that the interrupted main thread
    may itself hold; it then waits for ever, deaf to a second signal.
    """
    handler = signal.getsignal(number)
    if callable(handler):
        signal.signal(number, lambda *told: _thread.start_new_thread(handler, told))


def stop_host(out: str, wait_s: float = 60.0) -> None:
    """Stop the daemon of a run on this host, if there is one, and wait until it is gone."""
    path = runtime_dir(out) / "socket"
    with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
        client.settimeout(wait_s)
        client.connect(str(path))
        client.sendall(b'{"op": "stop"}\n')
        while client.recv(4096):  # the daemon closes it by ending
            pass

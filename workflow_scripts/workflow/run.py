"""What the Snakefile needs: the checked configuration, parameters of the stages, limits, locks."""

import json
import os
import signal
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from snakemake.logging import logger

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import write_atomically
from workflow_scripts.base.locks import hold
from workflow_scripts.base.log import say
from workflow_scripts.base.signals import handle_apart
from workflow_scripts.config.sections import Config
from workflow_scripts.generate.retries import RETRY_TARGET, RETRY_VARIABLE, read_round
from workflow_scripts.input.files import input_files
from workflow_scripts.serve.address import CLUSTER_VARIABLE, note_of, stop_host
from workflow_scripts.serve.gpus import Gpu, usable_gpus
from workflow_scripts.serve.staging import remove_unused
from workflow_scripts.serve.tuned import resolve
from workflow_scripts.workflow.asking import asks_here
from workflow_scripts.workflow.damage import FILES, PAGES
from workflow_scripts.workflow.params import stage_params
from workflow_scripts.workflow.run_identity import hash_of, run_identity

SMALL_BYTES = 16 << 20  # of input: some 20,000 prompts, minutes of work for one core in all


def open_shards(gpus: int) -> int:
    """Shards open at once with this many GPUs.

    An open shard ends with its longest answer, and until then the next ones feed the servers. With
    F requests in flight and R rows a shard, about F / R * (longest / mean answer) shards wait so at
    once; the longest answer is some ten times the mean. On two H200s with F = 294 and R = 275,
    seven open shards ran dry every hundred seconds (docs/benchmarks.md).
    """
    return 12 + 3 * gpus


class Run:
    """One configured run, as the rules see it.

    Args:
        workflow: Snakemake's own object.
    """

    def __init__(self, config: Config, workflow: Any = None):
        tuned = config.engine.server == "auto"
        config, self.tuned = resolve(config, _gpus_here(config) if tuned else ())
        self.config = config
        self.workflow = workflow
        self.inputs = input_files(config.input)
        self.identity = run_identity(config)
        self.hash = hash_of(self.identity)
        self.out = config.output_dir.rstrip("/")
        self.file = f"{self.out}/run.json"
        self.note = note_of(self.out, os.getpid())
        self.shards = [f"{k:04d}" for k in range(config.shards)]
        self.params = stage_params(config, self.identity, self.hash)

    def start(self) -> None:
        """Take the run's folder for this process and write run.json.

        The lock is kept open as long as this object lives; the kernel frees it whatever ends the
        process, so there is nothing to unlock after a crash.

        Raises:
            ConfigError: another process holds it, or servers cannot be had on this host.
        """
        handle_apart(signal.SIGTERM, self.note.touch)
        self._lock = hold(Path(self.out) / ".lock")
        self.note.unlink(missing_ok=True)  # of a killed run, whose process had the same number
        if asks_here(self.workflow, self.config, self.hash):
            from workflow_scripts.serve.faults import check_servers  # half a second

            check_servers(self.config, self.tuned)
        found: dict[str, Any] = {
            "config": self.config.model_dump(mode="json"),
            "identity": {**self.identity, "run_hash": self.hash},
        }
        if self.tuned is not None:  # the daemon checks that its machine is the one tuned for
            found["tuned"] = self.tuned
        write_atomically(Path(self.file), json.dumps(found, indent=2).encode())

    def results(self) -> list[str]:
        """What a whole run leaves. Stages' files, and results of shards, that are gone are named
        although other files depend on them: Snakemake makes a deleted intermediate file again only
        if it is asked for. Those that are there need no naming, and each name costs time."""
        names = [*PAGES, "gates/dataset.ok", "gates/verify.ok", "verify.json"]
        made = ["dataset", *(f"{folder}/{name}" for folder in FILES for name in FILES[folder])]
        names += [name for name in made if not Path(f"{self.out}/{name}").exists()]
        names += self.gone_rows
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
        of work. On a cluster, where Snakemake is given jobs, those are the limit.
        """
        if self.workflow.remote_exec:  # one job on a cluster's node
            os.environ[CLUSTER_VARIABLE] = "1"
            return
        given = self.workflow.resource_settings
        if given.cores is None or given.nodes is not None:
            return
        # without a GPU, too: unlimited, every job would be handed out before the first has failed
        sglang = self.config.engine.kind == "sglang"
        places = open_shards(len(_gpus_here(self.config))) if sglang else 1
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
        """Stop this host's servers at the end of a run, whatever it was, and say what ended it."""
        if self.config.engine.kind == "sglang":
            stop_host(self.out)
            if stage := self.config.engine.stage:  # of a daemon that was killed after the last row
                remove_unused(Path(stage), say)
        _tell(self.note)

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


def _tell(note: Path) -> None:
    """Say why a run was stopped, if it was, and remove the note that says so."""
    with suppress(FileNotFoundError):
        if why := note.read_text(encoding="utf-8"):
            logger.error(f"The run was stopped, since every shard would fail: {why}")
        note.unlink()


def _gpus_here(config: Config) -> list[Gpu]:
    """The GPUs that servers would use; none on a login node."""
    try:
        return usable_gpus(config.engine.gpus)
    except ConfigError:
        return []

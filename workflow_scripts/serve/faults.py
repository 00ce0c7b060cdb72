"""Faults of the machine or the configuration: said once, since every shard would meet them.

Most show before the first shard is tried (`check_servers`). One that shows only while shards are
generated ends the run (`stop_run`): the first job that meets it leaves the reason in a note for its
Snakemake and sends it SIGTERM, which it handles in order. Jobs that start after that end at once
(workflow/shell.py), and the run says the reason at its end. On a cluster nothing is stopped: the
fault may be that of one node.
"""

import asyncio
import errno
import fcntl
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.locks import is_held
from workflow_scripts.base.log import say
from workflow_scripts.config.sections import Config
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.address import CLUSTER_VARIABLE, host_runs, note_of
from workflow_scripts.serve.attached import open_engines
from workflow_scripts.serve.gpus import Gpu, usable_gpus
from workflow_scripts.serve.seats import lease_gpus
from workflow_scripts.serve.server import FREE_MIB, MEMORY_S, occupied
from workflow_scripts.serve.tuned import check_here
from workflow_scripts.sglang.flags import refuse_simulation, translate
from workflow_scripts.sglang.version import sglang_version

OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}

# ---- before the first shard ----


def check_servers(config: Config, made_for: dict[str, Any] | None) -> None:
    """Look for what would keep this host's servers from starting, or attached ones from being used.

    Args:
        made_for: what a tune made the servers' flags for.

    Raises:
        ConfigError: there is such a thing.
    """
    if config.engine.kind == "attach":
        # Snakemake has an event loop of its own in this thread
        with ThreadPoolExecutor(1) as apart:
            apart.submit(asyncio.run, _look(config)).result()
    elif config.engine.kind == "sglang":
        version, _ = server_flags(config)
        gpus = usable_gpus(config.engine.gpus)
        if made_for:
            check_here(config.output_dir, made_for, version, gpus)
        if not host_runs(config.output_dir):  # else they are in use by this run's own servers
            seats = lease_gpus(config.engine.gpus)
            for seat in seats:
                seat.lock.close()
            _wait_for_memory([seat.gpu for seat in seats])


def server_flags(config: Config) -> tuple[str, list[str]]:
    """SGLang's version, and the command line's words for its servers.

    Raises:
        ConfigError: engine.python has no SGLang, or a flag is not one of its flags.
    """
    refuse_simulation(os.environ, config.engine.rehearsal, config.engine.flags)
    version = sglang_version(config.engine.python)
    return version, translate({"enable_metrics": True, **config.engine.flags}, version)


async def _look(config: Config) -> None:
    """Let each attached server show that it is the right one."""
    prompts = Prompts.from_config(config)
    try:
        async with open_engines(config, sorted(prompts.end_ids), prompts):
            pass
    except EngineError as error:
        raise ConfigError(f"engine.urls: {error}; start the server, or correct the URL") from None


def _wait_for_memory(gpus: list[Gpu]) -> None:
    """Wait until one of these GPUs has its memory free, as long as a server waits for its own."""
    until, told = time.monotonic() + MEMORY_S, False
    while all((gpu.used_mib or 0) >= FREE_MIB for gpu in gpus):
        if time.monotonic() > until:
            taken = (occupied(gpu.index, gpu.used_mib) for gpu in gpus)
            raise ConfigError(f"engine.gpus: {'; '.join(taken)}")
        if not told:
            say(f"all GPUs have memory in use; waiting {MEMORY_S:.0f} s for one to be free")
            told = True
        time.sleep(0.5)
        gpus = usable_gpus([gpu.uuid for gpu in gpus])


# ---- while shards are generated ----


def is_of_all(error: Exception) -> bool:
    """Whether an error of a shard's job is one that every other shard's job would meet.

    Of the OSErrors only those of a disk are: others are of one file.
    """
    return not isinstance(error, OSError) or error.errno in OF_THE_DISK


def stop_run(out: str, reason: str) -> bool:
    """Stop the run that this job belongs to.

    Returns:
        Whether it stops and says the reason itself.
    """
    snakemake = None if CLUSTER_VARIABLE in os.environ else _snakemake(Path(out) / ".lock")
    if snakemake is None:
        return False
    try:
        with note_of(out, snakemake).open("a+") as note:
            fcntl.flock(note, fcntl.LOCK_EX)
            if not os.fstat(note.fileno()).st_size:
                note.write(reason)
        return True
    except OSError:  # the disk is full
        return False
    finally:
        os.kill(snakemake, signal.SIGTERM)


def _snakemake(lock: Path) -> int | None:
    """The Snakemake that this process descends from and that works in the run's folder."""
    try:
        pid, host = lock.read_text().split()
    except (OSError, ValueError):
        return None
    if host != socket.gethostname() or not is_held(lock):
        return None
    return next((p.pid for p in psutil.Process().parents() if p.pid == int(pid)), None)

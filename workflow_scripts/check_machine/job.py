"""All checks of a machine, and those of its GPUs and of the host."""

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.check_machine.machine import Machine, Outcome, fail, ok, warn
from workflow_scripts.check_machine.software import (
    check_flags,
    check_model,
    check_sglang,
    lock_file,
    pinned,
)
from workflow_scripts.config.load import load
from workflow_scripts.config.sections import Config
from workflow_scripts.input.files import input_files
from workflow_scripts.input.parts import format_of
from workflow_scripts.serve.gpus import Gpu, leased_by, usable_gpus
from workflow_scripts.serve.ports import PORTS
from workflow_scripts.serve.server import FREE_MIB
from workflow_scripts.serve.staging import DONE, SPARE, copy_of
from workflow_scripts.serve.tuned import check_here, read_tuned, with_flags
from workflow_scripts.sglang.flags import spelled
from workflow_scripts.sglang.version import version_key

DRIVERS = {12: 525, 13: 580}  # oldest NVIDIA driver by major version of CUDA
UNKNOWN_LIMIT = 512  # requests at once of a server whose limit only its start can tell
TOKEN_BYTES = 16  # of a generated token: journal, shard, merged table and training data together
GIB = 2**30


def check(values: Any, machine: Machine) -> Iterator[Outcome]:
    """All checks that a configuration, as YAML has it, asks for."""
    text = ".".join(map(str, machine.python))
    if machine.python >= (3, 11):
        yield ok("python", text)
    else:
        yield fail("python", f"{text} is older than 3.11; use make PYTHON=python3.12 setup")
    try:
        config = load(values)
    except ConfigError as error:
        yield fail("configuration", str(error))
        return
    yield ok("configuration", f"engine.kind is {config.engine.kind}")
    yield from check_model(config)
    made_for = None
    if config.engine.server == "auto":
        try:
            found = read_tuned(config)
        except ConfigError as error:
            yield fail("tune", str(error))
        else:
            made_for = found["made_for"]
            config = with_flags(config, found["server"])
            yield ok("tune", f"engine.server is `{found.get('chosen')}`")
    servers = len(config.engine.urls)
    if config.engine.kind == "sglang":
        version, lines = check_sglang(config, machine)
        yield from lines
        yield from check_flags(config, version, machine)
        gpus, lines = check_gpus(config, version, machine)
        yield from lines
        servers = len(gpus)
        if made_for:
            try:
                check_here(config.output_dir, made_for, version, gpus)
            except ConfigError as error:
                yield fail("tune", str(error))
        size = sum(path.stat().st_size for path in Path(config.model.path).glob("*.safetensors"))
        if gpus:
            yield from check_fit(size, gpus)
            yield check_ports(servers, machine)
        if config.engine.stage and size:
            yield check_stage(Path(config.engine.stage), Path(config.model.path), machine)
    for url in config.engine.urls:
        yield check_url(url, machine)
    yield check_disk(config, machine)
    if config.engine.kind != "embedded":
        yield check_open_files(config, max(servers, 1), machine)


# ---- GPUs ---------------------------------------------------------------------------------------


def check_gpus(
    config: Config, version: str | None, machine: Machine
) -> tuple[list[Gpu], list[Outcome]]:
    """The GPUs to use, the driver, and what else holds memory there."""
    query = ["--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = machine.run(["nvidia-smi", *query]).partition("\n")[0].strip()
        gpus = usable_gpus(config.engine.gpus, machine.run)
    except FileNotFoundError:
        text = "nvidia-smi is not there; install NVIDIA's driver, or run where the GPUs are"
        return [], [fail("gpus", text)]
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stdout", None) or getattr(error, "stderr", None) or error
        return [], [fail("gpus", f"nvidia-smi failed ({said}); is the driver loaded?")]
    except ConfigError as error:
        return [], [fail("gpus", str(error))]
    lines = [check_driver(driver, version, machine)]
    users = _users(machine)
    for gpu in gpus:
        name, used = f"gpu {gpu.index}", gpu.used_mib or 0
        text = f"{gpu.name}, {used:,} of {gpu.total_mib or 0:,} MiB in use"
        if by := users.get(gpu.uuid):
            text += f" by {', '.join(by)}"
        if leaser := leased_by(gpu):
            text += f", taken by a run or tune ({leaser})"
        if used >= FREE_MIB:
            lines.append(fail(name, f"{text}; end that, or leave the GPU out of engine.gpus"))
        elif leaser:
            lines.append(fail(name, f"{text}; wait for it to end, or name other GPUs"))
        elif by:
            lines.append(warn(name, f"{text}; it will share the GPU with the server"))
        else:
            lines.append(ok(name, text))
    return gpus, lines


def check_driver(driver: str, version: str | None, machine: Machine) -> Outcome:
    lock = lock_file(version or "", machine)
    cuda = pinned(lock).get("nvidia-cuda-runtime", "") if lock.is_file() else ""
    need = DRIVERS.get(version_key(cuda)[0], 0) if cuda else 0
    if need and version_key(driver) < (need,):
        text = f"{driver} is too old for CUDA {cuda} of {lock}; update it to {need} or newer"
        return warn("driver", f"{text}, or install NVIDIA's cuda-compat")
    return ok("driver", driver)


def _users(machine: Machine) -> dict[str, list[str]]:
    """Processes that hold memory of a GPU, by the GPU's UUID."""
    query = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    found: dict[str, list[str]] = {}
    try:
        text = machine.run(["nvidia-smi", query, "--format=csv,noheader,nounits"])
    except (OSError, subprocess.SubprocessError):
        return {}
    for line in text.splitlines():
        uuid, *rest = (part.strip() for part in line.split(","))
        if len(rest) >= 3:
            found.setdefault(uuid, []).append(f"process {rest[0]} ({rest[1]}, {rest[-1]} MiB)")
    return found


def check_fit(size: int, gpus: list[Gpu]) -> Iterator[Outcome]:
    smallest = min(gpus, key=lambda gpu: gpu.total_mib or 0)
    room = (smallest.total_mib or 0) * 2**20
    if room and size > room * 0.95:
        text = f"the weights take {size / GIB:.1f} GiB, GPU {smallest.index} has {room / GIB:.1f}"
        yield fail("memory", f"{text}; each server has one GPU: use a quantized or smaller model")


# ---- the host -----------------------------------------------------------------------------------


def check_stage(stage: Path, model: Path, machine: Machine) -> Outcome:
    if not (stage.is_dir() and os.access(stage, os.W_OK)):
        return fail("stage", f"engine.stage: {stage} is not a folder that can be written to")
    copy, size = copy_of(model, stage)
    if (copy / DONE).exists():
        return ok("stage", f"{stage} has a copy of the model already")
    need, free = size + SPARE, machine.free(stage)
    text = f"engine.stage: {need / GIB:.1f} GiB are needed, {stage} has {free / GIB:.1f}"
    if free < need:
        hint = "make room (in a container: --shm-size), or leave engine.stage out"
        return fail("stage", f"{text}; {hint}")
    if stage.is_relative_to("/dev/shm") and machine.memory() < need:
        text += f", but it is memory, of which {machine.memory() / GIB:.1f} are available"
        return fail("stage", f"{text}; leave engine.stage out")
    return ok("stage", text)


def check_disk(config: Config, machine: Machine) -> Outcome:
    out = Path(config.output_dir).absolute()
    there = next(path for path in (out, *out.parents) if path.exists())
    if not os.access(there, os.W_OK):
        return fail("disk", f"output_dir: {there} cannot be written to; set another one")
    try:
        rows = sum(_rows(Path(path)) for path in input_files(config.input))
    except ConfigError as error:
        return fail("input", str(error))
    tokens, free = config.sampling.max_new_tokens // 4, machine.free(there)
    need = rows * tokens * TOKEN_BYTES
    text = (
        f"{free / GIB:,.0f} GiB free at {there}; about {rows:,} rows of {tokens:,} tokens, a "
        f"quarter of max_new_tokens, take {need / GIB:,.1f}"
    )
    if free < GIB:
        return fail("disk", f"{text}; set output_dir to another disk")
    if free < need:
        return warn("disk", f"{text}; set output_dir to a larger disk")
    return ok("disk", text)


def _rows(path: Path) -> int:
    """About how many rows a file has, by its beginning; of a table, as its footer says."""
    if format_of(str(path)) == "parquet":
        return int(pq.read_metadata(path).num_rows)
    with path.open("rb") as f:
        start = f.read(1 << 20)
    return round(path.stat().st_size * start.count(b"\n") / max(len(start), 1))


def check_ports(servers: int, machine: Machine) -> Outcome:
    wanted = [PORTS[(100 * number + i) % len(PORTS)] for number in range(servers) for i in (0, 1)]
    own = machine.own_ports()
    if set(own) & set(PORTS):
        text = f"the system gives ports {own[0]} to {own[-1]} to any connection; servers take"
        hint = "set sysctl net.ipv4.ip_local_port_range to 32768 60999"
        return warn("ports", f"{text} theirs from {PORTS[0]} to {PORTS[-1]}; {hint}")
    if taken := [str(port) for port in wanted if machine.listens("127.0.0.1", port)]:
        return warn("ports", f"{', '.join(taken)} in use by others; servers take the next ones")
    return ok("ports", f"those from {PORTS[0]} on are free")


def check_url(url: str, machine: Machine) -> Outcome:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if machine.listens(parts.hostname or "", port):
        return ok("server", f"{url} takes connections")
    return fail("server", f"{url} takes no connection; start the server, or correct engine.urls")


def check_open_files(config: Config, servers: int, machine: Machine) -> Outcome:
    """A connection is an open file, and a job may hold one for every request in flight."""
    each = config.generate.concurrency
    if each == "auto":
        flags = {spelled(name): value for name, value in config.engine.flags.items()}
        limit = flags.get("max_running_requests")
        each = limit * 5 // 4 if isinstance(limit, int) else UNKNOWN_LIMIT
    need, (soft, hard) = each * servers + 256, machine.open_files()
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= need:
        return ok("open files", f"up to {need} are needed, {soft} are allowed")
    do = "raise nofile in /etc/security/limits.conf, or lower generate.concurrency"
    if hard == unlimited or hard >= need:
        do = f"call ulimit -n {need} before the run"
    return fail("open files", f"up to {need} are needed, {soft} are allowed; {do}")

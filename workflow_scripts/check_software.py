"""Checks of what a machine has installed: the model folder, SGLang, its flags. See check_machine.

Nothing is started or changed, and neither SGLang nor PyTorch is imported.
"""

import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from workflow_scripts.config import Config, ConfigError
from workflow_scripts.gpus import Call, call
from workflow_scripts.identity import chat_template, end_token_ids, tokenizer_file
from workflow_scripts.sglang_flags import nearest, refuse_simulation, translate, version_key

ENVS = Path(__file__).resolve().parent.parent / "envs"
HELD = ("kernels", "fastapi", "starlette", "torch")
GLIBC = (2, 34)  # SGLang's wheels need it
ASK = """
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


class Line(NamedTuple):
    """The outcome of one check."""

    state: str
    check: str
    text: str


def ok(check: str, text: str) -> Line:
    return Line("ok", check, text)


def warn(check: str, text: str) -> Line:
    return Line("WARN", check, text)


def fail(check: str, text: str) -> Line:
    return Line("FAIL", check, " ".join(text.split()))


def _free(path: Path) -> int:
    return shutil.disk_usage(path).free


def _open_files() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def _memory() -> int:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 3).close()
    except OSError:
        return False
    return True


def _own_ports() -> range:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return range(0)
    return range(int(first), int(last) + 1)


@dataclass(frozen=True)
class Machine:
    """How the checks see the machine; tests see another one.

    `memory` is what is available in bytes, `open_files` the soft and the hard limit, `own_ports`
    the ports that the system gives to connections by itself.
    """

    run: Call = call
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    python: tuple[int, int] = sys.version_info[:2]
    glibc: str = platform.libc_ver()[1]
    free: Callable[[Path], int] = _free
    memory: Callable[[], int] = _memory
    open_files: Callable[[], tuple[int, int]] = _open_files
    listens: Callable[[str, int], bool] = _listens
    own_ports: Callable[[], range] = _own_ports
    envs: Path = ENVS


# ---- the model ----------------------------------------------------------------------------------


def check_model(config: Config) -> Iterator[Line]:
    folder = Path(config.model.path)
    missing = [p for p in (folder / "config.json", tokenizer_file(config)) if not p.is_file()]
    if missing:
        hint = "run make setup" if config.engine.kind == "embedded" else "check model.path"
        yield fail("model", f"{' and '.join(map(str, missing))} missing; {hint}")
        return
    try:
        chat_template(config)
        ends = end_token_ids(config)
    except ConfigError as error:
        yield fail("model", str(error))
        return
    if ends:
        yield ok("model", f"{folder}: configuration, tokenizer and chat template are there")
    else:
        text = f"{folder}: no end token in generation_config.json or config.json"
        yield warn("model", f"{text}; answers may go on to max_new_tokens")
    if config.engine.kind == "sglang":
        yield check_weights(folder)


def check_weights(folder: Path) -> Line:
    """Whether all weight files are there and whole. Only their headers are read."""
    files, total = {path.name for path in folder.glob("*.safetensors")}, 0
    for index in sorted(folder.glob("*.safetensors.index.json")):
        try:
            found = json.loads(index.read_text(encoding="utf-8"))
            files |= set(found["weight_map"].values())
            total += int(found.get("metadata", {}).get("total_size", 0))
        except (ValueError, KeyError, TypeError, AttributeError):
            return fail("weights", f"{index} is not an index of weights; fetch the model again")
    faults = [f"{name} {what}" for name in sorted(files) if (what := _fault(folder / name))]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        return fail("weights", f"{folder}: {', '.join(faults[:3])}{more}; fetch the model again")
    others = [path for kind in ("*.bin", "*.gguf", "*.pt") for path in folder.glob(kind)]
    if not files and others:
        return warn("weights", f"{folder}: only safetensors can be checked, found {others[0].name}")
    if not files:
        return fail("weights", f"{folder}: there are none; fetch the model again")
    size = sum((folder / name).stat().st_size for name in files)
    if size < total:
        text = f"{folder}: {size:,} bytes where the index says {total:,}"
        return fail("weights", f"{text}; fetch the model again")
    return ok("weights", f"{len(files)} files, {size / 2**30:.1f} GiB, all whole")


def _fault(path: Path) -> str | None:
    """What is wrong with a safetensors file, by its header."""
    try:
        size = path.stat().st_size
        with path.open("rb") as f:
            first = f.read(8)
            length = int.from_bytes(first, "little")
            if first == b"version ":
                return "is a Git LFS pointer (git lfs pull)"
            header = json.loads(f.read(min(length, size)))
        ends = [value["data_offsets"][1] for key, value in header.items() if key != "__metadata__"]
    except FileNotFoundError:
        return "is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "cannot be read"
    need = 8 + length + max(ends, default=0)
    return None if size == need else f"has {size:,} of {need:,} bytes"


# ---- SGLang -------------------------------------------------------------------------------------


def check_sglang(config: Config, machine: Machine) -> tuple[str | None, list[Line]]:
    """The SGLang that `engine.python` has, and whether its packages are those of the lock."""
    lines, python = [], config.engine.python
    if machine.glibc and version_key(machine.glibc) < GLIBC:
        text = f"{machine.glibc} is too old for SGLang's wheels, which need 2.34; use a container"
        lines.append(fail("glibc", text))
    make = "make it as the comments in envs/sglang-0.5.11.in say"
    try:
        found = json.loads(machine.run([python, "-c", ASK, "sglang", *HELD]))
    except OSError as error:
        text = f"engine.python: {python} cannot be run ({error.strerror}); {make}"
        return None, [*lines, fail("sglang", text)]
    except (subprocess.SubprocessError, ValueError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1:]
        text = f"engine.python: {python} failed ({''.join(said)}); {make}"
        return None, [*lines, fail("sglang", text)]
    version = found["sglang"]
    if version is None:
        text = f"engine.python: {python} has no SGLang; {make}"
        return None, [*lines, fail("sglang", text)]
    _, warning = nearest(version)
    lines.append(warn("sglang", warning) if warning else ok("sglang", f"{version} in {python}"))
    return version, [*lines, _compare(version, found, machine)]


def _compare(version: str, found: dict[str, str | None], machine: Machine) -> Line:
    """The installed packages against the lock; a hold that is not kept breaks the server."""
    if str(found["torch"]).endswith("+cpu"):
        return fail("packages", f"torch {found['torch']} has no CUDA; install the lock's")
    lock = lock_file(version, machine)
    if not lock.is_file():
        return warn("packages", f"there is no {lock}; SGLang {version} is used as it is installed")
    pins, holds = pinned(lock), lock.with_suffix(".in").read_text(encoding="utf-8")
    broken: list[str] = []
    other: list[str] = []
    for name in HELD:
        has = (found[name] or "none").split("+")[0]
        if has != pins.get(name):
            hold = re.search(rf"^{name}(==|<)(\S+)", holds, re.MULTILINE)
            kept = not hold or (hold[1] == "<" and version_key(has) < version_key(hold[2]))
            said = f"{name} {has} where the lock has {pins.get(name)}"
            (other if kept and found[name] else broken).append(said)
    if broken or other:
        text = f"{'; '.join(broken + other)}; install {lock}, {lock.stem}.in says why"
        return fail("packages", text) if broken else warn("packages", text)
    return ok("packages", ", ".join(f"{n} {pins[n]}" for n in HELD) + ", as locked")


def lock_file(version: str, machine: Machine) -> Path:
    return machine.envs / f"sglang-{version.split('+')[0]}.txt"


def pinned(lock: Path) -> dict[str, str]:
    """Versions by package."""
    text = lock.read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", text, re.MULTILINE))


def check_flags(config: Config, version: str | None, machine: Machine) -> Iterator[Line]:
    server = config.engine.server if isinstance(config.engine.server, dict) else {}
    try:
        refuse_simulation(machine.environ, config.engine.rehearsal, server)
        yield ok("simulation", "a rehearsal" if config.engine.rehearsal else "off")
    except ConfigError as error:
        yield fail("simulation", str(error))
    if version is not None:
        try:
            yield ok("flags", " ".join(translate(server, version)) or "none")
        except ConfigError as error:
            yield fail("flags", str(error))

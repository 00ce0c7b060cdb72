"""Checks of what a machine has installed: the model folder, SGLang, its flags. See check_machine.

Nothing is started or changed, and neither SGLang nor PyTorch is imported.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.check_machine.machine import Machine, Outcome, fail, ok, warn
from workflow_scripts.config.sections import Config
from workflow_scripts.generate.course import Course
from workflow_scripts.model.folder import end_token_ids, tokenizer_file
from workflow_scripts.model.prompts import PromptError, Prompts
from workflow_scripts.sglang.flags import nearest, refuse_simulation, translate
from workflow_scripts.sglang.version import version_key

HELD = ("kernels", "fastapi", "starlette", "torch")
GLIBC = (2, 34)  # SGLang's wheels need it
ASK = """
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""

# ---- the model ----------------------------------------------------------------------------------


def check_model(config: Config) -> Iterator[Outcome]:
    folder = Path(config.model.path)
    missing = [p for p in (folder / "config.json", tokenizer_file(config)) if not p.is_file()]
    if missing:
        hint = "run make setup" if config.engine.kind == "embedded" else "check model.path"
        yield fail("model", f"{' and '.join(map(str, missing))} missing; {hint}")
        return
    try:
        prompts = Prompts.from_config(config)
        prompts.prompt_ids([{"role": "user", "content": "Hello"}])
        Course.of(config, prompts)
        ends = end_token_ids(config)
    except ConfigError as error:
        yield fail("model", str(error))
        return
    except PromptError as error:
        yield fail("model", f"{error}, and it was only asked to render a plain question")
        return
    except Exception as error:  # the tokenizers library raises nothing narrower
        yield fail("model", f"{tokenizer_file(config)} cannot be read ({error}); fetch it again")
        return
    if ends:
        yield ok("model", f"{folder}: configuration, tokenizer and chat template are there")
    else:
        text = f"{folder}: no end token in generation_config.json, config.json or the tokenizer's"
        yield warn("model", f"{text}; answers may go on to max_new_tokens")
    if config.engine.kind == "sglang":
        yield check_weights(folder)


def check_weights(folder: Path) -> Outcome:
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


def check_sglang(config: Config, machine: Machine) -> tuple[str | None, list[Outcome]]:
    """The SGLang that `engine.python` has, and whether its packages are those of the lock."""
    lines, python = [], config.engine.python
    if machine.glibc and version_key(machine.glibc) < GLIBC:
        text = f"{machine.glibc} is too old for SGLang's wheels, which need 2.34; use a container"
        lines.append(fail("glibc", text))
    make = "make it with `make sglang`"
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


def _compare(version: str, found: dict[str, str | None], machine: Machine) -> Outcome:
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


def check_flags(config: Config, version: str | None, machine: Machine) -> Iterator[Outcome]:
    server = config.engine.flags
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

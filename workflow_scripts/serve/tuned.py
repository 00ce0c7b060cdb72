"""`engine.server: auto`: the flags that the last tune of this output folder chose.

They are put in the configuration's place when it is loaded, so that everything after it, the run's
hash included, sees real flags.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.model.folder import model_key
from workflow_scripts.serve.gpus import Gpu
from workflow_scripts.sglang.version import sglang_version

COMMAND = "python -m workflow_scripts.tune --configfile <this configuration>"
MEMORY_OFF = 0.01  # of a GPU's memory; less is the same GPU with another driver


def tuned_file(output_dir: str) -> Path:
    return Path(output_dir) / "tune/server.yaml"


def read_tuned(config: Config) -> dict[str, Any]:
    """What server.yaml holds: `server` (flags), `made_for`, `chosen`.

    Raises:
        ConfigError: there is none, it is damaged, made for another model, or a rehearsal's.
    """
    path = tuned_file(config.output_dir)
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        made_for, server = dict(found["made_for"]), dict(found["server"])
        model, rehearsal = made_for["model"], made_for["rehearsal"]
        _ = made_for["sglang"], made_for["gpu_mib"]
    except FileNotFoundError:
        raise ConfigError(
            f"engine.server: auto needs {path}, which is not there; make it with `{COMMAND}` "
            "(needs one GPU), or write the flags under engine.server"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"engine.server: auto: {path} is not what a tune writes ({error!r}); {_again(path)}"
        ) from None
    if model != model_key(Path(config.model.path)):
        raise ConfigError(
            f"engine.server: auto: {path} was made for another model than {config.model.path} "
            f"({made_for.get('model_path')}); {_again(path)}"
        )
    if rehearsal and not config.engine.rehearsal:
        raise ConfigError(
            f"engine.server: auto: {path} comes from a rehearsal, whose speeds and answers say "
            f"nothing of the real model; {_again(path)} without --rehearsal"
        )
    return {**found, "server": server, "made_for": made_for}


def _again(path: Path) -> str:
    return f"remove {path} and tune again with `{COMMAND}`"


def check_here(
    output_dir: str, made_for: dict[str, Any], version: str | None, gpus: Sequence[Gpu]
) -> None:
    """Whether this machine is like the one the tune was made on.

    Args:
        version: of SGLang; None where it is not known here, as on a login node.
        gpus: that servers will use; none where they are not known here.

    Raises:
        ConfigError: it is not.
    """
    path = tuned_file(output_dir)
    if version is not None and version != made_for["sglang"]:
        raise ConfigError(
            f"engine.server: auto: {path} was made for SGLang {made_for['sglang']}, here is "
            f"{version}; {_again(path)}"
        )
    wanted = made_for["gpu_mib"]
    for gpu in gpus:
        if wanted and gpu.total_mib and abs(gpu.total_mib / wanted - 1) > MEMORY_OFF:
            raise ConfigError(
                f"engine.server: auto: {path} was made for a GPU of {wanted:,} MiB "
                f"({made_for.get('gpu')}), GPU {gpu.index} ({gpu.name}) has {gpu.total_mib:,}; "
                f"{_again(path)}"
            )


def with_flags(config: Config, server: dict[str, Any]) -> Config:
    """The configuration with other flags for its servers."""
    engine = config.engine.model_copy(update={"server": server})
    return config.model_copy(update={"engine": engine})


def resolve(config: Config, gpus: Sequence[Gpu] = ()) -> tuple[Config, dict[str, Any] | None]:
    """The configuration with real flags, and what a tune made them for (None: not a tune's).

    Raises:
        ConfigError: see `read_tuned` and `check_here`.
    """
    if config.engine.server != "auto":
        return config, None
    if config.engine.kind != "sglang":
        raise ConfigError("engine.server: auto is for engine.kind `sglang` alone; remove it")
    found, version = read_tuned(config), None
    with suppress(ConfigError):  # it cannot be told here, as on a login node
        version = sglang_version(config.engine.python)
    check_here(config.output_dir, found["made_for"], version, gpus)
    return with_flags(config, found["server"]), found["made_for"]

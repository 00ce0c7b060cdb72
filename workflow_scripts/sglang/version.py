"""Versions of SGLang."""

import re
import subprocess

from workflow_scripts.base.errors import ConfigError

ASK = "import importlib.metadata as m; print(m.version('sglang'))"
ASK_S = 60.0


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare by."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def sglang_version(python: str) -> str:
    """The SGLang version that a Python has; SGLang itself is not imported.

    Raises:
        ConfigError: the Python cannot be run or has no SGLang.
    """
    try:
        done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, timeout=ASK_S)
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"engine.python: {python} cannot be run ({told}); make it with `make sglang`"
        ) from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        raise ConfigError(f"engine.python: {python} has no SGLang ({''.join(last)})")
    return done.stdout.strip()

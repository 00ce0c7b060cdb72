"""Versions of SGLang."""

import asyncio
import re

from workflow_scripts.base.errors import ConfigError


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


async def sglang_version(python: str) -> str:
    """The SGLang version that a Python has.

    Raises:
        ConfigError: the Python cannot be run or has no SGLang.
    """
    code = "import importlib.metadata as m; print(m.version('sglang'))"
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise ConfigError(
            f"engine.python: {python} cannot be run ({error.strerror}); make it with `make sglang`"
        ) from None
    out, errors = await process.communicate()
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise ConfigError(f"engine.python: {python} has no SGLang ({''.join(last)})")
    return out.decode().strip()

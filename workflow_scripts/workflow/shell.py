"""The shell that rules run in."""

import shlex
import sys
from pathlib import Path


def stage_function(root: str, note: Path) -> str:
    """A shell function for the rules: `stage NAME ...` runs a script with the Python that runs
    Snakemake, not with whatever `python` the path has. Braces are doubled for Snakemake, whose own
    prefix this one replaces: without pipefail a script that fails before `tee` would pass.

    Args:
        note: a file that is there when the run stops (serve/faults.py). Jobs that Snakemake has
            handed to its threads start even then, and would go on for as long as a shard takes.
    """
    absent = f"[ ! -e {shlex.quote(str(note))} ]".replace("{", "{{").replace("}", "}}")
    path = f"{root}${{{{PYTHONPATH:+:$PYTHONPATH}}}}"
    python = f'PYTHONPATH="{path}" "{sys.executable}" -m workflow_scripts."$@"'
    return f"set -euo pipefail; stage() {{{{ {absent} && {python}; }}}}; "

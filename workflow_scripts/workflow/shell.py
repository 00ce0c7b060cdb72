"""The shell that rules run in."""

import sys


def stage_function(root: str) -> str:
    """A shell function for the rules: `stage NAME ...` runs a script with the Python that runs
    Snakemake, not with whatever `python` the path has. Braces are doubled for Snakemake, whose own
    prefix this one replaces: without pipefail a script that fails before `tee` would pass."""
    path = f"{root}${{{{PYTHONPATH:+:$PYTHONPATH}}}}"
    python = f'PYTHONPATH="{path}" "{sys.executable}" -m workflow_scripts."$@"'
    return f"set -euo pipefail; stage() {{{{ {python}; }}}}; "

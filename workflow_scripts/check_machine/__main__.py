"""Say what is wrong with a machine before a run.

    python -m workflow_scripts.check_machine --configfile my-run.yaml

One line a check: ok, WARN or FAIL, and what to do. Ends with status 1 if anything failed.
"""

import argparse
from pathlib import Path

import yaml

from workflow_scripts.check_machine.job import check
from workflow_scripts.check_machine.machine import Machine, fail


def main(argv: list[str] | None = None, machine: Machine | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--configfile", type=Path, default=Path("config/config.yaml"))
    args = parser.parse_args(argv)
    try:
        values = yaml.safe_load(args.configfile.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        lines = iter([fail("configuration", f"{args.configfile} cannot be read: {error}")])
    else:
        lines = check(values, machine or Machine())
    failed = False
    for line in lines:
        print(f"{line.state:4}  {line.check:13}  {line.text}", flush=True)
        failed |= line.state == "FAIL"
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())

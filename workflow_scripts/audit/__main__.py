"""Audit a dataset: what is in it, what its responses are worth, and what cannot be used.

Always ends with 0 once it has written its evidence; the audit gate judges it.
"""

import argparse
from pathlib import Path

import orjson

from workflow_scripts.audit.job import audit
from workflow_scripts.audit.verdict import summary
from workflow_scripts.base import sums
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import write_atomically
from workflow_scripts.base.locks import sole
from workflow_scripts.base.log import say
from workflow_scripts.config.load import read_run


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--rejected", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args(argv)
    config, _ = read_run(args.run)
    out = args.report.parent
    try:
        with sole(args.run.parent, "audit"):
            result = audit(config, out, args.rejected, args.rows, args.processes)
            write_atomically(args.report, orjson.dumps(result, option=orjson.OPT_INDENT_2))
            sums.record(out, [args.report, args.rejected, args.rows])
    except (ConfigError, OSError) as error:
        say(f"audit: {error}")
        return 1
    for line in summary(result):
        say(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

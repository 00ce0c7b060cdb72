"""The report: one self-contained page that says what went in, what came out and what fell out."""

import argparse
from pathlib import Path

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import write_atomically
from workflow_scripts.base.locks import sole
from workflow_scripts.base.log import say
from workflow_scripts.config.load import read_run
from workflow_scripts.report.job import collect
from workflow_scripts.report.page import render


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--output", type=Path, required=True, help="the page, HTML")
    args = parser.parse_args(argv)
    config, identity = read_run(args.run)
    try:
        with sole(args.run.parent, "report"):
            page = render(collect(config, identity))
            write_atomically(args.output, page.encode("utf-8", "replace"))
    except (ConfigError, OSError) as error:
        say(f"report: {error}")
        return 1
    say(f"report: {args.output} ({len(page) // 1024} KiB)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Build the training data: one row a generated turn, from the engine's own ids."""

import argparse
from pathlib import Path

from workflow_scripts.base import sums
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.locks import sole
from workflow_scripts.base.log import say
from workflow_scripts.config.load import read_run
from workflow_scripts.dataset.drift import TemplateChanged
from workflow_scripts.dataset.job import build
from workflow_scripts.model.prompts import Prompts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--completions", type=Path, required=True)
    parser.add_argument("--audit", type=Path, help="audit/report.json, for the dataset card")
    parser.add_argument("--output", type=Path, required=True, help="folder for the dataset")
    args = parser.parse_args(argv)
    config, identity = read_run(args.run)
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        with sole(args.run.parent, "dataset"):
            sums.check(args.completions)
            audit = sums.checked_json(args.audit) if args.audit else None
            prompts = Prompts.from_config(config)
            stats = build(args.completions, args.output, config, prompts, identity, audit)
    except (ConfigError, TemplateChanged, OSError) as error:
        say(f"dataset: {error}")
        return 1
    rows = stats["rows"]
    also = f", {rows['drafter']} for drafters only" if rows["drafter"] else ""
    say(
        f"dataset: {rows['train']} train and {rows['validation']} validation rows{also}, "
        f"{stats['supervised_tokens']} supervised tokens; {rows['dropped']} dropped"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

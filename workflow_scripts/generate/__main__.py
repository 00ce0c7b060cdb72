"""Generate one shard: ask for every row that has no answer yet, then write the shard out."""

import argparse
import asyncio
import os
from pathlib import Path

from workflow_scripts.base import sums
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.log import say
from workflow_scripts.config.load import read_run
from workflow_scripts.engine.places import NoServer
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.generate.job import generate
from workflow_scripts.generate.retries import RETRY_VARIABLE
from workflow_scripts.generate.shard import TakenOver, TooManyFailed
from workflow_scripts.serve.faults import is_of_all, stop_run


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--shard", type=int, required=True, help="number of the shard, from 0")
    parser.add_argument("--manifest", type=Path, required=True, help="beside the shards' rows")
    parser.add_argument("--output", type=Path, required=True, help=".../shard-<number>.parquet")
    args = parser.parse_args(argv)
    config, identity = read_run(args.run)
    try:
        manifest = sums.checked_json(args.manifest)
        counts = generate(
            config,
            identity["run_hash"],
            args.manifest.with_name(args.output.name),
            args.shard,
            manifest["asked"],
            args.output.parent,
            retry_failed=bool(os.environ.get(RETRY_VARIABLE)),
            written=manifest["sha256"][args.shard],
        )
    except (NoServer, EngineError, ConfigError, OSError) as error:
        stops = is_of_all(error) and stop_run(config.output_dir, str(error))
        say(f"shard {args.shard}: {'the run stops and says why' if stops else error}")
        return 1
    except (TooManyFailed, TakenOver) as error:
        say(f"shard {args.shard}: {error}")
        return 1
    except asyncio.CancelledError:
        say(f"shard {args.shard}: stopped; the next run goes on from the journal")
        return 130
    say(f"shard {args.shard}: {counts['completed']} completed, {counts['failed']} failed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

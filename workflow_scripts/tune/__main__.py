"""Measure on one GPU which server flags answer the run's own prompts fastest.

    python -m workflow_scripts.tune --configfile my-run.yaml

Every candidate is predicted, started, asked a greedy sample, loaded until its speed is known and
stopped. Each result is on the disk before the next candidate starts, and the same command goes on
where it was interrupted. What is chosen is in <output_dir>/tune/server.yaml, which
`engine.server: auto` uses.
"""

import argparse
import asyncio
import os
import socket
from pathlib import Path

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.locks import hold
from workflow_scripts.base.log import say
from workflow_scripts.base.signals import cancel_on_signals
from workflow_scripts.config.sections import Config
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.errors import CanaryFailed
from workflow_scripts.serve.gpus import Gpu, in_use, lease, usable_gpus
from workflow_scripts.serve.tuned import tuned_file
from workflow_scripts.sglang.flags import nearest, refuse_simulation
from workflow_scripts.sglang.memory import OWN_GIB
from workflow_scripts.sglang.version import sglang_version
from workflow_scripts.tune.candidates import Maker, read_named
from workflow_scripts.tune.files import finish
from workflow_scripts.tune.job import SIMULATED, Tune
from workflow_scripts.tune.measure import Window
from workflow_scripts.tune.options import configured, parse, usual_tokens
from workflow_scripts.tune.sample import draw
from workflow_scripts.tune.setup import Setup


def lease_one(config: Config, name: str | None) -> tuple[Gpu, socket.socket]:
    """The GPU that is named, or the first free one of the configuration's, taken.

    Raises:
        ConfigError: it is in use by a run or another tune, or is not there.
    """
    wanted = "auto" if isinstance(config.engine.gpus, int) else config.engine.gpus
    gpus = usable_gpus(wanted if name is None else [name])
    for gpu in gpus:
        if (lock := lease(gpu)) is not None:
            return gpu, lock
    raise ConfigError(
        f"{'; '.join(map(in_use, gpus))}; wait for that run or tune to end, or name a free GPU "
        "with --gpu"
    )


async def run(args: argparse.Namespace) -> int:
    """Tune, ending in order on SIGTERM and SIGINT: the server is stopped first."""
    cancel_on_signals()
    config = configured(args)
    out = args.output or tuned_file(config.output_dir).parent
    with hold(out / ".lock"):
        gpu, taken = lease_one(config, args.gpu)
        with taken:
            setup = await prepare(config, args, gpu, out)
            tune = Tune(setup)
            await tune.run()
            for line in finish(setup, tune.results()):
                print(line, flush=True)
    return 0


async def prepare(config: Config, args: argparse.Namespace, gpu: Gpu, out: Path) -> Setup:
    """The tune that a command line asks for, on a leased GPU.

    Raises:
        ConfigError: a flag, a candidate or the environment cannot be used.
    """
    server = config.engine.flags
    if config.engine.rehearsal:  # set for the candidates with speculation alone
        os.environ.pop(SIMULATED, None)
    refuse_simulation(os.environ, config.engine.rehearsal, server)
    version = await asyncio.to_thread(sglang_version, config.engine.python)
    if warning := nearest(version)[1]:
        say(warning)
    prompts = await asyncio.to_thread(Prompts.from_config, config)
    sample = await asyncio.to_thread(draw, config, prompts, args.rows)
    say(f"{len(sample.prompts):,} prompts of the {sample.requests:,} {sample.source}")
    total = gpu.total_mib
    gib = total / 1024 - OWN_GIB if total else None
    tokens = args.request_tokens or usual_tokens(config, sample)
    maker = Maker(Path(config.model.path), server, version, gib, total, tokens)
    named = read_named(args.candidates) if args.candidates else {}
    candidates = maker.all(named, args.most)
    window = Window(args.window_s, args.fill_s, args.interval_s)
    accept = args.accept_length if config.engine.rehearsal else None
    return Setup(config, prompts, gpu, version, sample, candidates, window, out, accept, args.again)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv, (__doc__ or "").split("\n", 1)[0])
    try:
        return asyncio.run(run(args))
    except (ConfigError, CanaryFailed, OSError) as error:
        say(f"tune: {error}")
        return 1
    except asyncio.CancelledError:
        say("tune: stopped; the same command goes on with the next candidate")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())

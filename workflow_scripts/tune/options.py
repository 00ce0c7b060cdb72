"""The command line of a tune, and the configuration as it sees it."""

import argparse
from pathlib import Path

import yaml

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.load import load
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import rehearsal_length
from workflow_scripts.sglang.flags import plain
from workflow_scripts.tune.sample import PromptSample


def usual_tokens(config: Config, sample: PromptSample) -> float | None:
    """Tokens of a usual request, where lengths are fixed."""
    spread = config.engine.rehearsal_tokens
    if not spread:
        return None
    drawn = [rehearsal_length(spread, prompt.row_id, 0) for prompt in sample.prompts]
    return sample.mean_tokens + sum(drawn) / len(drawn)


def configured(args: argparse.Namespace) -> Config:
    """The configuration, a rehearsal where the command says so.

    Raises:
        ConfigError: it cannot be tuned.
    """
    try:
        values = yaml.safe_load(args.configfile.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--configfile: {args.configfile} cannot be read: {error}") from None
    config = load(values)
    if config.engine.kind != "sglang":
        raise ConfigError(
            f"engine.kind: only `sglang` servers can be tuned, this is `{config.engine.kind}`"
        )
    if args.rehearsal:
        engine = config.engine.model_copy(update={"rehearsal": True})
        config = config.model_copy(update={"engine": engine})
    if args.accept_length and not config.engine.rehearsal:
        raise ConfigError(
            "--accept-length: a simulated accept length makes answers garbage; only with "
            "--rehearsal"
        )
    server = config.engine.flags
    dummy = any(plain(k) == "load_format" and v == "dummy" for k, v in server.items())
    if config.engine.rehearsal and dummy and not config.engine.rehearsal_tokens:
        raise ConfigError(
            "engine.rehearsal_tokens: dummy weights never stop by themselves; set the answers' "
            "median and 95th percentile, e.g. [384, 768], and engine.rehearsal: true"
        )
    return config


def parse(argv: list[str] | None, description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--configfile", type=Path, default=Path("config/config.yaml"))
    add("--gpu", help="index or UUID; the first free one of engine.gpus unless given")
    add("--candidates", type=Path, help="YAML: names, each with flags added to engine.server")
    add("--most", type=int, default=6, help="candidates in all, the baseline included")
    add("--rows", type=int, default=1024, help="prompts of the run to ask")
    add("--window-s", type=float, default=60.0, help="longest measurement of a full server")
    add("--fill-s", type=float, default=180.0, help="longest wait for a server to be full")
    add("--interval-s", type=float, default=5.0, help="a speed is counted over this long")
    add("--request-tokens", type=float, help="prompt and answer of a usual request, for the plan")
    add("--rehearsal", action="store_true", help="dummy weights; nothing is refused")
    add("--accept-length", type=float, help="simulated with speculation, in a rehearsal")
    add("--again", action="store_true", help="try candidates again that failed")
    add("--output", type=Path, help="folder for the results; <output_dir>/tune unless given")
    args = parser.parse_args(argv)
    for name in ("most", "rows", "window_s", "fill_s", "interval_s"):
        if getattr(args, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    return args

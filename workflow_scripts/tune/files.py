"""The files of a tune: table.md, report.html and the chosen flags in server.yaml."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import orjson

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import write_atomically
from workflow_scripts.serve.gpus import usable_gpus
from workflow_scripts.serve.tuned import tuned_file
from workflow_scripts.tune import judge
from workflow_scripts.tune.page import page
from workflow_scripts.tune.report import About, before_and_after, markdown, server_yaml
from workflow_scripts.tune.results import Result
from workflow_scripts.tune.setup import Setup


def about_of(setup: Setup, results: list[Result]) -> About:
    """What the tables say of the tune as a whole."""
    config, gpu, sampling = setup.config, setup.gpu, setup.config.sampling
    spread = config.engine.rehearsal_tokens
    asked = f"temperature {sampling.temperature:g}, at most {sampling.max_new_tokens:,} tokens"
    if spread:
        asked = f"answers of fixed lengths, median {spread[0]}, 95 % up to {spread[1]} tokens"
    model, newest = Path(config.model.path), max(r.finished_at for r in results)
    described = orjson.loads((model / "config.json").read_bytes())
    try:
        gpus = len(usable_gpus(config.engine.gpus))
    except ConfigError:
        gpus = 1
    return About(
        model=model.name,
        model_path=str(model),
        model_key=setup.model_key,
        architecture=str((described.get("architectures") or ["?"])[0]),
        sglang=setup.version,
        gpu=gpu.name,
        gpu_mib=gpu.total_mib,
        rehearsal=config.engine.rehearsal,
        accept_length=setup.accept_length,
        requests=setup.sample.requests,
        gpus=max(gpus, 1),
        prompts=len(setup.sample.prompts),
        prompt_tokens=setup.sample.mean_tokens,
        source=setup.sample.source,
        sampling=asked,
        window_s=setup.window.window_s,
        interval_s=setup.window.interval_s,
        made_at=datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        planned=len(setup.candidates),
    )


def write_report(setup: Setup, results: list[Result]) -> judge.Choice:
    """Write table.md and report.html."""
    about = about_of(setup, results)
    choice = judge.choose(results, enforce=not about.rehearsal)
    write_atomically(setup.out / "table.md", markdown(results, choice, about).encode())
    text = page(results, choice, about)
    write_atomically(setup.out / "report.html", text.encode("utf-8", "replace"))
    return choice


def finish(setup: Setup, results: list[Result]) -> Iterator[str]:
    """Write the chosen flags, and say what came out."""
    about, choice = about_of(setup, results), write_report(setup, results)
    if about.label:
        yield f"{about.label}."
    head, rows = before_and_after(results, choice, about)
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        yield "  ".join(text.ljust(n) for text, n in zip(row, widths, strict=True)).rstrip()
    if choice.result is None:
        yield f"No choice: {choice.why}; {setup.out / 'table.md'} says what befell each one."
        return
    yield f"Choice: {choice.result.name}, {choice.why}."
    path = setup.out / "server.yaml"
    write_atomically(path, server_yaml(results, choice, about).encode())
    yield f"Tables: {setup.out / 'table.md'}. Plots: {setup.out / 'report.html'}."
    used = tuned_file(setup.config.output_dir)
    hint = "" if path == used else f" once it is copied to {used}"
    yield f"Flags: {path}; engine.server: auto uses it{hint}."

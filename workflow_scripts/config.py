"""The configuration: one source of defaults, documentation and JSON schema.

`python -m workflow_scripts.config_docs --write` makes config/schema.json and
docs/configuration.md from these models; a test holds that they are current.

Every field says what a change of it does: `data` (it is part of a stage's parameters, so that
stage runs again), `layout` (stages run again, but no answered row is asked again) or `speed`
(nothing runs again).
"""

import difflib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from workflow_scripts.config_audit import Audit
from workflow_scripts.config_dataset import Dataset
from workflow_scripts.config_fields import Section, data, layout, section, speed


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key and the remedy."""


class Model(Section):
    """The model whose answers are wanted."""

    path: str = data(
        description="Model folder in Hugging Face layout (config.json, tokenizer.json, weights). "
        "Its content counts, not its place: moving the folder reruns nothing."
    )
    tokenizer: str | None = data(
        None, description="Folder or tokenizer.json to use in place of the model folder's."
    )
    chat_template: str | None = data(
        None, description="Jinja file to use in place of the tokenizer's chat template."
    )
    thinking: bool = data(
        True,
        description="Render prompts with thinking on (`enable_thinking`). An error for a model "
        "whose vocabulary has no <think> and </think> tokens.",
    )
    history_reasoning: Literal["template", "keep"] = data(
        "template",
        description="Reasoning of earlier turns in the prompts of later ones. `template`: as the "
        "chat template does it, which usually leaves it out. `keep`: the template is told to keep "
        "it (`preserve_thinking`, `clear_thinking`); an error for one that does not.",
    )


class Canary(Section):
    """A question whose answer is known."""

    prompt: str = Field(description="What is asked, greedily.")
    expect: str = Field(description="Regular expression that the answer must contain.")
    max_new_tokens: int = Field(default=512, ge=1, description="Tokens for reasoning and answer.")


class Engine(Section):
    """Where the answers come from."""

    kind: Literal["embedded", "sglang", "attach"] = data(
        "sglang",
        description="`embedded`: the small CPU engine of the demo. `sglang`: one SGLang server "
        "per GPU. `attach`: SGLang servers that already run, named in `urls`.",
    )
    urls: list[str] = speed([], description="Base URLs of running servers (`attach` only).")
    gpus: Literal["auto"] | int | list[int | str] = speed(
        "auto", description="GPUs to use: `auto` (all that are found), a number, or a list."
    )
    server: Literal["auto"] | dict[str, Any] = speed(
        {},
        description="SGLang flags by name, without dashes in front. Those that change numerics "
        "(dtypes, quantization, speculation) are part of the run's hash; the others are not. "
        "`auto`: the flags that `python -m workflow_scripts.tune` chose for this `output_dir`.",
    )
    slots: Annotated[int, Field(ge=1, le=64)] = speed(
        8, description="Requests at once in the embedded engine."
    )
    slot_context: Annotated[int, Field(ge=64)] = speed(
        1024, description="Tokens of context of each of the embedded engine's slots."
    )
    python: str = speed(
        ".venv-sglang/bin/python", description="Python that has SGLang installed (`sglang` only)."
    )
    stage: str | None = speed(
        None,
        description="Folder to copy the model to first, e.g. /dev/shm; one copy for all servers "
        "(`sglang` only).",
    )
    stage_keep: bool = speed(False, description="Keep that copy when the servers stop.")
    start_timeout_s: Annotated[float, Field(gt=0)] = speed(
        1800.0, description="Seconds a server may take until it generates its first token."
    )
    start_attempts: Annotated[int, Field(ge=1)] = speed(
        3, description="Starts in a row without a ready server before its GPU is given up."
    )
    idle_s: Annotated[float, Field(gt=0)] = speed(
        60.0, description="Seconds without a job after which servers stop by themselves."
    )
    metrics_s: Annotated[float, Field(gt=0)] = speed(
        5.0, description="Seconds between two lines of logs/metrics.jsonl per server."
    )
    canary: list[Canary] = speed(
        [Canary(prompt="What is the capital of France? Answer with its name.", expect="Paris")],
        description="Questions with known answers, asked after each server start and before the "
        "first row. A server that fails one stops the run.",
    )
    rehearsal: bool = speed(
        False,
        description="Dummy weights: no canary, simulated acceptance allowed, results labelled.",
    )
    rehearsal_tokens: tuple[int, int] | None = data(
        None,
        description="Rehearsals only, since dummy weights never stop: completion lengths are fixed "
        "per row, drawn from a log-normal distribution with this median and 95th percentile.",
    )
    reconnect_s: Annotated[float, Field(gt=0)] = speed(
        120.0,
        description="Seconds to wait for a server to come back before the job stops. Rows that "
        "were not answered are asked by the next run; they do not count as failed.",
    )


class Sampling(Section):
    """How the engine samples. Sent explicitly with every request: no engine default applies."""

    temperature: Annotated[float, Field(ge=0)] = data(0.6, description="0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] = data(0.95, description="1 is off.")
    top_k: Annotated[int, Field(ge=-1)] = data(20, description="-1 is off.")
    min_p: Annotated[float, Field(ge=0, lt=1)] = data(0.0, description="0 is off.")
    max_new_tokens: Annotated[int, Field(ge=1)] = data(
        32768, description="Longest completion, in tokens; an answer cut there is `truncated`."
    )
    min_new_tokens: Annotated[int, Field(ge=1)] = data(
        256,
        description="A prompt that leaves less than max_new_tokens of the server's context gets "
        "what is left, but not less than this; one that leaves less fails as `over_context`.",
    )
    seed: int = data(
        0, description="Each request's seed is derived from this one, its row and its turn."
    )


class Generate(Section):
    """How the requests are carried out."""

    concurrency: Literal["auto"] | Annotated[int, Field(ge=1)] = speed(
        "auto",
        description="Requests in flight per server. `auto`: a little above what the server says "
        "it runs at once.",
    )
    retries: Annotated[int, Field(ge=1)] = speed(
        4, description="Attempts per request inside one job, the first included."
    )
    stall_timeout_s: Annotated[float, Field(gt=0)] = speed(
        300.0,
        description="Seconds without any progress of a server (no answer, no new token) after "
        "which its requests are given up and asked again.",
    )
    slowest_token_s: Annotated[float, Field(gt=0)] = speed(
        0.5,
        description="A single request is given up after `stall_timeout_s` plus this many seconds "
        "per token of max_new_tokens, even if its server makes progress.",
    )
    max_failed_fraction: Annotated[float, Field(ge=0, le=1)] = speed(
        0.01, description="A shard with a larger share of failed rows fails its job."
    )
    journal_sync_s: Annotated[float, Field(gt=0)] = speed(
        5.0,
        description="The journal is forced to the disk this often. A killed process loses no "
        "written answer; a power cut loses at most this many seconds.",
    )


class Config(Section):
    """Tracemill's configuration."""

    output_dir: str = speed(description="Where a run's files go.")
    input: list[str] = data(
        description="Input files or folders: a path, a glob, or a list of them. JSON Lines (also "
        ".gz and .zst), JSON arrays, Parquet, Arrow, Hugging Face dataset folders."
    )
    input_format: Literal["auto", "jsonl", "json", "parquet", "arrow"] = data(
        "auto", description="Format of every input file. `auto`: by each file's own first bytes."
    )
    regenerate: Literal["all", "trivial"] = data(
        "all",
        description="`trivial`: rows that the audit does not flag keep their old response.",
    )
    shards: Annotated[int, Field(ge=1, le=9999)] = layout(
        8,
        description="Parts the asked rows are split into. A change asks no completed row again.",
    )
    model: Model
    engine: Engine = section(Engine, "Where the answers come from.")
    sampling: Sampling = section(Sampling, "How the engine samples.")
    generate: Generate = section(Generate, "How the requests are carried out.")
    audit: Audit = section(Audit, "What the audit looks for and when it stops the run.")
    dataset: Dataset = section(Dataset, "The training data.")

    @model_validator(mode="before")
    @classmethod
    def _one_input_is_a_list(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("input"), str):
            values = {**values, "input": [values["input"]]}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> "Config":
        if not self.input:
            raise ValueError("input: name at least one file or glob")
        if self.engine.kind == "attach" and not self.engine.urls:
            raise ValueError("engine.urls: kind `attach` needs the URL of a running server")
        if self.engine.kind != "attach" and self.engine.urls:
            raise ValueError("engine.urls: only kind `attach` takes URLs; remove them")
        if self.engine.rehearsal_tokens and not self.engine.rehearsal:
            raise ValueError("engine.rehearsal_tokens: only for a rehearsal; set engine.rehearsal")
        if self.audit.suspicious_share > self.audit.worthless_share:
            raise ValueError("audit.suspicious_share: must not exceed audit.worthless_share")
        return self


def load(values: dict[str, Any]) -> Config:
    """Check a configuration and fill in its defaults.

    Raises:
        ConfigError: one line per fault, each with its key; an unknown key names the nearest
            known one.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        lines = [_explain(fault) for fault in error.errors()]
        raise ConfigError("the configuration cannot be used:\n  " + "\n  ".join(lines)) from None


def read_run(path: Path) -> tuple[Config, dict[str, Any]]:
    """The configuration and the identity of a run, from the run.json in its folder.

    Scripts take their settings from there; the rules' `params:` say which of them make a stage run
    again.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    return Config.model_validate(found["config"]), found["identity"]


def _explain(fault: Any) -> str:
    loc = [str(part) for part in fault["loc"]]
    if fault["type"] != "extra_forbidden":
        where = ".".join(loc)
        return f"{where}: {fault['msg']}" if where else fault["msg"].removeprefix("Value error, ")
    known = [name for name, _, _ in walk(Config)]
    parent, key = loc[:-1], loc[-1]
    prefix = ".".join(parent) + "." if parent else ""
    siblings = {n.removeprefix(prefix).split(".")[0] for n in known if n.startswith(prefix)}
    elsewhere = [n for n in known if n.rsplit(".", 1)[-1] == key]
    near = difflib.get_close_matches(key, siblings, 1, 0.5)
    if elsewhere or near:
        return f"{prefix}{key}: unknown key; did you mean {(elsewhere or [prefix + near[0]])[0]}?"
    far = difflib.get_close_matches(key, [n.rsplit(".", 1)[-1] for n in known], 1, 0.6)
    if far:
        full = next(n for n in known if n.rsplit(".", 1)[-1] == far[0])
        return f"{prefix}{key}: unknown key; did you mean {full}?"
    return f"{prefix}{key}: unknown key; known here: {', '.join(sorted(siblings))}"


def walk(model: type[BaseModel], prefix: str = "") -> list[tuple[str, Any, str]]:
    """All keys as (dotted name, field, what a change does), sections themselves left out."""
    found = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            found += walk(inner, f"{prefix}{name}.")
        else:
            extra = field.json_schema_extra
            changes = str(extra["changes"]) if isinstance(extra, dict) else "data"
            found.append((prefix + name, field, changes))
    return found


def canonical(value: Any) -> str:
    """The one JSON spelling of a value: sorted keys, no spaces. Snakemake compares parameters
    as text, so equal settings must be equal text."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_as_dict
    )


def _as_dict(value: BaseModel) -> Any:
    return value.model_dump(mode="json")

"""The sections of the configuration; config/load.py checks them."""

import datetime
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from workflow_scripts.config.audit import Audit
from workflow_scripts.config.dataset import Dataset
from workflow_scripts.config.fields import Section, data, layout, section, speed

# What a template is given by other means.
GIVEN = {"messages", "tools", "documents", "add_generation_prompt"}
SWITCHES = {"enable_thinking", "thinking"}


class ReasoningMarks(Section):
    """What stands before and after a reasoning in an assistant's turn."""

    open: Annotated[str, Field(min_length=1)] = data(description="What opens it, as `<think>`.")
    close: Annotated[str, Field(min_length=1)] = data(
        description="What closes it, up to where the answer begins, as `</think>`."
    )


VARIABLE = re.compile(r"\$\{\w+\}")  # an environment variable in a URL


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
        description="Render prompts with thinking on (`enable_thinking`, `thinking`). An error "
        "where the chat template does otherwise: it ends the prompt with a reasoning that is over, "
        "or with an open one although thinking is off, or nothing in it or in the tokenizer shows "
        "a reasoning.",
    )
    reasoning: ReasoningMarks | None = data(
        None,
        description="What opens and closes a reasoning, as `{open: <think>, close: </think>}`; "
        "found out from what the chat template writes where it is not set.",
    )
    template_variables: dict[str, Any] = data(
        {},
        description="Other variables of the chat template, by name, such as `reasoning_effort` or "
        "`thinking_budget`.",
    )
    date: datetime.date | None = data(
        None,
        description="The date, as 2026-01-31, that a chat template prints that asks for today's. "
        "An error for such a template without one: its prompts would change from day to day.",
    )
    history_reasoning: Literal["template", "keep"] = data(
        "template",
        description="Reasoning of earlier turns in the prompts of later ones. `template`: as the "
        "chat template does it, which usually leaves it out. `keep`: the template is told to keep "
        "it (`preserve_thinking`, `clear_thinking`); an error for one that does not.",
    )

    @field_validator("template_variables")
    @classmethod
    def _are_not_given_otherwise(cls, values: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(GIVEN & {*values}):
            raise ValueError(f"{', '.join(taken)}: given by the rows, not by the configuration")
        if taken := sorted(SWITCHES & {*values}):
            raise ValueError(f"{', '.join(taken)}: decided by model.thinking; set that")
        return values


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
    urls: list[str] = speed(
        [],
        description="Base URLs of running servers (`attach` only). A user or password in one is "
        "the name of an environment variable, `http://${USER}:${PASSWORD}@host`: what stands here "
        "goes into run.json.",
    )
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
        description="Folder of this host to copy the model to first, e.g. /dev/shm; one copy for "
        "all servers, removed when they stop. What a killed run leaves, here any of this user's "
        "copies that no run uses, is removed by the next that has this folder (`sglang` only).",
    )
    stage_keep: bool = speed(
        False, description="Keep that copy when the servers stop; it is yours to remove."
    )
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
        description="Seconds to wait while no attached server answers, before the run stops. Rows "
        "that were not answered are asked by the next run; they do not count as failed.",
    )

    @property
    def flags(self) -> dict[str, Any]:
        """The flags under `server`; none while it still says `auto`."""
        return self.server if isinstance(self.server, dict) else {}


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
        for url in self.engine.urls:
            parts = urlsplit(url)
            secrets = (part for part in (parts.username, parts.password) if part)
            if not all(map(VARIABLE.fullmatch, secrets)):
                raise ValueError(
                    f"engine.urls: a user or password for {parts.hostname} would stand in "
                    "run.json; write ${NAME} in its place and set that environment variable"
                )
        if self.engine.rehearsal_tokens and not self.engine.rehearsal:
            raise ValueError("engine.rehearsal_tokens: only for a rehearsal; set engine.rehearsal")
        if self.audit.suspicious_share > self.audit.worthless_share:
            raise ValueError("audit.suspicious_share: must not exceed audit.worthless_share")
        return self

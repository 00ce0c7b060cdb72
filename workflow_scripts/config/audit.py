"""The audit's part of the configuration; see config.py."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from workflow_scripts.config.fields import Section, data, section

# A place of `prompt_template`: a column's path in braces, or a doubled brace, which is one as text.
PLACE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")


class Rules(Section):
    """Declared rules for conversations that deviate; each use is counted in the audit."""

    second_system: Literal["merge", "reject"] = data(
        "merge", description="A further system turn at the start: joined by an empty line."
    )
    leading_assistant: Literal["drop", "reject"] = data(
        "drop", description="An assistant turn before the first user turn."
    )
    tool_turns: Literal["reject", "keep", "regenerate"] = data(
        "reject",
        description="Tool turns and assistant turns that call tools. `keep`: they stay in the "
        "history as they are, only the other assistant turns are asked. `regenerate`: the model "
        "is asked for call turns too; where its calls equal the old ones, the recorded results "
        "follow.",
    )
    repeated_user: Literal["join", "reject"] = data(
        "join", description="User turns in a row: joined by an empty line."
    )
    repeated_assistant: Literal["join", "last", "reject"] = data(
        "join", description="Assistant turns in a row: joined, or the last one taken."
    )
    reasoning_closer_only: Literal["repair", "reject"] = data(
        "repair", description="An old response with </think> but no <think>: reasoning up to it."
    )

    @property
    def asks_calls(self) -> bool:
        """Whether the turns that call tools are the model's to generate."""
        return self.tool_turns == "regenerate"


class Columns(Section):
    """Names of an input's columns, where they are not to be found by themselves."""

    messages: str | None = data(None, description="List of turns, ShareGPT or OpenAI.")
    prompt: str | Annotated[list[str], Field(min_length=1)] | None = data(
        None, description="The prompt's text; several columns are joined by an empty line."
    )
    prompt_template: str | None = data(
        None,
        description="How the columns of `prompt` are joined instead: a text with each of them as "
        "{column}; {{ and }} are braces.",
    )
    response: str | None = data(None, description="The response's text.")
    system: str | None = data(None, description="A system prompt's text.")
    reasoning: str | None = data(None, description="The response's reasoning.")
    tools: str | None = data(None, description="Schemas of the tools that the model may call.")
    documents: str | None = data(None, description="Documents for the chat template.")
    id: str | None = data(None, description="The user's own id, carried along.")
    input_ids: str | None = data(None, description="Token ids of an already tokenized set.")
    loss_mask: str | None = data(None, description="1 for a response's ids, beside input_ids.")
    labels: str | None = data(None, description="Ids of a response, -100 elsewhere.")
    response_start: str | None = data(None, description="Index of a response's first id.")

    @property
    def prompts(self) -> list[str]:
        """The columns of `prompt`."""
        return [self.prompt] if isinstance(self.prompt, str) else list(self.prompt or [])

    @property
    def named(self) -> list[str]:
        """All columns that are named, paths of objects included."""
        others = self.model_dump(exclude={"prompt", "prompt_template"}).values()
        return sorted({*self.prompts, *(name for name in others if name)})

    @model_validator(mode="after")
    def _template_places_each_column(self) -> Self:
        if self.prompt_template is None:
            return self
        if not self.prompt:
            raise ValueError("`prompt_template` needs `prompt`, the columns that it places")
        left = PLACE.sub("", self.prompt_template)
        if "{" in left or "}" in left:
            raise ValueError("`prompt_template` has a single brace; {{ and }} are braces as text")
        placed = {name for name in PLACE.findall(self.prompt_template) if name}
        wrong = [
            f"places `{name}`, which `prompt` does not name" for name in placed - {*self.prompts}
        ]
        wrong += [f"does not place `{name}` of `prompt`" for name in {*self.prompts} - placed]
        if wrong:
            raise ValueError(f"`prompt_template` {' and '.join(sorted(wrong))}")
        return self


class Estimate(Section):
    """What regeneration would cost; every figure comes with these assumptions."""

    tokens_per_s: Annotated[float, Field(gt=0)] = data(
        1500.0, description="Generated tokens per second of one GPU, as `tune` or a run showed."
    )
    gpus: Annotated[int, Field(ge=1)] = data(1, description="GPUs that work at the same time.")
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = data(
        None, description="Price of a GPU hour in any currency; no cost without it."
    )
    mean_output_tokens: Annotated[float, Field(gt=0)] | None = data(
        None,
        description="Expected tokens per regenerated answer, reasoning included. Null: the mean "
        "of the old responses that are not flagged.",
    )


class Audit(Section):
    """What the audit looks for and when it stops the run."""

    rules: Rules = section(Rules, "Rules for conversations that deviate.")
    columns: Columns = section(Columns, "Columns of the input, forced.")
    estimate: Estimate = section(Estimate, "What regeneration would cost.")
    short_tokens: Annotated[int, Field(ge=1)] = data(
        8,
        description="Responses of at most this many tokens that differ from each other are "
        "reported as short, not as trivial.",
    )
    spike_share: Annotated[float, Field(gt=0, le=1)] = data(
        0.1, description="A response length that this share of all rows has is a spike."
    )
    context_length: Annotated[int, Field(ge=1)] | None = data(
        None, description="Tokens a prompt must stay below. Null: what the model was made for."
    )
    near_duplicates: bool = data(
        False, description="Look for prompts that are nearly the same (MinHash)."
    )
    near_duplicate_threshold: Annotated[float, Field(gt=0, lt=1)] = data(
        0.8,
        description="Jaccard similarity of word 5-grams from which prompts are near-duplicates.",
    )
    held_out: list[str] = data(
        [],
        description="Files of held-out sets (globs, any input format); prompts that "
        "share an n-gram with them are contaminated.",
    )
    contamination_ngram: Annotated[int, Field(ge=3)] = data(
        13, description="Words in a row that count as contamination."
    )
    repeated_min_prompts: Annotated[int, Field(ge=2)] = data(
        5, description="A short response given to this many different prompts is `repeated`."
    )
    repeated_min_share: Annotated[float, Field(ge=0, le=1)] = data(
        0.001,
        description="... and to at least this share of all rows: in a large set of short answers "
        "many prompts have the answer `Paris`.",
    )
    repeated_max_chars: Annotated[int, Field(ge=1)] = data(
        200, description="Longer responses are never called `repeated`."
    )
    suspicious_share: Annotated[float, Field(ge=0, le=1)] = data(
        0.05, description="Trivial share from which the verdict is `suspicious`."
    )
    worthless_share: Annotated[float, Field(ge=0, le=1)] = data(
        0.5, description="Trivial share from which the verdict is `worthless`."
    )
    stop_on: list[Literal["ok", "suspicious", "worthless"]] = data(
        [], description="Verdicts that stop the run before anything is generated."
    )
    max_rejected_fraction: Annotated[float, Field(ge=0, le=1)] = data(
        0.5, description="A larger share of unusable input lines stops the run."
    )

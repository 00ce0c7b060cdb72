"""The training data's part of the configuration; see config.py."""

from typing import Annotated, Literal

from pydantic import Field

from workflow_scripts.config.fields import Section, data, layout, section

FilterChoice = Literal["keep", "drop"]
# `drafter`: into drafter-*.parquet, apart from what SFT trains on.
CutChoice = Literal["keep", "drop", "drafter"]
Export = Literal["messages", "sharegpt", "sharegpt_inline", "specforge", "speculators"]


class Filters(Section):
    """Which turns become training rows; rejected.parquet holds the dropped ones with a reason."""

    truncated_in_answer: CutChoice = data(
        "drop",
        description="Cut by max_new_tokens in the answer. `drafter`: written to drafter-*.parquet, "
        "which only the training of a drafter adds, since the prefix is still the model's own.",
    )
    truncated_in_thinking: CutChoice = data(
        "drop", description="Cut by max_new_tokens before the reasoning ended; as above."
    )
    no_answer: FilterChoice = data("drop", description="Stopped with nothing after the reasoning.")
    unclosed_thinking: FilterChoice = data(
        "drop", description="Stopped inside the reasoning, without </think>."
    )
    control_tokens: FilterChoice = data(
        "drop",
        description="A control token or a second think token inside the completion, other than "
        "the end token.",
    )
    loop: FilterChoice = data(
        "drop",
        description="The completion repeats itself without end, by loop_threshold; see "
        "docs/filters.md.",
    )
    loop_threshold: Annotated[float, Field(gt=0)] = data(
        1.0, description="Score from which a repetition is a loop."
    )
    repeated: FilterChoice = data(
        "drop",
        description="A short answer without reasoning that many different prompts got, by "
        "audit.repeated_min_prompts, _min_share and _max_chars.",
    )
    echo: FilterChoice = data("drop", description="The answer is the question again.")
    refusal: FilterChoice = data(
        "keep", description="A short refusal, recognised by its English opening as in the audit."
    )
    wrong_language: FilterChoice = data(
        "keep",
        description="The answer is in another script or language than the question, which does "
        "not ask for a translation in so many words. Read some before dropping them.",
    )
    contaminated: FilterChoice = data(
        "drop",
        description="Question or answer shares audit.contamination_ngram words in a row with a "
        "set of audit.held_out.",
    )
    retracted: FilterChoice = data(
        "keep",
        description="The engine ran out of memory while answering, put the request back and "
        "computed it again.",
    )
    duplicates: Literal["keep", "exact", "near"] = data(
        "exact",
        description="Conversations, answers included, of which only the first stays: equal ones, "
        "or near ones too (MinHash).",
    )
    duplicate_prompts: Literal["keep", "exact", "near"] = data(
        "keep",
        description="Questions of which only the first that passes all filters stays: equal ones, "
        "or near ones too. Several answers to a question are often wanted, so `keep`.",
    )
    min_completion_tokens: Annotated[int, Field(ge=1)] = data(
        1, description="Fewer generated tokens than this are dropped as `too_short`."
    )
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = data(
        None, description="More generated tokens than this are dropped as `too_long`."
    )
    expressions: dict[str, str] = data(
        {},
        description="Own filters: a reason and an SQL expression over the columns of the training "
        "table, e.g. `no_reasoning: reasoning_length = 0`. Turns for which it is true are "
        "dropped with that reason.",
    )
    python: str | None = data(
        None,
        description="Own filter in Python, `path/to/file.py:function`. It takes a dict of the "
        "training table's columns (messages parsed) and returns None to keep the turn, or the "
        "reason that drops it.",
    )


class Dataset(Section):
    """The training data."""

    max_length: Annotated[int, Field(ge=2)] = data(
        32768, description="Prompt and completion together, in tokens; longer rows are dropped."
    )
    filters: Filters = section(Filters, "Which answers become training rows.")
    near_duplicate_threshold: Annotated[float, Field(gt=0, lt=1)] = data(
        0.8,
        description="Jaccard similarity of word 5-grams from which texts are near-duplicates.",
    )
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = data(
        0.01,
        description="Share of prompt clusters held out; equal and nearly equal prompts always "
        "land on one side.",
    )
    rows_per_file: Annotated[int, Field(ge=1)] = layout(
        100_000, description="Training rows in one train-*.parquet file."
    )
    exports: list[Export] = layout(
        ["messages"],
        description="Further forms of the dataset, each under dataset/exports/; see "
        "docs/training.md.",
    )
    license: str | None = data(
        None, description="Licence written into the dataset card, as Hugging Face spells it."
    )

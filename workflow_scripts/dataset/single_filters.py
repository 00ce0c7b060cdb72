"""Filters that judge one sample by itself: each says what it found against it, or None.

Another filter is a function here, a line in `FILTERS`, and a setting of the same name in
`config/dataset.py`; the name is also the reason in rejected.parquet.
"""

from collections.abc import Callable

import numpy as np

from workflow_scripts.config.sections import Config
from workflow_scripts.dataset.languages import wrong_language
from workflow_scripts.dataset.samples import Sample
from workflow_scripts.dataset.survey import Survey, answer_key
from workflow_scripts.input.turn import Turn
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.texts.classes import folded, response_class
from workflow_scripts.texts.held_out import held_out_sets


class Context:
    """What filters know beside the sample.

    Args:
        config: the run's configuration.
        prompts: the model's end tokens and marks of a reasoning.
        survey: what is known of all rows.

    Raises:
        ConfigError: a held-out set cannot be read.
    """

    def __init__(self, config: Config, prompts: Prompts, survey: Survey):
        self.config = config
        self.prompts = prompts
        self.survey = survey
        self.held_out = held_out_sets(config.audit) if config.audit.held_out else None
        leaks = sorted(prompts.control_ids)
        # whether an id is a control token; the last entry is for any higher id
        self.is_control = np.zeros(max(leaks, default=0) + 2, dtype=bool)
        self.is_control[leaks] = True


def _control_tokens(sample: Sample, context: Context) -> str | None:
    prompts = context.prompts
    ids = sample.output_ids
    if len(ids) and int(ids[-1]) in prompts.end_ids:
        ids = ids[:-1]
    leaked = np.flatnonzero(context.is_control.take(ids, mode="clip")).tolist()
    if leaked and prompts.marks is not None:  # the marks of its own reasoning may stand there
        parts = prompts.marks.parts(sample.prompt_ids, ids)
        own = prompts.marks.written(parts, ids)
        leaked = [at for at in leaked if at not in own]
    calls, start = sample.fields["calls"], sample.fields["reasoning_length"]
    for at in leaked:
        token = prompts.decode([[int(ids[at])]])[0]
        # the marks around calls that could be read are no leak, those inside of texts are
        if calls is None or at < start or token in sample.answer + calls:
            return f"{token} at id {at} of the completion"
    return None


def _loop(sample: Sample, context: Context) -> str | None:
    loop = sample.loop
    if loop is None or loop.score < context.config.dataset.filters.loop_threshold:
        return None
    return (
        f"{loop.period} ids {loop.repeats:.0f} times from id {loop.start} on, "
        f"{100 * loop.share:.0f} % of the completion"
    )


def _repeated(sample: Sample, context: Context) -> str | None:
    key = answer_key(sample.messages[-1], context.config.audit.repeated_max_chars)
    if key is None or key not in context.survey.repeated:
        return None
    return f"many different prompts got {sample.answer[:60]!r}"


def _echo(sample: Sample, _: Context) -> str | None:
    answer = sample.answer
    same = bool(answer) and folded(answer) == folded(sample.question)
    return "the answer is the question again" if same else None


def _refusal(sample: Sample, _: Context) -> str | None:
    turn = Turn("assistant", sample.answer, sample.reasoning)
    return sample.answer[:100] if response_class(turn) == "refusal" else None


def _wrong_language(sample: Sample, _: Context) -> str | None:
    return wrong_language(sample.question, sample.answer)


def _contaminated(sample: Sample, context: Context) -> str | None:
    if context.held_out is None:
        return None
    for part in (sample.question, sample.answer):
        if hits := context.held_out.hits(part):
            name, shared = hits[0]
            return f"{shared[:120]!r} stands in {name}"
    return None


def _retracted(sample: Sample, _: Context) -> str | None:
    times = sample.fields["retractions"]
    return f"put back {times} times" if times else None


# In this order: the first that objects names the reason.
FILTERS: dict[str, Callable[[Sample, Context], str | None]] = {
    "control_tokens": _control_tokens,
    "loop": _loop,
    "repeated": _repeated,
    "echo": _echo,
    "refusal": _refusal,
    "wrong_language": _wrong_language,
    "contaminated": _contaminated,
    "retracted": _retracted,
}

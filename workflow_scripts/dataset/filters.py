"""Filters of the training data: each says None to keep a sample, or what it found against it.

The order is fixed and the first that objects names the reason: what is broken first, then what is
cut, then what is worth little, then the user's own, and last what is there already. So of two equal
rows the one that stays is the first that passes everything else. A new filter goes into
`single_filters.py`.
"""

from collections.abc import Iterator

import pyarrow as pa

from workflow_scripts.config.sections import Config
from workflow_scripts.dataset.duplicates import Duplicates
from workflow_scripts.dataset.samples import Sample
from workflow_scripts.dataset.single_filters import FILTERS, Context
from workflow_scripts.dataset.survey import Survey
from workflow_scripts.dataset.user_filters import expressions, python_filter
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.texts.loops import find

Found = tuple[str, str]  # reason and finding
CUT = ("truncated_in_thinking", "truncated_in_answer")
BY_CLASS = (*CUT, "unclosed_thinking", "no_answer")


class SampleFilters:
    """The filters of one dataset, with what they remember.

    Args:
        config: the run's configuration.
        prompts: the model's think and end tokens.
        survey: what is known of all rows.

    Raises:
        ConfigError: a filter of the user's, or a held-out set, cannot be read.
    """

    def __init__(self, config: Config, prompts: Prompts, survey: Survey):
        self.settings = config.dataset
        self.survey = survey
        wanted = self.settings.filters
        self._context = Context(config, prompts, survey)
        self._single = [(n, f) for n, f in FILTERS.items() if getattr(wanted, n) == "drop"]
        self._expressions = expressions(wanted.expressions)
        self._python = python_filter(wanted.python) if wanted.python else None
        self._duplicates = Duplicates(wanted, survey)

    # ---- one sample ----

    def reason(self, sample: Sample) -> Found | None:
        """The first filter that drops the sample by itself."""
        kind = sample.fields["class"]
        sample.loop = find(sample.output_ids)
        sample.fields["loop_score"] = sample.loop.score if sample.loop else 0.0
        if sample.fault:
            return "template_refused", sample.fault
        if not len(sample.output_ids):
            return "no_supervised_token", "nothing to learn from"
        if kind in BY_CLASS and getattr(self.settings.filters, kind) == "drop":
            return kind, f"the answer is {kind.replace('_', ' ')}"
        if found := self._by_length(sample):
            return found
        for name, check in self._single:
            if finding := check(sample, self._context):
                return name, finding
        if self.for_drafter(sample) and self.survey.held_out[sample.row]:
            return kind, "its prompt is held out, and validation rows are whole answers"
        return None

    def _by_length(self, sample: Sample) -> Found | None:
        """By tokens of the completion, then of the row."""
        generated = len(sample.output_ids)
        if generated < self.settings.filters.min_completion_tokens:
            return "too_short", f"{generated} tokens"
        most = self.settings.filters.max_completion_tokens
        if most is not None and generated > most:
            return "too_long", f"{generated} tokens, max_completion_tokens is {most}"
        most = self.settings.max_length
        if sample.length > most:
            return "too_long", f"{sample.length} tokens, dataset.max_length is {most}"
        return None

    def for_drafter(self, sample: Sample) -> bool:
        """Whether the sample goes to the rows that only a drafter's training adds."""
        kind = sample.fields["class"]
        return kind in CUT and getattr(self.settings.filters, kind) == "drafter"

    # ---- a batch ----

    def batch(self, samples: list[Sample], table: pa.Table) -> Iterator[Found | None]:
        """The user's own filters and duplicates, for samples that passed so far.

        Args:
            samples: in the order of the merged rows.
            table: the same as rows of the training table.
        """
        own = self._own(samples, table)
        for index, sample in enumerate(samples):
            yield own[index] or self._duplicates.find(sample)

    def _own(self, samples: list[Sample], table: pa.Table) -> list[Found | None]:
        found: list[Found | None] = [None] * len(samples)
        for name, told in self._expressions(table):
            for index in told:
                found[index] = found[index] or (name, "dataset.filters.expressions")
        if self._python is not None:
            for index, sample in enumerate(samples):
                if found[index] is None and (reason := self._python(sample)):
                    found[index] = reason, self.settings.filters.python or ""
        return found

"""Filters of the training data: each says None to keep a sample, or what it found against it.

The order is fixed and the first that objects names the reason: what is broken first, then what is
cut, then what is worth little, then the user's own, and last what is there already. So of two equal
rows the one that stays is the first that passes everything else.
"""

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from workflow_scripts.config.sections import Config
from workflow_scripts.dataset.samples import Sample
from workflow_scripts.dataset.survey import Survey, answer_key
from workflow_scripts.dataset.user_filters import expressions, python_filter
from workflow_scripts.input.turn import Turn
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.texts.classes import folded, response_class
from workflow_scripts.texts.held_out import held_out_sets
from workflow_scripts.texts.loops import find
from workflow_scripts.texts.scripts import script

Found = tuple[str, str]  # reason and finding
CUT = ("truncated_in_thinking", "truncated_in_answer")
BY_CLASS = (*CUT, "unclosed_thinking", "no_answer")
LANGUAGE_CHARS = 2000
SURE = 0.99  # probability from which a language is believed
ENOUGH_WORDS = 20
CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+", re.DOTALL)
# A question for a translation, in the languages that most prompts are in.
TRANSLATION = re.compile(
    r"\btranslat|\btradu[cizt]|übersetz|перевед|перевод|翻译|翻譯|翻訳|訳して|번역|ترجم",
    re.IGNORECASE,
)
# Languages that the identifier confuses, written in scripts that they share.
ALIKE = ({"no", "nb", "nn", "da", "sv"}, {"hr", "bs", "sr", "sl"}, {"id", "ms"}, {"cs", "sk"})


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
        self.config = config
        self.settings = config.dataset
        self.prompts = prompts
        self.survey = survey
        marks = {m for m in (prompts.think_open, prompts.think_close) if m is not None}
        leaks = sorted(prompts.control_ids | marks)
        self._leaks = np.zeros(max(leaks, default=0) + 2, dtype=bool)  # by id, the last for others
        self._leaks[leaks] = True
        wanted = self.settings.filters
        self._held_out = held_out_sets(config.audit) if config.audit.held_out else None
        checks: dict[str, Callable[[Sample], str | None]] = {
            "control_tokens": self._control_tokens,
            "loop": self._loop,
            "repeated": self._repeated,
            "echo": self._echo,
            "refusal": self._refusal,
            "wrong_language": self._wrong_language,
            "contaminated": self._contaminated,
            "retracted": self._retracted,
        }
        self._checks = [(n, c) for n, c in checks.items() if getattr(wanted, n) == "drop"]
        self._expressions = expressions(wanted.expressions)
        self._python = python_filter(wanted.python) if wanted.python else None
        self._seen: dict[str, dict[Any, str]] = {"duplicate": {}, "duplicate_prompt": {}}

    # ---- one sample ----

    def reason(self, sample: Sample) -> Found | None:
        """The first filter that drops the sample by itself."""
        settings, kind, generated = self.settings, sample.fields["class"], len(sample.output_ids)
        sample.loop = find(sample.output_ids)
        sample.fields["loop_score"] = sample.loop.score if sample.loop else 0.0
        if sample.fault:
            return "template_refused", sample.fault
        if not generated:
            return "no_supervised_token", "nothing to learn from"
        if kind in BY_CLASS and getattr(settings.filters, kind) == "drop":
            return kind, f"the answer is {kind.replace('_', ' ')}"
        if generated < settings.filters.min_completion_tokens:
            return "too_short", f"{generated} tokens"
        most = settings.filters.max_completion_tokens
        if most is not None and generated > most:
            return "too_long", f"{generated} tokens, max_completion_tokens is {most}"
        if sample.length > settings.max_length:
            return (
                "too_long",
                f"{sample.length} tokens, dataset.max_length is {settings.max_length}",
            )
        for name, check in self._checks:
            if finding := check(sample):
                return name, finding
        if self.for_drafter(sample) and self.survey.held_out[sample.row]:
            return kind, "its prompt is held out, and validation rows are whole answers"
        return None

    def for_drafter(self, sample: Sample) -> bool:
        """Whether the sample goes to the rows that only a drafter's training adds."""
        kind = sample.fields["class"]
        return kind in CUT and getattr(self.settings.filters, kind) == "drafter"

    def _control_tokens(self, sample: Sample) -> str | None:
        ids, start = sample.output_ids, sample.fields["reasoning_length"]
        if len(ids) and int(ids[-1]) in self.prompts.end_ids:
            ids = ids[:-1]
        leaked = np.flatnonzero(self._leaks.take(ids, mode="clip"))
        allowed = {start - 1}  # the one that ends the reasoning
        if start and ids[0] == self.prompts.think_open:
            allowed.add(0)
        extra = next((int(at) for at in leaked if int(at) not in allowed), None)
        if extra is None:
            return None
        return f"{self.prompts.decode([[int(ids[extra])]])[0]} at id {extra} of the completion"

    def _loop(self, sample: Sample) -> str | None:
        loop = sample.loop
        if loop is None or loop.score < self.settings.filters.loop_threshold:
            return None
        return (
            f"{loop.period} ids {loop.repeats:.0f} times from id {loop.start} on, "
            f"{100 * loop.share:.0f} % of the completion"
        )

    def _repeated(self, sample: Sample) -> str | None:
        key = answer_key(sample.messages[-1], self.config.audit.repeated_max_chars)
        if key is None or key not in self.survey.repeated:
            return None
        return f"many different prompts got {sample.answer[:60]!r}"

    def _echo(self, sample: Sample) -> str | None:
        answer = sample.answer
        same = bool(answer) and folded(answer) == folded(sample.question)
        return "the answer is the question again" if same else None

    def _refusal(self, sample: Sample) -> str | None:
        turn = Turn("assistant", sample.answer, sample.reasoning)
        return sample.answer[:100] if response_class(turn) == "refusal" else None

    def _wrong_language(self, sample: Sample) -> str | None:
        if TRANSLATION.search(sample.question):
            return None
        texts = [CODE.sub(" ", t[:LANGUAGE_CHARS]) for t in (sample.question, sample.answer)]
        asked, answered = map(script, texts)
        if {asked, answered} & {"none", "other"}:
            return None
        if asked != answered:
            return f"question in {asked} letters, answer in {answered}"
        if min(len(t.split()) for t in texts) < ENOUGH_WORDS:
            return None
        (one, sure), (other, certain) = map(self._languages, texts)
        if one == other or min(sure, certain) < SURE or any({one, other} <= s for s in ALIKE):
            return None
        return f"question in {one}, answer in {other}"

    @cached_property
    def _languages(self) -> Callable[[str], tuple[str, float]]:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # reads its model

        identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        return lambda text: identifier.classify(text)

    def _contaminated(self, sample: Sample) -> str | None:
        if self._held_out is None:
            return None
        for part in (sample.question, sample.answer):
            if hits := self._held_out.hits(part):
                name, shared = hits[0]
                return f"{shared[:120]!r} stands in {name}"
        return None

    def _retracted(self, sample: Sample) -> str | None:
        times = sample.fields["retractions"]
        return f"put back {times} times" if times else None

    # ---- a batch ----

    def batch(self, samples: list[Sample], table: pa.Table) -> Iterator[Found | None]:
        """The user's own filters and duplicates, for samples that passed so far.

        Args:
            samples: in the order of the merged rows.
            table: the same as rows of the training table.
        """
        own = self._own(samples, table)
        for index, sample in enumerate(samples):
            yield own[index] or self._duplicate(sample)

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

    def _duplicate(self, sample: Sample) -> Found | None:
        row, turn = sample.row, sample.fields["turn"]
        wanted = self.settings.filters
        keys: dict[str, Any] = {}
        if wanted.duplicates == "exact":
            ids = np.concatenate([sample.prompt_ids, sample.output_ids]).tobytes()
            keys["duplicate"] = blake2b(ids, digest_size=16).digest()
        elif self.survey.conversations is not None:
            keys["duplicate"] = int(self.survey.conversations[row]), turn
        if wanted.duplicate_prompts == "exact":
            keys["duplicate_prompt"] = blake2b(sample.prompt_ids.tobytes(), digest_size=16).digest()
        elif wanted.duplicate_prompts == "near":
            keys["duplicate_prompt"] = int(self.survey.prompts[row]), turn
        own = f"{sample.fields['source']}:{sample.fields['line']}"
        for name, key in keys.items():
            if key in self._seen[name]:
                return name, f"of {self._seen[name][key]}"
        for name, key in keys.items():
            self._seen[name][key] = own
        return None

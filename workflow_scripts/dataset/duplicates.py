"""Samples that are there already: equal or nearly equal to one before."""

from hashlib import blake2b
from typing import Any

import numpy as np

from workflow_scripts.config.dataset import Filters
from workflow_scripts.dataset.samples import Sample
from workflow_scripts.dataset.survey import Survey


class Duplicates:
    """Remembers the samples that stayed.

    Args:
        wanted: whether equal or nearly equal conversations and prompts are dropped.
        survey: which rows are nearly equal.
    """

    def __init__(self, wanted: Filters, survey: Survey):
        self.wanted = wanted
        self.survey = survey
        self._seen: dict[str, dict[Any, str]] = {"duplicate": {}, "duplicate_prompt": {}}

    def find(self, sample: Sample) -> tuple[str, str] | None:
        """Reason and finding for a duplicate. Any other sample is remembered."""
        keys = self._keys(sample)
        for name, key in keys.items():
            if key in self._seen[name]:
                return name, f"of {self._seen[name][key]}"
        own = f"{sample.fields['source']}:{sample.fields['line']}"
        for name, key in keys.items():
            self._seen[name][key] = own
        return None

    def _keys(self, sample: Sample) -> dict[str, Any]:
        """By reason, what a duplicate has the same of."""
        row, turn = sample.row, sample.fields["turn"]
        keys: dict[str, Any] = {}
        if self.wanted.duplicates == "exact":
            ids = np.concatenate([sample.prompt_ids, sample.output_ids]).tobytes()
            keys["duplicate"] = blake2b(ids, digest_size=16).digest()
        elif self.survey.conversations is not None:
            keys["duplicate"] = int(self.survey.conversations[row]), turn
        if self.wanted.duplicate_prompts == "exact":
            keys["duplicate_prompt"] = blake2b(sample.prompt_ids.tobytes(), digest_size=16).digest()
        elif self.wanted.duplicate_prompts == "near":
            keys["duplicate_prompt"] = int(self.survey.prompts[row]), turn
        return keys

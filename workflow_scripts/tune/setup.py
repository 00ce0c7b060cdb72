"""What a tune measures, and on what."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from workflow_scripts.config.sections import Config
from workflow_scripts.identity import canonical, digest
from workflow_scripts.model.folder import model_key
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.gpus import Gpu
from workflow_scripts.sglang.flags import translate
from workflow_scripts.tune.candidates import Candidate
from workflow_scripts.tune.measure import Window
from workflow_scripts.tune.sample import PromptSample


@dataclass(frozen=True)
class Setup:
    """One tune, before anything is measured.

    Args:
        config: the run's; `engine.rehearsal` says whether this is a rehearsal.
        version: of SGLang.
        out: folder of the tune's files.
        accept_length: simulated on candidates with speculation, in a rehearsal.
        again: measure candidates once more that failed.
    """

    config: Config
    prompts: Prompts
    gpu: Gpu
    version: str
    sample: PromptSample
    candidates: list[Candidate]
    window: Window
    out: Path
    accept_length: float | None = None
    again: bool = False

    @cached_property
    def model_key(self) -> str:
        return model_key(Path(self.config.model.path))

    def key(self, candidate: Candidate) -> str:
        """Identity of a measurement: with another one it is made again."""
        config = self.config
        parts: list[Any] = [
            sorted(translate(candidate.server, self.version)),
            self.version,
            self.model_key,
            self.gpu.name,
            self.gpu.total_mib,
            config.engine.rehearsal,
            self.accept_length if candidate.speculative else None,
            self.sample.key,
            (self.window.window_s, self.window.fill_s, self.window.interval_s),
            config.engine.rehearsal_tokens,
            config.generate.concurrency,
            config.dataset.filters.loop_threshold,
        ]
        return digest(canonical(parts), canonical(config.sampling))

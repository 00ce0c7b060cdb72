"""What of the configuration changes a stage's result."""

from typing import Any

from workflow_scripts.config.dataset import Filters
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import canonical

_GATE_ONLY = {"stop_on", "max_rejected_fraction"}
_OF_PROMPTS = (
    "tokenizer", "chat_template", "thinking",
    "chat_template_for_tools", "date", "template_variables", "reasoning",
)  # fmt: skip
_OF_DATASET = {
    "held_out", "contamination_ngram", "repeated_min_prompts", "repeated_min_share",
    "repeated_max_chars",
}  # fmt: skip


def stage_params(config: Config, identity: dict[str, Any], run_hash: str) -> dict[str, str]:
    """A canonical text per stage of what changes its result: Snakemake runs a stage again when its
    text changes, and only then.

    Raises:
        ConfigError: a filter of the user's cannot be used.
    """
    audit, dataset = config.audit, config.dataset
    # which turns are asked changes no answer, so it is no part of the run's hash
    asked = {"tool_turns": audit.rules.tool_turns} if audit.rules.asks_calls else {}
    return {
        "audit": canonical(
            {
                "input": config.input,
                "input_format": config.input_format,
                "audit": audit.model_dump(mode="json", exclude=_GATE_ONLY),
                **{k: identity[k] for k in _OF_PROMPTS if k in identity},
            }
        ),
        "audit_gate": canonical(audit.model_dump(mode="json", include=_GATE_ONLY)),
        "shard": canonical({"regenerate": config.regenerate, "shards": config.shards}),
        "dataset": canonical(
            {
                "dataset": dataset.model_dump(mode="json"),
                "audit": audit.model_dump(mode="json", include=_OF_DATASET),
                "user_filter": _checked(dataset.filters),
                "run": run_hash,
                **asked,
            }
        ),
        "generate": canonical({"run": run_hash, **asked}) if asked else run_hash,
        **dict.fromkeys(("merge", "verify", "report"), run_hash),
    }


def _checked(filters: Filters) -> str | None:
    """Check the user's own filters, if there are any; returns the hash of the Python file."""
    if not (filters.expressions or filters.python):
        return None
    from workflow_scripts.dataset.user_filters import check

    return check(filters)

"""SGLang's flags that change the numbers an answer is computed with."""

from collections.abc import Mapping
from typing import Any

from workflow_scripts.sglang.flags import spelled

# SGLang flags that change the numbers an answer is computed with, by their Python names. A value
# that only spells out the default is the same as none.
NUMERIC_FLAGS = {
    "dtype": "auto",
    "load_format": "auto",
    "quantization": None,
    "kv_cache_dtype": "auto",
    "mamba_ssm_dtype": None,
    "enable_fp32_lm_head": False,
    "torchao_config": "",
    "json_model_override_args": "{}",
    "speculative_algorithm": None,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
}
FLAG_VALUE_ALIASES = {("speculative_algorithm", "NEXTN"): "EAGLE"}


def numeric_flags(server: Any) -> dict[str, Any]:
    """The part of SGLang's flags that changes numerics, defaults left out."""
    if not isinstance(server, dict):
        return {}
    flags = {spelled(name): value for name, value in server.items()}
    found = {}
    for name, default in NUMERIC_FLAGS.items():
        value = flags.get(name, default)
        value = FLAG_VALUE_ALIASES.get((name, value), value) if isinstance(value, str) else value
        if value != default:
            found[name] = value
    return found


def hash_changes(base: Mapping[str, Any], server: Mapping[str, Any]) -> list[str]:
    """The flags of `server` that give a run another hash than `base` does: with them, rows that
    are answered already are asked again."""
    ours, theirs = numeric_flags(dict(base)), numeric_flags(dict(server))
    return [name for name in NUMERIC_FLAGS if ours.get(name) != theirs.get(name)]

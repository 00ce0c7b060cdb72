"""Everything that determines an answer, and its hash: the identity of a run."""

import hashlib
from pathlib import Path
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.embedded.server import NUMERICS
from workflow_scripts.identity import canonical, digest
from workflow_scripts.model.folder import (
    NO_THINKING,
    THINK_TOKENS,
    chat_template,
    end_token_ids,
    read_json,
    special_tokens,
    tokenizer_file,
    weight_index,
)
from workflow_scripts.sglang.numerics import numeric_flags

# Raised when the same settings would render another prompt than before.
PROMPT_VERSION = 1


def run_identity(config: Config) -> dict[str, Any]:
    """Everything that determines an answer; its hash is the run's hash.

    Raises:
        ConfigError: the model folder or its tokenizer is missing; thinking is asked of a model
            without think tokens.
    """
    folder = Path(config.model.path)
    tokenizer = tokenizer_file(config)
    for path in (folder / "config.json", tokenizer):
        if not path.is_file():
            hint = "run `make setup`" if config.engine.kind == "embedded" else "check model.path"
            raise ConfigError(f"model.path: {path} does not exist; {hint}")
    text = tokenizer.read_bytes()
    if config.model.thinking and not all(f'"{t}"'.encode() in text for t in THINK_TOKENS):
        raise ConfigError(NO_THINKING)
    kept = {"history_reasoning": "keep"} if config.model.history_reasoning == "keep" else {}
    return {
        **kept,
        "prompt_version": PROMPT_VERSION,
        "chat_template": digest(chat_template(config)),
        "special_tokens": special_tokens(config),
        "tokenizer": hashlib.sha256(text).hexdigest(),
        "thinking": config.model.thinking,
        "model": digest(canonical(read_json(folder / "config.json"))),
        "weights": weight_index(folder),
        "end_token_ids": end_token_ids(config),
        "sampling": config.sampling.model_dump(mode="json"),
        "engine": config.engine.kind,
        "numeric_flags": numeric_flags(config.engine.server),
        "rehearsal_tokens": config.engine.rehearsal_tokens,
        "embedded_numerics": NUMERICS if config.engine.kind == "embedded" else None,
    }


def hash_of(identity: dict[str, Any]) -> str:
    """Hash of a run's identity, 16 hex digits."""
    return digest(canonical(identity))[:16]

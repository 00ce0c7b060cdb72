"""Everything that determines an answer, and its hash: the identity of a run."""

import hashlib
from pathlib import Path
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.embedded.server import NUMERICS
from workflow_scripts.identity import canonical, digest
from workflow_scripts.model.folder import (
    DEFAULT,
    FOR_TOOLS,
    chat_templates,
    end_token_ids,
    read_json,
    special_tokens,
    tokenizer_file,
    weight_index,
)
from workflow_scripts.model.reasoning import NAMED, NAMED_TOKEN, NO_REASONING
from workflow_scripts.sglang.numerics import numeric_flags

# Raised when the same settings would render another prompt than before.
PROMPT_VERSION = 1
ALWAYS = ("bos_token", "eos_token", "unk_token", "pad_token")
OTHER = "chat_template_for_tools"


def run_identity(config: Config) -> dict[str, Any]:
    """Everything that determines an answer; its hash is the run's hash.

    Raises:
        ConfigError: the model folder or its tokenizer is missing; thinking is asked of a model
            that has no mark of a reasoning.
    """
    folder = Path(config.model.path)
    tokenizer = tokenizer_file(config)
    for path in (folder / "config.json", tokenizer):
        if not path.is_file():
            hint = "run `make setup`" if config.engine.kind == "embedded" else "check model.path"
            raise ConfigError(f"model.path: {path} does not exist; {hint}")
    text = tokenizer.read_bytes()
    templates = chat_templates(config)
    _check_thinking(config, templates, text)
    first = templates.get(DEFAULT) or templates[FOR_TOOLS]
    return {
        **_where_set(config),
        **({OTHER: digest(templates[FOR_TOOLS])} if FOR_TOOLS in templates else {}),
        "prompt_version": PROMPT_VERSION,
        "chat_template": digest(first),
        "special_tokens": _special_tokens(config, templates),
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


def _where_set(config: Config) -> dict[str, Any]:
    """Settings that an identity has only where they are set, since older ones lack them."""
    model = config.model
    told = model.model_dump(mode="json", include={"date", "template_variables", "reasoning"})
    kept = {"history_reasoning": "keep"} if model.history_reasoning == "keep" else {}
    return kept | {name: value for name, value in told.items() if value}


def _special_tokens(config: Config, templates: dict[str, str]) -> dict[str, str]:
    """Four of tokenizer_config.json, and any other that a template names."""
    found = read_json(tokenizer_file(config).parent / "tokenizer_config.json")
    values = {name: found.get(name) for name in ALWAYS}
    always = {k: v["content"] if isinstance(v, dict) else v for k, v in values.items() if v}
    written = "".join(templates.values())
    return always | {k: v for k, v in special_tokens(config).items() if k in written}


def _check_thinking(config: Config, templates: dict[str, str], tokenizer: bytes) -> None:
    """A first look, at every start: whether anything names a reasoning at all. What the template
    makes of `model.thinking` is looked at where it is rendered (model/reasoning.py)."""
    if not config.model.thinking or config.model.reasoning:
        return
    if any(map(NAMED.search, templates.values())):
        return
    if not NAMED_TOKEN.search(tokenizer):
        raise ConfigError(NO_REASONING)


def hash_of(identity: dict[str, Any]) -> str:
    """Hash of a run's identity, 16 hex digits."""
    return digest(canonical(identity))[:16]

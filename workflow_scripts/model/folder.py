"""What a model folder in Hugging Face layout says: tokenizer, template, end tokens, weights."""

import json
from pathlib import Path
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import file_sha256
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import canonical, digest

THINK_TOKENS = ("<think>", "</think>")
NO_THINKING = (
    "model.thinking: the tokenizer has no <think> and </think> tokens, so this model has no "
    "thinking mode; set model.thinking to false"
)


def tokenizer_file(config: Config) -> Path:
    path = Path(config.model.tokenizer or config.model.path)
    return path if path.suffix == ".json" else path / "tokenizer.json"


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON ({error}); fetch the model again") from None


def special_tokens(config: Config) -> dict[str, str]:
    """The tokens a chat template may name (bos_token, eos_token, ...)."""
    found = read_json(tokenizer_file(config).parent / "tokenizer_config.json")
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    values = {name: found.get(name) for name in names}
    return {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in values.items()
        if value
    }


def chat_template(config: Config) -> str:
    """The Jinja text of the chat template.

    Raises:
        ConfigError: the model folder has none and the configuration names none.
    """
    folder = tokenizer_file(config).parent
    if config.model.chat_template:
        candidates = [Path(config.model.chat_template)]
    else:
        candidates = [folder / "chat_template.jinja"]
    for path in candidates:
        if path.is_file():
            return path.read_text(encoding="utf-8")
        if config.model.chat_template:
            raise ConfigError(f"model.chat_template: {path} does not exist")
    template = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # the older form: several named templates
        template = {t["name"]: t["template"] for t in template}.get("default")
    if not isinstance(template, str):
        raise ConfigError(
            f"{folder}: no chat template (neither chat_template.jinja nor a chat_template in "
            "tokenizer_config.json); set model.chat_template to a Jinja file"
        )
    return template


def end_token_ids(config: Config) -> list[int]:
    """Ids that end a completion, by generation_config.json and config.json."""
    folder = Path(config.model.path)
    model = read_json(folder / "config.json")
    found: set[int] = set()
    for source in (read_json(folder / "generation_config.json"), model, model.get("text_config")):
        value = (source or {}).get("eos_token_id")
        found.update([value] if isinstance(value, int) else value or [])
    return sorted(found)


def model_vocab_size(config: Config) -> int | None:
    """Number of ids of the model (not of its tokenizer), by config.json."""
    model = read_json(Path(config.model.path) / "config.json")
    value = model.get("vocab_size") or (model.get("text_config") or {}).get("vocab_size")
    return value if isinstance(value, int) else None


def model_context(config: Config) -> int | None:
    """Tokens that the model was made for, by config.json."""
    model = read_json(Path(config.model.path) / "config.json")
    text = model.get("text_config") or {}
    value = text.get("max_position_embeddings") or model.get("max_position_embeddings")
    return value if isinstance(value, int) else None


def weight_index(folder: Path) -> Any:
    """The weights' index, or names and sizes of the weight files where there is no index."""
    indices = sorted(folder.glob("*.index.json"))
    if indices:
        return {path.name: file_sha256(path) for path in indices}
    kinds = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
    files = sorted(path for kind in kinds for path in folder.glob(kind))
    return {path.name: path.stat().st_size for path in files}


def model_key(folder: Path) -> str:
    """Identity of a model: its config.json and weights. Its place does not count."""
    try:
        config = (folder / "config.json").read_bytes()
    except OSError:
        raise ConfigError(f"model.path: {folder / 'config.json'} cannot be read") from None
    return digest(config, canonical(weight_index(folder)))

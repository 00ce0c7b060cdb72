"""What a model folder in Hugging Face layout says: tokenizer, template, end tokens, weights."""

import json
import re
from pathlib import Path
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import file_sha256
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import canonical, digest

DEFAULT, FOR_TOOLS = "default", "tool_use"  # the templates that transformers chooses between
ADDITIONAL = "additional_chat_templates"


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


def special_tokens(config: Config) -> dict[str, Any]:
    """The tokens a chat template may name (bos_token, eos_token, ...), as transformers finds them:
    in tokenizer_config.json, and in special_tokens_map.json where that lists no added tokens."""
    folder = tokenizer_file(config).parent
    found = read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in found:
        found = {**found, **read_json(folder / "special_tokens_map.json")}
    more = found.get("extra_special_tokens")  # a list has no names
    named = {name: value for name, value in found.items() if name.endswith("_token")}
    named |= more if isinstance(more, dict) else {}
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in named.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str) and text}


def chat_templates(config: Config) -> dict[str, str]:
    """The Jinja texts of the chat templates by name, from where transformers finds them; `default`
    where there is only one.

    Raises:
        ConfigError: the model folder has none and the configuration names none, or there are
            several and none is the one by default.
    """
    folder = tokenizer_file(config).parent
    if config.model.chat_template:
        path = Path(config.model.chat_template)
        if not path.is_file():
            raise ConfigError(f"model.chat_template: {path} does not exist")
        return {DEFAULT: path.read_text(encoding="utf-8")}
    files = {path.stem: path for path in sorted((folder / ADDITIONAL).glob("*.jinja"))}
    if (own := folder / "chat_template.jinja").is_file():
        files = {DEFAULT: own} | files
    found: Any = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    for name in ("tokenizer_config.json", "chat_template.json"):
        found = found or read_json(folder / name).get("chat_template")
    if isinstance(found, list):  # the older form of several
        found = {one["name"]: one["template"] for one in found}
    if isinstance(found, str):
        found = {DEFAULT: found}
    if not isinstance(found, dict) or not found:
        raise ConfigError(
            f"{folder}: no chat template (neither chat_template.jinja nor a chat_template in "
            "tokenizer_config.json); set model.chat_template to a Jinja file"
        )
    if not {DEFAULT, FOR_TOOLS} & {*found}:
        raise ConfigError(
            f"{folder}: several chat templates ({', '.join(sorted(found))}) and none named "
            f"{DEFAULT}; set model.chat_template to a Jinja file with one of them"
        )
    return found


def end_token_ids(config: Config) -> list[int]:
    """Ids that end a completion, by generation_config.json and config.json, and the tokenizer's own
    `eos_token`, at which SGLang stops whatever these two say."""
    folder = Path(config.model.path)
    model = read_json(folder / "config.json")
    found: set[int] = set()
    for source in (read_json(folder / "generation_config.json"), model, model.get("text_config")):
        value = (source or {}).get("eos_token_id")
        found.update([value] if isinstance(value, int) else value or [])
    return sorted(found | _eos_of_tokenizer(config))


def _eos_of_tokenizer(config: Config) -> set[int]:
    """Found by its spelling in the text of tokenizer.json: to parse the whole of a large one takes
    longer than all else that a start of the workflow does."""
    path = tokenizer_file(config)
    spelled = special_tokens(config).get("eos_token")
    if not spelled or not path.is_file():
        return set()
    spellings = {json.dumps(spelled), json.dumps(spelled, ensure_ascii=False)}
    either = "|".join(map(re.escape, sorted(spellings)))
    pattern = rf'"id"\s*:\s*(\d+)\s*,\s*"content"\s*:\s*(?:{either})'
    return {int(found) for found in re.findall(pattern, path.read_text(encoding="utf-8"))}


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


UNKNOWN_CONTEXT = 1 << 18  # tokens, where a bound is needed and nothing tells one


def context_limit(config: Config) -> int | None:
    """Tokens that a prompt must stay below: what the audit is told, else what the model was made
    for."""
    return config.audit.context_length or model_context(config)


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

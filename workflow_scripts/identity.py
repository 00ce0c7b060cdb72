"""Identities: of a row, of a request, of a run, and of the code a stage uses."""

import hashlib
import json
import math
import re
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import orjson

from workflow_scripts.config import Config, ConfigError, canonical
from workflow_scripts.embedded_server import NUMERICS

PACKAGE = Path(__file__).resolve().parent

# A project module, or several names of the package itself.
IMPORT = re.compile(
    r"^\s*(?:from|import) workflow_scripts(?:\.(\w+)|\s+import\s+(\([^)]*\)|.*))", re.M
)

# Raised when the same settings would render another prompt than before.
PROMPT_VERSION = 1

# Modules that decide how fast, where or how safely answers arrive, never what they are; an edit
# of them reruns nothing. `config` is here because every value of it that matters reaches a rule
# through `params:`.
SPEED_ONLY = {
    "config",
    "config_audit",
    "config_dataset",
    "config_docs",
    "config_fields",
    "dispatch",
    "embedded_model",
    "embedded_server",
    "engines",
    "gpus",
    "host",
    "host_places",
    "metrics",
    "model_memory",
    "plan",
    "plan_settings",
    "plan_sizes",
    "progress",
    "server",
    "check_machine",
    "check_software",
    "read_sglang_flags",
    "run_state",
    "sglang_flags",
    "tune",
    "tune_candidates",
    "tune_judge",
    "tune_measure",
    "tune_options",
    "tune_page",
    "tune_report",
    "tune_results",
    "tune_sample",
    "tuned",
    "watch",
    "staging",
    "workflow",
}

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
THINK_TOKENS = ("<think>", "</think>")
NO_THINKING = (
    "model.thinking: the tokenizer has no <think> and </think> tokens, so this model has no "
    "thinking mode; set model.thinking to false"
)
FLAG_VALUE_ALIASES = {("speculative_algorithm", "NEXTN"): "EAGLE"}


def digest(*parts: bytes | str) -> str:
    """128-bit BLAKE2b over length-prefixed parts, as 32 hex digits."""
    pieces: list[bytes] = []
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        pieces += (len(raw).to_bytes(8, "little"), raw)
    return hashlib.blake2b(b"".join(pieces), digest_size=16).hexdigest()


def canonical_content(record: Any) -> bytes:
    """An input record's content, independent of key order and white space."""
    return orjson.dumps(record, option=orjson.OPT_SORT_KEYS)


def row_id(source: str, line: int, content: bytes) -> str:
    """Identity of an input row: source name, line number (from 1) and canonical content."""
    return digest(source, str(line), content)


def shard_of(row: str, shards: int) -> int:
    """The shard (from 0) a row belongs to.

    Shard k of n holds the row ids whose leading 64 bits fall into the k-th of n equal ranges, so
    a shard is a random sample of the input, shards in order are row ids in order, and with another
    n a row's journal is found by arithmetic.
    """
    return int(row[:16], 16) * shards >> 64


def request_seed(seed: int, row: str, turn: int) -> int:
    """Seed of one request, 31 bits (SGLang takes an int32)."""
    return int(digest(str(seed), row, str(turn))[:8], 16) & 0x7FFFFFFF


def rehearsal_length(spread: tuple[int, int], row: str, turn: int) -> int:
    """Tokens of a rehearsed completion: log-normal with the given median and 95th percentile."""
    median, p95 = spread
    share = (int(digest("length", row, str(turn))[:13], 16) + 0.5) / 16**13
    sigma = math.log(p95 / median) / NormalDist().inv_cdf(0.95)
    return max(1, round(median * math.exp(sigma * NormalDist().inv_cdf(share))))


def file_sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


# ---- the run ------------------------------------------------------------------------------------


def tokenizer_file(config: Config) -> Path:
    path = Path(config.model.tokenizer or config.model.path)
    return path if path.suffix == ".json" else path / "tokenizer.json"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON ({error}); fetch the model again") from None


def special_tokens(config: Config) -> dict[str, str]:
    """The tokens a chat template may name (bos_token, eos_token, ...)."""
    found = _read_json(tokenizer_file(config).parent / "tokenizer_config.json")
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
    template = _read_json(folder / "tokenizer_config.json").get("chat_template")
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
    model = _read_json(folder / "config.json")
    found: set[int] = set()
    for source in (_read_json(folder / "generation_config.json"), model, model.get("text_config")):
        value = (source or {}).get("eos_token_id")
        found.update([value] if isinstance(value, int) else value or [])
    return sorted(found)


def model_vocab_size(config: Config) -> int | None:
    """Number of ids of the model (not of its tokenizer), by config.json."""
    model = _read_json(Path(config.model.path) / "config.json")
    value = model.get("vocab_size") or (model.get("text_config") or {}).get("vocab_size")
    return value if isinstance(value, int) else None


def model_context(config: Config) -> int | None:
    """Tokens that the model was made for, by config.json."""
    model = _read_json(Path(config.model.path) / "config.json")
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


def numeric_flags(server: Any) -> dict[str, Any]:
    """The part of SGLang's flags that changes numerics, defaults left out."""
    if not isinstance(server, dict):
        return {}
    flags = {str(name).strip("-").replace("-", "_"): value for name, value in server.items()}
    found = {}
    for name, default in NUMERIC_FLAGS.items():
        value = flags.get(name, default)
        value = FLAG_VALUE_ALIASES.get((name, value), value) if isinstance(value, str) else value
        if value != default:
            found[name] = value
    return found


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
        "model": digest(canonical(_read_json(folder / "config.json"))),
        "weights": weight_index(folder),
        "end_token_ids": end_token_ids(config),
        "sampling": config.sampling.model_dump(mode="json"),
        "engine": config.engine.kind,
        "numeric_flags": numeric_flags(config.engine.server),
        "rehearsal_tokens": config.engine.rehearsal_tokens,
        "embedded_numerics": NUMERICS if config.engine.kind == "embedded" else None,
    }


def run_hash(identity: dict[str, Any]) -> str:
    """Hash of a run's identity, 16 hex digits."""
    return digest(canonical(identity))[:16]


# ---- the code -----------------------------------------------------------------------------------


@cache
def _imports(path: Path) -> frozenset[str]:
    """Project modules that a file names in an import, wherever it stands. By the text, since a
    parser takes half a second for all, which every Snakemake process would spend."""
    found = set()
    for module, names in IMPORT.findall(path.read_text(encoding="utf-8")):
        found.update([module] if module else re.findall(r"(\w+)(?:\s+as\s+\w+)?", names))
    return frozenset(found)


def code(script: str) -> list[str]:
    """The files of a script and of all project modules it imports, those left out that only
    change speed. As a rule's inputs they make an edit, but not a mere touch, run it again."""
    found: set[str] = set()
    todo = [script]
    while todo:
        name = todo.pop()
        path = PACKAGE / f"{name}.py"
        if name in found or name in SPEED_ONLY or not path.is_file():
            continue
        found.add(name)
        todo.extend(_imports(path))
    return [shown(PACKAGE / f"{name}.py") for name in sorted(found)]


def code_digest(script: str) -> str:
    """Identity of what these files say. As a rule's parameter it does what they do as inputs."""
    files = [Path(name) for name in code(script)]
    return digest(*(part for path in files for part in (path.name, path.read_bytes())))


def shown(path: Path) -> str:
    """The path as a rule names it: relative where it can be, so that a moved folder reruns
    nothing."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)

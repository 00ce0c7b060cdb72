"""SGLang's launch flags by version: checked and spelled before a server is started.

flags.json holds the flags of some versions, read from the sources in their wheels, which are
never imported. A version that is not there is judged by the nearest older one; to add it:

    pip download --no-deps sglang==0.5.17
    python -m workflow_scripts.sglang.wheels sglang-0.5.17-*.whl
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.sglang.version import version_key

FLAGS_FILE = Path(__file__).with_suffix(".json")

# One flag under the names that versions gave it. SGLang 0.5.14 to 0.5.16 knew both and mapped the
# left one to the right one; the right ones came then, the left ones were gone in 0.5.23.
RENAMED = (
    ("mamba_scheduler_strategy", "mamba_radix_cache_strategy"),
    ("cuda_graph_max_bs", "cuda_graph_max_bs_decode"),
    ("cuda_graph_bs", "cuda_graph_bs_decode"),
    ("piecewise_cuda_graph_max_tokens", "cuda_graph_max_bs_prefill"),
    ("piecewise_cuda_graph_tokens", "cuda_graph_bs_prefill"),
    ("disable_piecewise_cuda_graph", "disable_prefill_cuda_graph"),
    ("speculative_dflash_draft_window_size", "speculative_draft_window_size"),
    ("nsa_prefill_backend", "dsa_prefill_backend"),
    ("nsa_decode_backend", "dsa_decode_backend"),
    ("stream_output", "incremental_streaming_output"),
)

_ONE_GPU = "each server has one GPU; name the GPUs in engine.gpus"
_OWN = "Tracemill gives each server its own"
_PLAIN = "Tracemill's client speaks plain HTTP on this host, without keys"
_WHOLE = "Tracemill needs servers that answer whole requests over HTTP by themselves"
# Flags that are refused, with the reason; null, false and a value of NEUTRAL are let through.
REFUSED = {
    "model_path": "set model.path",
    "tokenizer_path": "set model.tokenizer; prompts are sent as its token ids",
    "config": "flags in a file would not be part of the run's hash; write them here",
    "delete_ckpt_after_loading": "it deletes the model's files, and a restart needs them",
    **dict.fromkeys(("host", "port", "nccl_port", "dist_init_addr", "served_model_name"), _OWN),
    **dict.fromkeys(("base_gpu_id", "gpu_id_step", "nnodes", "node_rank", "use_ray"), _ONE_GPU),
    **dict.fromkeys(("tp_size", "pp_size", "dp_size", "ep_size", "dcp_size"), _ONE_GPU),
    **dict.fromkeys(("attn_dp_size", "attn_cp_size", "moe_dp_size", "dwdp_size"), _ONE_GPU),
    "enable_dp_attention": _ONE_GPU,
    **dict.fromkeys(("api_key", "admin_api_key", "ssl_certfile", "ssl_keyfile"), _PLAIN),
    **dict.fromkeys(("grpc_mode", "smg_grpc_mode", "encoder_only", "disaggregation_mode"), _WHOLE),
}
NEUTRAL: dict[str, Any] = {
    **{name: 1 for name in REFUSED if name.endswith("_size")},
    **{"nnodes": 1, "node_rank": 0, "base_gpu_id": 0, "gpu_id_step": 1},
    "disaggregation_mode": "null",
}

# Environment variables that make SGLang invent results, for measurements without a real model.
SIMULATIONS = (
    "SGLANG_SIMULATE_ACC_LEN",
    "SGLANG_SIMULATE_UNIFORM_EXPERTS",
    "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS",
)


class Flag(NamedTuple):
    """One option of `sglang.launch_server`, named as in Python.

    `kind`: `switch` (stands alone), `toggle` (alone, or with no- in front), `value`, or `list`
    (several words). `type`: int, float, str, json, or size (an int, or 8k, 2Mi and the like).
    `nargs`: argparse's, for lists, and `?` for a value that may be left out.
    """

    name: str
    kind: str
    type: str = "str"
    choices: tuple[Any, ...] | None = None
    nargs: str | None = None
    other_names: tuple[str, ...] = ()
    deprecated: str = ""

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")


@cache
def _table() -> dict[str, dict[str, Flag]]:
    """All flags by version and name, the oldest version first."""
    found = {}
    for version, flags in json.loads(FLAGS_FILE.read_text(encoding="utf-8")).items():
        found[version] = {n: Flag(n, **_tuples(record)) for n, record in flags.items()}
    return dict(sorted(found.items(), key=lambda item: version_key(item[0])))


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}


def nearest(version: str) -> tuple[str, str]:
    """The version whose flags stand for this one's, and a warning where that is another one."""
    plain = version.split("+")[0]
    if plain in _table():
        return plain, ""
    older = [v for v in _table() if version_key(v) < version_key(plain)]
    base = older[-1] if older else next(iter(_table()))
    return base, (
        f"the flags of SGLang {version} are not in {FLAGS_FILE.name}; those of {base} are taken. "
        f"To add them: pip download --no-deps sglang=={version}, then "
        "python -m workflow_scripts.sglang.wheels sglang-*.whl"
    )


def known(version: str) -> dict[str, Flag]:
    """All flags of a version by name; `nearest` says whose they are."""
    return _table()[nearest(version)[0]]


@cache
def _names(base: str) -> dict[str, Flag]:
    """All names by which a flag of a version may be meant, those of other versions included."""
    flags = _table()[base]
    found = {other: flag for flag in flags.values() for other in flag.other_names} | flags
    everywhere = [flag for flags in _table().values() for flag in flags.values()]
    for group in [*RENAMED, *((flag.name, *flag.other_names) for flag in everywhere)]:
        best = next((found[n] for n in group if n in found and not found[n].deprecated), None)
        for name in group:
            if best and (name not in found or found[name].deprecated):
                found[name] = best
    return found


def translate(server: Mapping[str, Any], version: str) -> list[str]:
    """The words of the command line for flags as the user wrote them.

    Names may have dashes in front or inside, and may be those of another version. A flag that is
    null is left out, as is a switch that is false.

    Raises:
        ConfigError: an unknown flag, a value that the version does not take, the same flag twice,
            or a flag that Tracemill sets itself.
    """
    base, _ = nearest(version)
    words: list[str] = []
    seen: dict[str, str] = {}
    for written, value in server.items():
        flag = _find(written, version, base)
        if flag.name in seen:
            raise ConfigError(f"engine.server: {seen[flag.name]} and {written} are the same flag")
        seen[flag.name] = written
        for name in {flag.name, *flag.other_names} & REFUSED.keys():
            if value is not None and value is not False and value != NEUTRAL.get(name):
                raise ConfigError(f"engine.server.{written}: not to be set; {REFUSED[name]}")
        words += _words(flag, written, value, version)
    _fits_together(server, seen, version)
    return words


def _find(written: str, version: str, base: str) -> Flag:
    name = spelled(written)
    names = _names(base)
    if name in names:
        return names[name]
    message = f"engine.server.{written}: SGLang {version} has no such flag"
    if elsewhere := [v for v in _table() if name in _names(v)]:
        message += f" ({', '.join(elsewhere)} has)"
    if near := difflib.get_close_matches(name, names, 1, 0.5):
        message += f"; did you mean {near[0]}?"
    _, warning = nearest(version)
    raise ConfigError(message + (f"\n  {warning}" if warning else ""))


def _fits_together(server: Mapping[str, Any], seen: dict[str, str], version: str) -> None:
    """What SGLang itself refuses only after it has begun to start."""
    alone = "encoder_register_urls" not in known(version) and "encoder_urls" not in seen
    if "language_only" in seen and server[seen["language_only"]] and alone:
        raise ConfigError(
            f"engine.server.{seen['language_only']}: SGLang {version} does not start with it but "
            "without encoder_urls: it is one half of a server, not a text-only one. Leave it out"
        )


def _words(flag: Flag, written: str, value: Any, version: str) -> list[str]:
    def wrong(what: str) -> ConfigError:
        hint = ""
        if isinstance(value, bool):
            hint = " (YAML reads on, off, yes and no as true or false: quote them)"
        elif flag.deprecated:
            hint = f" (deprecated: {flag.deprecated})"
        said = f"got {json.dumps(value, default=str)}"
        return ConfigError(
            f"engine.server.{written}: {flag.option} of SGLang {version} {what}; {said}{hint}"
        )

    def word(item: Any) -> str:
        if isinstance(item, bool) or item is None:
            raise wrong("takes a value")
        what, convert = _TYPES[flag.type]
        structured = isinstance(item, dict | list) and flag.type in ("json", "str")
        text = json.dumps(item) if structured else str(item)
        try:
            convert(text)
        except ValueError:
            raise wrong(f"takes {what}") from None
        if flag.choices is not None and text not in map(str, flag.choices):
            raise wrong(f"takes one of {', '.join(map(str, flag.choices))}")
        return text

    if value is None:
        return []
    if flag.kind in ("switch", "toggle"):
        if not isinstance(value, bool):
            raise wrong("is a switch: true or false")
        off = ["--no-" + flag.option[2:]] if flag.kind == "toggle" else []
        return [flag.option] if value else off
    if flag.nargs == "?" and value is True:
        return [flag.option]
    if flag.kind == "list":
        items = [word(item) for item in (value if isinstance(value, list) else [value])]
        if not items and flag.nargs == "+":
            raise wrong("takes at least one value")
        if any(_is_option(item) for item in items):
            raise wrong("takes no value that begins with a dash")
        return [flag.option, *items]
    one = word(value)
    return [f"{flag.option}={one}"] if _is_option(one) else [flag.option, one]


def _size(text: str) -> None:
    if not re.fullmatch(r"-?\d+|\d+([KMGT]i)|\d+(\.\d+)?[kMGT]", text):
        raise ValueError(text)


_TYPES: dict[str, tuple[str, Callable[[str], object]]] = {
    "int": ("a whole number", int),
    "float": ("a number", float),
    "size": ("a whole number, or one such as 8k or 2Mi", _size),
    "json": ("JSON", json.loads),
    "str": ("text", str),
}


def _is_option(word: str) -> bool:
    """Whether argparse would take a value for an option."""
    return word.startswith("-") and not re.fullmatch(r"-\d+|-\d*\.\d+", word)


def refuse_simulation(
    environ: Mapping[str, str], rehearsal: bool, server: Mapping[str, Any] | None = None
) -> None:
    """Refuse what makes SGLang invent its answers, unless the run is a rehearsal.

    Args:
        environ: the servers' environment.
        rehearsal: whether the answers are to be thrown away.
        server: flags as the user wrote them; `load_format: dummy` is random weights.

    Raises:
        ConfigError: the answers would be garbage that looks like data.
    """
    if rehearsal:
        return
    for name in SIMULATIONS:
        if (value := environ.get(name, "")) and not _off(value):
            raise ConfigError(
                f"environment: {name}={value} makes SGLang fake what it computes, so every answer "
                f"would be garbage; unset {name}, or set engine.rehearsal for a measurement"
            )
    for written, value in (server or {}).items():
        if spelled(written) == "load_format" and value == "dummy":
            raise ConfigError(
                f"engine.server.{written}: dummy loads random weights, so every answer would be "
                "garbage; remove it, or set engine.rehearsal for a measurement"
            )


def _off(value: str) -> bool:
    try:
        return float(value) <= 0
    except ValueError:
        return value.strip().lower() in ("false", "no", "n", "f")


def spelled(name: Any) -> str:
    """A flag's name as Python has it, whether it was written so or as on a command line."""
    return str(name).strip("-").replace("-", "_")


def plain(name: str) -> str:
    """A flag's name without dashes, by the oldest version that has it."""
    written = spelled(name)
    return {new: old for old, new in RENAMED}.get(written, written)

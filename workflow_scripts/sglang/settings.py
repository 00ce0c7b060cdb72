"""SGLang's flags as it resolves them before it measures a GPU's memory.

Only what decides sizes; by the rules of 0.5.11 (`new` false) and of 0.5.23.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.sglang.flags import RENAMED, known, translate
from workflow_scripts.sglang.geometry import Geometry
from workflow_scripts.sglang.units import DTYPES, GIB

SPECULATIVE_REQUESTS = 48  # server_args.py, speculative_hook.py: max_running_requests with a draft
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": GIB, "Ti": 2**40}
TEXT_ONLY = ("language_only", "language_model_only")
KV_BYTES = {"bf16": 2, "bfloat16": 2, "fp8_e5m2": 1, "fp8_e4m3": 1}
# Flags that would change sizes in a way that is not computed here.
UNPLANNED = ("json_model_override_args", "cpu_offload_gb", "enable_unified_memory")


class NoRoom(ConfigError):
    """SGLang would not start with these settings: its memory does not suffice."""


@dataclass(frozen=True)
class Inputs:
    """What a plan is computed from."""

    model: Geometry
    gpu_gib: float
    version: str
    flags: Mapping[str, Any]
    total_mib: int
    weights_gib: float | None = None
    earlier_gib: float = 0.0  # of the free memory, gone before the log's first line about it
    request_tokens: float | None = None


def read_flags(server: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Flags as the user wrote them, by their 0.5.11 names and with values of their types.

    Raises:
        ConfigError: as `sglang_flags.translate`.
    """
    translate(server, version)
    old = {new: first for first, new in RENAMED}
    found: dict[str, Any] = {}
    for written, value in server.items():
        words = translate({written: value}, version)
        if not words:
            continue
        name, _, inline = words[0][2:].partition("=")
        name = name.replace("-", "_")
        flags = known(version)
        values: list[Any] = [inline] if inline else words[1:]
        if name not in flags:  # a toggle with no- in front
            found[old.get(name[3:], name[3:])] = False
            continue
        kind = flags[name].type
        if kind in ("int", "float", "size"):
            values = [_value(text, kind) for text in values]
        one = flags[name].kind not in ("list", "switch", "toggle")
        found[old.get(name, name)] = (values[0] if one else values) if values else True
    return found


def _value(text: str, kind: str) -> float | int:
    if kind == "float":
        return float(text)
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kMGT]i?)?", text)
    return int(float(match[1]) * UNITS[match[2]]) if match and match[2] else int(text)


@dataclass(frozen=True)
class Settings:
    """Flags as SGLang resolves them before it measures memory."""

    fraction: float
    requested: int | None
    slots: int | None
    ratio: float
    radix: bool
    per_request: int
    drafts: int
    linear: bool  # a chain of drafts, not a tree
    replay: int  # length of 0.5.23's replay ring, 0 where it is off
    page: int
    context: int
    most_tokens: int | None
    kv_bytes: int
    state_bytes: int
    usual: float
    vision_gib: float
    warnings: tuple[str, ...]


def resolve(inputs: Inputs, new: bool) -> Settings:
    """The settings that decide sizes.

    Raises:
        ConfigError: SGLang would refuse them, or the plan cannot tell what they do.
    """
    model, flags = inputs.model, dict(inputs.flags)
    warnings: list[str] = []
    for name in UNPLANNED:
        if flags.get(name) not in (None, "{}", 0, False):
            raise ConfigError(f"engine.server.{name}: the plan cannot tell what it does to memory")
    hybrid = model.gdn_layers > 0
    drafts, topk = _drafts(inputs, warnings)
    requested = _positive(flags, "max_running_requests")
    if drafts and requested is None:
        requested = SPECULATIVE_REQUESTS
    page = _positive(flags, "page_size") or _page(inputs, new or bool(drafts))
    radix = not flags.get("disable_radix_cache")
    per_request = 1
    if hybrid:
        radix, per_request = _strategy(flags, new, radix, drafts, topk, page)
        if flags.get("mamba_full_memory_ratio") is not None and (
            flags.get("max_mamba_cache_size") is not None or (not radix and requested is not None)
        ):
            warnings.append(
                "mamba_full_memory_ratio has no effect here: the number of slots is given; leave "
                "one of them out"
            )
    dtype = flags.get("kv_cache_dtype", "auto")
    if dtype != "auto" and dtype not in KV_BYTES:
        raise ConfigError(f"engine.server.kv_cache_dtype: {dtype} is not known to the plan")
    state = flags.get("mamba_ssm_dtype")
    fraction, usual = _fraction(inputs, new, bool(drafts))
    replay = 0
    if new and hybrid and drafts and flags.get("enable_linear_replayssm_spec"):
        replay = _positive(flags, "linear_replayssm_cache_len") or 16
    return Settings(
        fraction=fraction,
        requested=requested,
        slots=_positive(flags, "max_mamba_cache_size") if hybrid else None,
        ratio=float(flags.get("mamba_full_memory_ratio", 0.9)),
        radix=radix,
        per_request=per_request,
        drafts=drafts,
        linear=topk == 1,
        replay=replay,
        page=page,
        context=_positive(flags, "context_length") or model.context,
        most_tokens=_positive(flags, "max_total_tokens"),
        kv_bytes=model.kv_bytes if dtype == "auto" else KV_BYTES[dtype],
        state_bytes=model.state_bytes if state is None else DTYPES[state],
        usual=usual,
        # mem_cache/kv_cache_configurator.py: mm_runtime_reservation_gb
        vision_gib=100 / 1024 if new and model.vision else 0.0,
        warnings=tuple(warnings),
    )


def _positive(flags: Mapping[str, Any], name: str) -> int | None:
    value = flags.get(name)
    if value is not None and not 0 < value < 2**40:
        raise ConfigError(f"engine.server.{name}: {value} is not possible; set it above 0")
    return value


def _drafts(inputs: Inputs, warnings: list[str]) -> tuple[int, int]:
    """Draft tokens a step, 0 without speculation, and branches
    (server_args.py: _handle_speculative_decoding, auto_choose_speculative_params)."""
    flags, model = inputs.flags, inputs.model
    algorithm = flags.get("speculative_algorithm")
    if algorithm is None:
        return 0, 1
    if algorithm not in ("EAGLE", "EAGLE3", "NEXTN"):
        raise ConfigError(
            f"engine.server.speculative_algorithm: {algorithm} is not known to the plan; it knows "
            "NEXTN and EAGLE"
        )
    if algorithm == "EAGLE3" or not model.mtp_layers:
        warnings.append(
            "the draft model's weights and KV are not counted: it has a folder of its own"
        )
    steps = _positive(flags, "speculative_num_steps")
    if steps is None:
        return (8, 4) if model.architecture == "LlamaForCausalLM" else (4, 1)
    topk = _positive(flags, "speculative_eagle_topk") or 1
    return (steps + 1 if topk == 1 else _positive(flags, "speculative_num_draft_tokens") or 4), topk


def _page(inputs: Inputs, paged: bool) -> int:
    """64 with TensorRT-LLM's attention, the default for hybrids on a B200, whose memory tells it
    (server_args.py: _handle_model_specific_adjustments; model_overrides/qwen3_5.py)."""
    flags = inputs.flags
    backend = flags.get("attention_backend")
    paged = paged or flags.get("disable_radix_cache") or "mamba_scheduler_strategy" in flags
    guess = backend is None and inputs.model.gdn_layers and inputs.total_mib > 160 * 1024 and paged
    return 64 if backend == "trtllm_mha" or guess else 1


def _strategy(
    flags: Mapping[str, Any], new: bool, radix: bool, drafts: int, topk: int, page: int
) -> tuple[bool, int]:
    """Whether prefixes are cached, and the slots a request holds (server_args.py:
    _handle_mamba_radix_cache; arg_groups/overrides.py: _mamba_radix_cache_resolution;
    _calculate_mamba_ratio in both)."""
    strategy = flags.get("mamba_scheduler_strategy", "auto")
    overlap = not flags.get("disable_overlap_schedule") and not (drafts and topk > 1)
    where = (
        "engine.server.mamba_radix_cache_strategy"
        if new
        else ("engine.server.mamba_scheduler_strategy")
    )
    if new and strategy == "auto":
        strategy = "extra_buffer" if overlap or page > 1 else "no_buffer"
    elif strategy == "auto":
        strategy = "no_buffer"
    if not radix:
        if strategy == "extra_buffer" and not new:
            raise ConfigError(
                f"{where}: extra_buffer does not go with disable_radix_cache; leave it out"
            )
        return False, 1
    if strategy == "extra_buffer_lazy":
        return True, 4
    if strategy == "extra_buffer":
        return True, 5 if overlap else 4
    if not new and drafts:
        raise ConfigError(
            f"{where}: speculation with the radix cache needs extra_buffer; set it, or "
            "disable_radix_cache"
        )
    if not new and not drafts and flags.get("attention_backend") == "trtllm_mha":
        return False, 1  # SGLang switches the radix cache off by itself
    return True, 3


def _fraction(inputs: Inputs, new: bool, drafts: bool) -> tuple[float, float]:
    """mem_fraction_static, and the GiB that SGLang's own rule keeps free (server_args.py:
    _handle_gpu_memory_settings; arg_groups/memory_hook.py: handle_gpu_memory_settings)."""
    flags, total = inputs.flags, inputs.total_mib
    classes = ((20, 2048, 8), (35, 4096, 48) if new else (35, 2048, 24), (60, 4096, 32))
    chunk, graphs = 16384, 512
    for limit, tokens, batch in (*classes, (90, 8192, 256), (160, 8192, 256)):
        if total < limit * 1024:
            chunk, graphs = tokens, batch
            break
    chunk = flags.get("chunked_prefill_size", chunk)
    requested = _positive(flags, "max_running_requests")
    graphs = min(graphs, requested or graphs) if new else graphs
    batches = flags.get("cuda_graph_bs")
    graphs = _positive(flags, "cuda_graph_max_bs") or graphs
    graphs = max(batches) if batches and isinstance(batches, list) else graphs
    chunk = chunk if chunk > 0 else flags.get("max_prefill_tokens", 16384)
    reserved = 512 + 1.5 * max(chunk, 2048) + 128
    reserved += 0 if new and flags.get("disable_cuda_graph") else 2 * graphs
    if not flags.get("disable_piecewise_cuda_graph"):
        sizes = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32)]
        sizes += [*range(576, 1025, 64), *range(1280, 4097, 256), *range(4608, chunk + 1, 512)]
        reserved += 8 * sum(size <= chunk for size in sizes)
    if total > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    usual = reserved / 1024
    reserved += 0 if new or not drafts else 4 * 1024
    given = flags.get("mem_fraction_static")
    if given is not None:
        if not 0 < given < 1:
            raise ConfigError(f"engine.server.mem_fraction_static: {given} is not between 0 and 1")
        return float(given), usual
    fraction = round((total - reserved) / total, 3)
    vision = inputs.model.vision
    if vision is not None and not any(map(flags.get, TEXT_ONLY)):
        # adjust_mem_fraction_for_vlm; config.json's `depth` is not a key that it looks at.
        layers, hidden = vision.get("num_hidden_layers", 24), vision.get("hidden_size", 1024)
        if not (type(layers) is int and type(hidden) is int and layers * hidden < 2**40):
            raise ConfigError("config.json: vision_config has no usable sizes")
        factor = 1 - 0.1 * (layers * hidden**2 / (24 * 1024**2) - 1)
        fraction *= 0.95 * max(0.8, min(1.05, factor))
    if fraction <= 0:
        raise NoRoom("the GPU is too small for SGLang's default mem_fraction_static; set it")
    return fraction, usual

"""What a model needs of GPU memory, by its config.json and its weight files: no GPU, no torch.

Two kinds are understood: models whose layers are all full attention, and the hybrids Qwen3-Next and
Qwen3.5/3.6, most of whose layers are gated delta nets (GDN) with a state of fixed size per request.
Anything else is refused with the reason. GiB is what SGLang's logs call GB.
"""

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from workflow_scripts.config import ConfigError

GIB = 2**30
DENSE = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
HYBRID = {
    "Qwen3NextForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
}
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOATS = {"F64", "F32", "F16", "BF16"}
OTHERS = {"F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1, "I16": 2, "I32": 4, "I64": 8}
MOST = 2**31  # no number of a model's config.json is larger


@dataclass(frozen=True)
class Geometry:
    """A model's shape as far as memory goes. `kv_bytes` and `state_bytes` are the checkpoint's own
    bytes per number of the KV cache and of the recurrent state; flags may say otherwise."""

    architecture: str
    full_layers: int
    gdn_layers: int
    kv_heads: int
    head_dim: int
    context: int
    weights: int  # bytes on the GPU, without the draft layers
    weights_from: str
    draft_weights: int = 0  # bytes of the MTP layers that stay
    draft_transient: int = 0  # bytes of their own embedding and head, dropped after the load
    mtp_layers: int = 0
    kv_bytes: int = 2
    state_bytes: int = 4
    value_heads: int = 0
    key_heads: int = 0
    value_dim: int = 0
    key_dim: int = 0
    conv_kernel: int = 0
    vision: Mapping[str, Any] | None = None
    vision_weights: int = 0  # bytes of `weights`

    def token_bytes(self, kv_bytes: int, layers: int | None = None) -> int:
        """Keys and values of a token (model_executor/pool_configurator.py: _compute_cell_size)."""
        layers = self.full_layers if layers is None else layers
        return self.kv_heads * 2 * self.head_dim * layers * kv_bytes

    def ssm(self, state_bytes: int) -> int:
        """A slot's recurrent state (configs/mamba_utils.py: Mamba2StateShape.create)."""
        return self.gdn_layers * self.value_heads * self.value_dim * self.key_dim * state_bytes

    def conv(self, columns: int | None = None) -> int:
        """A slot's last convolution inputs, always 16 bit (the same place)."""
        rows = self.value_heads * self.value_dim + 2 * self.key_heads * self.key_dim
        return self.gdn_layers * rows * (self.conv_kernel - 1 if columns is None else columns) * 2

    def slot(self, state_bytes: int) -> int:
        """Bytes of a slot (configs/mamba_utils.py: mamba_cache_per_req)."""
        return self.ssm(state_bytes) + self.conv()

    def ring(self, length: int) -> int:
        """Bytes per request of 0.5.23's replay ring, which replaces the intermediate states
        (configs/mamba_utils.py: replayssm_ring_bytes_per_req)."""
        numbers = self.value_heads * self.value_dim + self.key_heads * self.key_dim
        return self.gdn_layers * length * (2 * 2 * numbers + 4 * self.value_heads)


def read_model(folder: Path, dtype: str = "auto", quantization: str | None = None) -> Geometry:
    """The shape of the model in a folder.

    Args:
        folder: Hugging Face layout; the weight files may be missing.
        dtype: SGLang's flag. Only float32 makes a difference.
        quantization: SGLang's flag, for a checkpoint that is not quantized itself.

    Raises:
        ConfigError: the model is not understood, with the reason.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'config.json'} cannot be read: {error}") from None
    return geometry(config, folder, 4 if dtype in ("float", "float32") else 2, quantization)


def geometry(
    config: Any, folder: Path | None = None, size: int = 2, quantization: str | None = None
) -> Geometry:
    """The same from what config.json holds; without a folder the weights are counted."""
    if not isinstance(config, dict):
        raise ConfigError("config.json: not an object; fetch the model again")
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or name not in DENSE | HYBRID:
        known = ", ".join(sorted(DENSE | HYBRID))
        raise ConfigError(f"config.json: architectures is {names!r}; the plan knows {known}")
    model = _Model(config, name, size, quantization)
    weights, drafts, source = _stored(folder, model, size) if folder else (None, None, "")
    full, hybrid = model.full_layers, model.hybrid
    number = model.number
    bytes_of_state = DTYPES.get(str(model.text.get("mamba_ssm_dtype") or "float32"), 4)
    return Geometry(
        architecture=name,
        full_layers=full,
        gdn_layers=model.layers - full,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        context=model.context,
        weights=model.target if weights is None else weights,
        weights_from=source or "counted from config.json",
        draft_weights=model.draft if drafts is None else drafts,
        draft_transient=model.embeddings if hybrid else 0,
        mtp_layers=model.mtp_layers,
        kv_bytes=1 if str(model.quant.get("kv_cache_quant_algo")).upper() == "FP8" else size,
        state_bytes=bytes_of_state,
        value_heads=number("linear_num_value_heads") if hybrid else 0,
        key_heads=number("linear_num_key_heads") if hybrid else 0,
        value_dim=number("linear_value_head_dim") if hybrid else 0,
        key_dim=number("linear_key_head_dim") if hybrid else 0,
        conv_kernel=number("linear_conv_kernel_dim") if hybrid else 0,
        vision=model.vision,
        vision_weights=model.tower,
    )


class _Model:
    """config.json, read key by key; parameters counted as SGLang's models/*.py build them."""

    def __init__(
        self, config: dict[str, Any], name: str, size: int, quantization: str | None
    ) -> None:
        self.config, self.size = config, size
        self.hybrid, self.gated = name in HYBRID, name in HYBRID
        text = config.get("text_config", config)
        if not isinstance(text, dict):
            raise ConfigError("config.json: text_config is not an object; fetch the model again")
        self.text = text
        self.bias = bool(text.get("attention_bias", False)) or name == "Qwen2ForCausalLM"
        self.head_norms = self.hybrid or name == "Qwen3ForCausalLM"
        self.vision = self._object(config, "vision_config")
        self.quant = self._object(config, "quantization_config") or {}
        self.layers = self.number("num_hidden_layers", most=10_000)
        self.hidden = self.number("hidden_size")
        self.vocab = self.number("vocab_size")
        self.heads = self.number("num_attention_heads")
        self.kv_heads = self.number("num_key_value_heads", None if self.hybrid else self.heads)
        per_head = None if self.hybrid else max(self.hidden // self.heads, 1)
        self.head_dim = self.number("head_dim", per_head)
        self.mtp_layers = self._mtp() if self.hybrid else 0
        self.interval = self.number("full_attention_interval", 4) if self.hybrid else 1
        self.full_layers = self.layers // self.interval
        if not self.full_layers:
            raise ConfigError("config.json: no layer is full attention; the plan needs one")
        tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
        self.embeddings = self.vocab * self.hidden * size * (1 if tied else 2)
        self.context = self._context()
        self.unknown = ""  # a quantization whose bytes cannot be counted
        self.fp8 = self._is_fp8(quantization)

    def number(self, key: str, default: int | None = None, most: int = MOST) -> int:
        value = self.text.get(key)
        value = default if value is None else value
        if value is None:
            raise ConfigError(f"config.json: {key} is missing; the plan needs it")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise ConfigError(f"config.json: {key} is {value!r}, not a number from 1 to {most}")
        return value

    def _object(self, config: dict[str, Any], key: str) -> dict[str, Any] | None:
        value = config.get(key)
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"config.json: {key} is not an object; fetch the model again")
        return value

    def _mtp(self) -> int:
        """Qwen3-Next's config.json does not name its one MTP layer; 0 says that there is none."""
        key = "mtp_num_hidden_layers"
        return 0 if self.text.get(key) in (0, False) else self.number(key, 1, most=100)

    def _context(self) -> int:
        """configs/model_config.py: the context of config.json, scaled where rope scaling says."""
        length = self.number("max_position_embeddings")
        scaling = self.text.get("rope_scaling")
        if isinstance(scaling, dict) and "original_max_position_embeddings" not in scaling:
            factor = scaling.get("factor", 1)
            kind = scaling.get("rope_type", scaling.get("type"))
            if isinstance(factor, int | float) and 1 < factor < 10_000 and kind != "llama3":
                return int(length * factor)
        return length

    def _is_fp8(self, quantization: str | None) -> bool:
        method = self.quant.get("quant_method", quantization)
        if method in (None, "fp8", "modelopt_fp8", "w8a8_fp8"):
            return method is not None
        groups = self.quant.get("config_groups")
        for group in groups.values() if isinstance(groups, dict) else ():
            weights = group.get("weights") if isinstance(group, dict) else None
            if isinstance(weights, dict) and weights.get("num_bits") == 8:
                return True
        self.unknown = f"quantization {method!r}"
        return False

    # -- parameters -------------------------------------------------------------------------------

    @cached_property
    def _kept(self) -> tuple[set[str], list[str]]:
        """Modules of an FP8 checkpoint that are not FP8: by layer, and everywhere."""
        named: set[str] = set()
        everywhere: list[str] = []
        for key in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"):
            entries = self.quant.get(key)
            for entry in entries if isinstance(entries, list) else ():
                if isinstance(entry, str):
                    tail = re.search(r"(mtp\.)?layers\.\d+\..*", entry)
                    named.update([tail[0]] if tail else [])
                    everywhere += [] if tail else [entry]
        return named, everywhere

    def _is_kept(self, name: str) -> bool:
        named, everywhere = self._kept
        parts = name.split(".")
        if any(".".join(parts[:n]) in named for n in range(3, len(parts) + 1)):
            return True
        for entry in everywhere:
            if entry.startswith("re:"):
                try:
                    if re.search(entry[3:], name):
                        return True
                except re.error:
                    continue
            elif entry in parts or name.startswith(entry.rstrip("*.") + "."):
                return True
        return False

    def _linear(self, name: str, rows: int, columns: int, count: int = 1) -> int:
        if not self.fp8 or self._is_kept(name):
            return rows * columns * count * self.size
        block = self.quant.get("weight_block_size")
        scales = rows
        if isinstance(block, list) and len(block) == 2 and all(type(b) is int for b in block):
            high, wide = (max(b, 1) for b in block)
            scales = math.ceil(rows / high) * math.ceil(columns / wide)
        return (rows * columns + 4 * scales) * count

    def _attention(self, at: str) -> int:
        query, pairs = self.heads * self.head_dim, self.kv_heads * self.head_dim
        total = self._linear(at + "q_proj", query * (1 + self.gated), self.hidden)
        total += 2 * self._linear(at + "k_proj", pairs, self.hidden)
        total += self._linear(at + "o_proj", self.hidden, query)
        bias = query + 2 * pairs if self.bias else 0
        return total + (bias + (2 * self.head_dim if self.head_norms else 0)) * self.size

    def _gdn(self, at: str) -> int:
        heads = self.number("linear_num_value_heads")
        value = heads * self.number("linear_value_head_dim")
        key = self.number("linear_num_key_heads") * self.number("linear_key_head_dim")
        total = self._linear(at + "in_proj_qkv", 2 * key + value, self.hidden)
        total += self._linear(at + "in_proj_z", value, self.hidden)
        total += 2 * self._linear(at + "in_proj_ba", heads, self.hidden)
        total += self._linear(at + "out_proj", self.hidden, value)
        small = (2 * key + value) * self.number("linear_conv_kernel_dim") + 2 * heads
        return total + (small + self.number("linear_value_head_dim")) * self.size

    def _mlp(self, at: str, index: int) -> int:
        if not self.text.get("num_experts") or not self.hybrid:
            wide = self.number("intermediate_size")
            return 3 * self._linear(at + "mlp.gate_proj", wide, self.hidden)
        dense = self.text.get("mlp_only_layers") or []
        step = self.number("decoder_sparse_step", 1)
        if not isinstance(dense, list) or index in dense or (index + 1) % step:
            wide = self.number("intermediate_size")
            return 3 * self._linear(at + "mlp.gate_proj", wide, self.hidden)
        experts = self.number("num_experts", most=100_000)
        wide = self.number("moe_intermediate_size")
        total = 3 * self._linear(at + "mlp.experts.0.gate_proj", wide, self.hidden, experts)
        shared = self.number("shared_expert_intermediate_size")
        total += 3 * self._linear(at + "mlp.shared_expert.gate_proj", shared, self.hidden)
        return total + (experts + 1) * self.hidden * self.size

    def _layer(self, index: int, full: bool, top: str = "layers") -> int:
        at = f"{top}.{index}."
        mixer = self._attention(at + "self_attn.") if full else self._gdn(at + "linear_attn.")
        return mixer + self._mlp(at, index) + 2 * self.hidden * self.size

    @cached_property
    def target(self) -> int:
        """Bytes of the model itself, without its MTP layers."""
        if self.unknown:
            raise ConfigError(
                f"config.json: {self.unknown} is unknown to the plan, so the weights cannot be "
                "counted; with the weight files in the folder they can be measured"
            )
        total = sum(self._layer(i, not (i + 1) % self.interval) for i in range(self.layers))
        return total + self.embeddings + self.hidden * self.size + self.tower

    @cached_property
    def draft(self) -> int:
        if self.unknown or not self.mtp_layers:
            return 0
        joins = 2 * self.hidden * self.hidden + 3 * self.hidden
        layers = sum(self._layer(i, True, "mtp.layers") for i in range(self.mtp_layers))
        return layers + joins * self.size

    @cached_property
    def tower(self) -> int:
        """The vision tower (models/qwen3_vl.py), never FP8."""
        if not self.vision:
            return 0
        found = [
            self.vision.get(key)
            for key in ("depth", "hidden_size", "intermediate_size", "out_hidden_size")
        ]
        if not all(type(value) is int and 0 < value <= MOST for value in found):
            raise ConfigError(
                "config.json: vision_config lacks depth, hidden_size, intermediate_size or "
                "out_hidden_size; the plan needs them"
            )
        depth, hidden, wide, out = (int(value or 0) for value in found)

        def get(key: str, default: int) -> int:
            value = self.vision.get(key) if self.vision else None
            return value if type(value) is int and 0 < value <= MOST else default

        patch = get("in_channels", 3) * get("temporal_patch_size", 2) * get("patch_size", 16) ** 2
        block = 4 * hidden * hidden + 2 * hidden * wide + wide + 9 * hidden
        joined = hidden * get("spatial_merge_size", 2) ** 2
        merger = joined * joined + joined * out + joined + out + 2 * hidden
        indices = self.vision.get("deepstack_visual_indexes")
        mergers = 1 + (len(indices) if isinstance(indices, list) else 0)
        start = hidden * (patch + 1 + get("num_position_embeddings", 2304))
        return (depth * block + mergers * merger + start) * self.size


# ---- weight files -------------------------------------------------------------------------------


def _stored(folder: Path, model: _Model, size: int) -> tuple[int | None, int | None, str]:
    """Bytes of the model and of its MTP layers by the files, or None where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    listed: Any = {}
    if index.is_file():
        try:
            listed = json.loads(index.read_text(encoding="utf-8"))
            needed = set(listed["weight_map"].values())
            total = int(listed.get("metadata", {}).get("total_size", 0))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConfigError(f"{index} cannot be read ({error!r}); fetch it again") from None
        if not needed <= {path.name for path in files}:
            has_drafts = any(str(name).startswith("mtp.") for name in listed["weight_map"])
            rest = total - (model.draft if has_drafts else 0)
            return (rest, None, f"by {index.name}") if rest > 0 else (None, None, "")
        files = [path for path in files if path.name in needed]
    if not files:
        return None, None, ""
    plain, sums = not model.quant, [0, 0]
    for path in files:
        for name, kind, numbers in _tensors(path):
            each = size if kind in FLOATS and (plain or kind != "F32") else OTHERS.get(kind, 4)
            sums[name.startswith("mtp.")] += numbers * each
    return sums[0], sums[1], "measured in the weight files"


def _tensors(path: Path) -> Iterator[tuple[str, str, int]]:
    """Name, type and number of elements of a safetensors file's tensors, by its header alone."""
    try:
        with path.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(min(length, 200_000_000)))
        for name, tensor in header.items():
            if name != "__metadata__":
                yield name, tensor["dtype"], math.prod(tensor["shape"])
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read ({error!r}); fetch the model again") from None

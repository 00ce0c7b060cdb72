"""Parameters of a model, counted as SGLang's models/*.py build them."""

import math
import re
from functools import cached_property

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.sglang.model_config import MOST, ModelConfig


class Parameters:
    """Bytes of a model's parts, by its config.json alone."""

    def __init__(self, model: ModelConfig):
        self.model = model

    @cached_property
    def _kept(self) -> tuple[set[str], list[str]]:
        """Modules of an FP8 checkpoint that are not FP8: by layer, and everywhere."""
        named: set[str] = set()
        everywhere: list[str] = []
        for key in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"):
            entries = self.model.quant.get(key)
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
        if not self.model.fp8 or self._is_kept(name):
            return rows * columns * count * self.model.size
        block = self.model.quant.get("weight_block_size")
        scales = rows
        if isinstance(block, list) and len(block) == 2 and all(type(b) is int for b in block):
            high, wide = (max(b, 1) for b in block)
            scales = math.ceil(rows / high) * math.ceil(columns / wide)
        return (rows * columns + 4 * scales) * count

    def _attention(self, at: str) -> int:
        query, pairs = (
            self.model.heads * self.model.head_dim,
            self.model.kv_heads * self.model.head_dim,
        )
        total = self._linear(at + "q_proj", query * (1 + self.model.gated), self.model.hidden)
        total += 2 * self._linear(at + "k_proj", pairs, self.model.hidden)
        total += self._linear(at + "o_proj", self.model.hidden, query)
        bias = query + 2 * pairs if self.model.bias else 0
        return (
            total
            + (bias + (2 * self.model.head_dim if self.model.head_norms else 0)) * self.model.size
        )

    def _gdn(self, at: str) -> int:
        heads = self.model.number("linear_num_value_heads")
        value = heads * self.model.number("linear_value_head_dim")
        key = self.model.number("linear_num_key_heads") * self.model.number("linear_key_head_dim")
        total = self._linear(at + "in_proj_qkv", 2 * key + value, self.model.hidden)
        total += self._linear(at + "in_proj_z", value, self.model.hidden)
        total += 2 * self._linear(at + "in_proj_ba", heads, self.model.hidden)
        total += self._linear(at + "out_proj", self.model.hidden, value)
        small = (2 * key + value) * self.model.number("linear_conv_kernel_dim") + 2 * heads
        return total + (small + self.model.number("linear_value_head_dim")) * self.model.size

    def _mlp(self, at: str, index: int) -> int:
        if not self.model.text.get("num_experts") or not self.model.hybrid:
            wide = self.model.number("intermediate_size")
            return 3 * self._linear(at + "mlp.gate_proj", wide, self.model.hidden)
        dense = self.model.text.get("mlp_only_layers") or []
        step = self.model.number("decoder_sparse_step", 1)
        if not isinstance(dense, list) or index in dense or (index + 1) % step:
            wide = self.model.number("intermediate_size")
            return 3 * self._linear(at + "mlp.gate_proj", wide, self.model.hidden)
        experts = self.model.number("num_experts", most=100_000)
        wide = self.model.number("moe_intermediate_size")
        total = 3 * self._linear(at + "mlp.experts.0.gate_proj", wide, self.model.hidden, experts)
        shared = self.model.number("shared_expert_intermediate_size")
        total += 3 * self._linear(at + "mlp.shared_expert.gate_proj", shared, self.model.hidden)
        return total + (experts + 1) * self.model.hidden * self.model.size

    def _layer(self, index: int, full: bool, top: str = "layers") -> int:
        at = f"{top}.{index}."
        mixer = self._attention(at + "self_attn.") if full else self._gdn(at + "linear_attn.")
        return mixer + self._mlp(at, index) + 2 * self.model.hidden * self.model.size

    @cached_property
    def target(self) -> int:
        """Bytes of the model itself, without its MTP layers."""
        model = self.model
        if model.unknown:
            raise ConfigError(
                f"config.json: {model.unknown} is unknown to the plan, so the weights cannot be "
                "counted; with the weight files in the folder they can be measured"
            )
        total = sum(self._layer(i, not (i + 1) % model.interval) for i in range(model.layers))
        return total + model.embeddings + model.hidden * model.size + self.tower

    @cached_property
    def draft(self) -> int:
        if self.model.unknown or not self.model.mtp_layers:
            return 0
        joins = 2 * self.model.hidden * self.model.hidden + 3 * self.model.hidden
        layers = sum(self._layer(i, True, "mtp.layers") for i in range(self.model.mtp_layers))
        return layers + joins * self.model.size

    @cached_property
    def tower(self) -> int:
        """The vision tower (models/qwen3_vl.py), never FP8."""
        if not self.model.vision:
            return 0
        found = [
            self.model.vision.get(key)
            for key in ("depth", "hidden_size", "intermediate_size", "out_hidden_size")
        ]
        if not all(type(value) is int and 0 < value <= MOST for value in found):
            raise ConfigError(
                "config.json: vision_config lacks depth, hidden_size, intermediate_size or "
                "out_hidden_size; the plan needs them"
            )
        depth, hidden, wide, out = (int(value or 0) for value in found)

        def get(key: str, default: int) -> int:
            value = self.model.vision.get(key) if self.model.vision else None
            return value if type(value) is int and 0 < value <= MOST else default

        patch = get("in_channels", 3) * get("temporal_patch_size", 2) * get("patch_size", 16) ** 2
        block = 4 * hidden * hidden + 2 * hidden * wide + wide + 9 * hidden
        joined = hidden * get("spatial_merge_size", 2) ** 2
        merger = joined * joined + joined * out + joined + out + 2 * hidden
        indices = self.model.vision.get("deepstack_visual_indexes")
        mergers = 1 + (len(indices) if isinstance(indices, list) else 0)
        start = hidden * (patch + 1 + get("num_position_embeddings", 2304))
        return (depth * block + mergers * merger + start) * self.model.size

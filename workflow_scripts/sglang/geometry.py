"""What a model needs of GPU memory, by its config.json and its weight files: no GPU, no torch.

Two kinds are understood: models whose layers are all full attention, and the hybrids Qwen3-Next and
Qwen3.5/3.6, most of whose layers are gated delta nets (GDN) with a state of fixed size per request.
Anything else is refused with the reason. GiB is what SGLang's logs call GB.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.sglang.model_config import DENSE, HYBRID, ModelConfig
from workflow_scripts.sglang.parameters import Parameters
from workflow_scripts.sglang.units import DTYPES
from workflow_scripts.sglang.weights import stored_bytes


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
    model = ModelConfig(config, name, size, quantization)
    counted = Parameters(model)
    weights, drafts, source = stored_bytes(folder, counted) if folder else (None, None, "")
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
        weights=counted.target if weights is None else weights,
        weights_from=source or "counted from config.json",
        draft_weights=counted.draft if drafts is None else drafts,
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
        vision_weights=counted.tower,
    )

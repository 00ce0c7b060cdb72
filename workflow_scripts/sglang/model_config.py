"""config.json, read key by key; and checked."""

from typing import Any

from workflow_scripts.base.errors import ConfigError

DENSE = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
HYBRID = {
    "Qwen3NextForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
}
MOST = 2**31  # no number of a model's config.json is larger


class ModelConfig:
    """What decides a model's size, as config.json has it.

    Args:
        config: the object in config.json.
        name: its architecture, one of DENSE or HYBRID.
        size: bytes of a number of the weights.
        quantization: as a flag names it, where the files do not.

    Raises:
        ConfigError: a key is missing or no size.
    """

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

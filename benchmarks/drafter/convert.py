"""speculators' EAGLE-3 checkpoint as SGLang 0.5.11 loads one (`models/llama_eagle3.py`).

Both compute the same where the checkpoint was trained as `train` does it: fc on the three hidden
states, one layer on [norm(embedding), norm(hidden)], the residual from before that norm, the last
norm before the head only. Names and the configuration differ:

    layers.0.*   midlayer.*          embed_tokens, verifier_*   left out: SGLang shares the target's
    t2d          left out            d2t                        the same: differences of ids

Without a reduced vocabulary there is no d2t, and draft id and target id are the same. DFlash's
tensors have the same names on both sides (`models/dflash.py`); only its configuration differs.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.drafter import record

REFUSED = (
    "norm_before_fc",
    "norm_output",
    "norm_before_residual",
    "fc_norm",
    "embed_requires_grad",
)
LAYER = "layers.0."
LEFT_OUT = ("embed_tokens.", "verifier_norm.", "verifier_lm_head.", "t2d")
# Of the layer's configuration, what SGLang reads.
FIELDS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "max_position_embeddings", "rms_norm_eps", "vocab_size", "rope_parameters",
    "attention_bias", "mlp_bias", "initializer_range",
)  # fmt: skip


def configuration(config: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """The drafter's config.json for SGLang.

    Args:
        layers: those of the target, whose default hidden states (2, n/2, n-3) must be the ones the
            drafter was trained on; None: not known, not checked.

    Raises:
        ValueError: the checkpoint computes something that SGLang's model does not.
    """
    layer = config["transformer_layer_config"]
    extra = [name for name in REFUSED if config.get(name)]
    if layer.get("num_hidden_layers", 1) != 1:
        extra.append("num_hidden_layers")
    if layer.get("model_type") != "llama":
        extra.append("model_type")
    if extra:
        raise ValueError(
            f"SGLang's llama_eagle3.py has no {', '.join(extra)}: train without, as "
            "`python -m benchmarks.drafter train` does"
        )
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    if layers and ids and list(ids) != [2, layers // 2, layers - 3]:
        raise ValueError(f"trained on the hidden states {ids}; SGLang would give it others")
    told = {name: layer[name] for name in FIELDS if name in layer}
    if "rope_parameters" in told:  # SGLang and older transformers look for either
        told["rope_theta"] = told["rope_parameters"]["rope_theta"]
    return told | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": config["draft_vocab_size"],
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": layer.get("bos_token_id"),
        "eos_token_id": layer.get("eos_token_id"),
    }


def dflash_configuration(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """A DFlash drafter's config.json for SGLang.

    Args:
        layers: the target's; without it SGLang takes the draft's for it and refuses to start.

    Raises:
        ValueError: the checkpoint computes something that SGLang's model does not.
    """
    layer = config["transformer_layer_config"]
    if config["draft_vocab_size"] != layer["vocab_size"] or config.get("sample_from_anchor"):
        raise ValueError("SGLang's dflash.py has no reduced vocabulary and no sample_from_anchor")
    if set(layer["layer_types"]) != {"full_attention"}:
        raise ValueError("SGLang's dflash.py has no layers with a sliding window")
    if (theta := layer["rope_parameters"]["rope_theta"]) != 1e6:
        raise ValueError(f"RoPE base {theta}: SGLang 0.5.11 would take 1,000,000")
    told = {name: layer[name] for name in (*FIELDS, "num_hidden_layers") if name in layer}
    # SGLang counts the layers whose output it takes, speculators the hidden states.
    places = [place - 1 for place in config["aux_hidden_state_layer_ids"]]
    mask = {"mask_token_id": config["mask_token_id"], "target_layer_ids": places}
    return told | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "rope_theta": theta,
        "dflash_config": mask | {"block_size": config["block_size"], "num_target_layers": layers},
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def dflash_names(found: Iterable[str]) -> dict[str, str]:
    """The tensors to keep, whose names stay: not what belongs to the target."""
    return {name: name for name in found if not name.startswith((*LEFT_OUT, "lm_head.", "d2t"))}


def names(found: Iterable[str]) -> dict[str, str]:
    """speculators' names of the tensors to keep, with SGLang's.

    Raises:
        ValueError: a tensor that has no place there.
    """
    named: dict[str, str] = {}
    for name in found:
        if name.startswith(LEFT_OUT):
            continue
        if name.startswith(LAYER):
            named[name] = "midlayer." + name.removeprefix(LAYER)
        elif name in ("d2t", "fc.weight", "norm.weight", "lm_head.weight"):
            named[name] = name
        else:
            raise ValueError(f"{name}: SGLang's llama_eagle3.py has no such tensor")
    return named


def newest(save: Path) -> Path:
    """The last checkpoint of a training's folder."""
    found = [p for p in save.iterdir() if p.name.isdigit() and (p / "config.json").exists()]
    if not found:
        raise ValueError(f"{save}: no checkpoint")
    return max(found, key=lambda p: int(p.name))


def convert(checkpoint: Path, out: Path, layers: int) -> dict[str, list[int]]:
    """Write the drafter's folder for SGLang; returns its tensors' shapes."""
    import torch
    from safetensors.torch import load_file, save_file

    given = json.loads((checkpoint / "config.json").read_text())
    dflash = given["speculators_model_type"] == "dflash"
    config = dflash_configuration(given, layers) if dflash else configuration(given, layers)
    found: dict[str, Any] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        found |= load_file(str(file))
    tensors = {}
    for old, new in (dflash_names if dflash else names)(found).items():
        tensors[new] = found[old] if old == "d2t" else found[old].to(torch.bfloat16)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(out / "model.safetensors"))
    (out / "config.json").write_text(json.dumps(config, indent=1))
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="convert", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="prepare's folder")
    parser.add_argument("--model", type=Path, required=True, help="the target")
    args = parser.parse_args(argv)
    layers = json.loads((args.model / "config.json").read_text())["num_hidden_layers"]
    told = {}
    for done in sorted((args.out / "drafters").glob("*/done.json")):
        save = done.parent
        told[save.name] = convert(newest(save), args.out / "sglang" / save.name, layers)
    record(args.out, "convert", {"drafters": list(told), "tensors": next(iter(told.values()), {})})
    return 0

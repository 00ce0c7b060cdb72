"""speculators' EAGLE-3 checkpoint under SGLang's names, and that both compute the same with it.

SGLang's side follows `models/llama_eagle3.py` of 0.5.11; the checkpoint's configuration is one that
speculators 0.9.0 wrote for SmolLM2-135M. The logits need torch and speculators, which the tests'
environment has not: they are compared where both are installed.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drafter.convert import (
    configuration,
    convert,
    dflash_configuration,
    dflash_names,
    names,
    newest,
)

DATA = Path(__file__).parent.parent / "data/drafter"
LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    "input_layernorm", "hidden_norm", "post_attention_layernorm",
)  # fmt: skip


def recorded(kind: str = "") -> dict[str, Any]:
    told: dict[str, Any] = json.loads((DATA / f"speculators-0.9.0-{kind}config.json").read_text())
    return told


def test_every_tensor_of_sglangs_model_is_there_and_no_other() -> None:
    saved = [f"layers.0.{name}.weight" for name in LAYER]
    saved += ["fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight", "d2t", "t2d"]
    wanted = {f"midlayer.{name}.weight" for name in LAYER}
    wanted |= {"fc.weight", "norm.weight", "lm_head.weight", "d2t"}
    assert set(names(saved).values()) == wanted


@pytest.mark.parametrize(
    "name", ["input_norm.weight", "fc_norm.0.weight", "layers.1.mlp.up_proj.weight"]
)
def test_a_tensor_without_a_place_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"has no such tensor"):
        names([name])


def test_configuration_is_what_sglang_looks_for() -> None:
    told = configuration(recorded(), 30)
    assert told["architectures"] == ["LlamaForCausalLMEagle3"]
    assert told["num_hidden_layers"] == 1
    assert (told["hidden_size"], told["intermediate_size"], told["head_dim"]) == (576, 1536, 64)
    assert (told["num_attention_heads"], told["num_key_value_heads"]) == (9, 3)
    assert told["vocab_size"] == told["draft_vocab_size"] == 49152
    assert told["rope_theta"] == told["rope_parameters"]["rope_theta"] == 100000.0
    assert told["tie_word_embeddings"] is False


@pytest.mark.parametrize(
    "flag", ["norm_before_fc", "norm_output", "norm_before_residual", "fc_norm"]
)
def test_what_sglang_does_not_compute_is_refused(flag: str) -> None:
    with pytest.raises(ValueError, match=flag):
        configuration(recorded() | {flag: True}, 30)


def test_other_hidden_states_than_sglang_gives_are_refused() -> None:
    assert configuration(recorded(), 30)
    with pytest.raises(ValueError, match="hidden states"):
        configuration(recorded(), 32)


def test_dflash_takes_the_same_hidden_states_and_the_targets_own_embedding() -> None:
    told = dflash_configuration(recorded("dflash-"), 30)
    # SGLang captures the output of these layers, which are the inputs of 2, 15 and 27.
    assert told["dflash_config"] == {
        "mask_token_id": 0, "target_layer_ids": [1, 14, 26], "block_size": 8,
        "num_target_layers": 30,  # SGLang 0.5.11 refused to start where it was not said
    }  # fmt: skip
    assert told["architectures"] == ["DFlashDraftModel"]
    assert told["num_hidden_layers"] == 2
    kept = ["fc.weight", "hidden_norm.weight", "norm.weight", "layers.1.self_attn.k_norm.weight"]
    assert list(dflash_names([*kept, "embed_tokens.weight", "lm_head.weight"])) == kept


def test_dflash_with_another_rope_base_is_refused() -> None:
    given = recorded("dflash-")
    given["transformer_layer_config"]["rope_parameters"]["rope_theta"] = 1e5
    with pytest.raises(ValueError, match="RoPE base"):
        dflash_configuration(given, 30)


def test_the_newest_checkpoint_is_taken(tmp_path: Path) -> None:
    for name in ("0", "9", "10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "epoch10_end").symlink_to("10")
    assert newest(tmp_path) == tmp_path / "10"


def small(reduced: bool) -> Any:
    """A drafter of speculators' own class with random weights, rounded to bfloat16."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("speculators")
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from transformers import LlamaConfig

    given = copy.deepcopy(recorded())
    layer = given["transformer_layer_config"] | {
        "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 3,
        "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 50,
    }  # fmt: skip
    layer = LlamaConfig(**layer, attn_implementation="eager")
    flags = dict.fromkeys(("norm_before_fc", "norm_output", "norm_before_residual"), False)
    size = 20 if reduced else 50
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=size,
        eagle_aux_hidden_state_layer_ids=[2, 15, 27], **flags,
    )  # fmt: skip
    model = Eagle3DraftModel(config)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                wide = 1.0 if name.endswith("norm.weight") else 0.3
                tensor.copy_(torch.randn(tensor.shape, generator=draw).mul(wide).bfloat16())
        if reduced:
            kept = torch.randperm(50, generator=draw)[:size].sort().values
            model.t2d[kept] = True
            model.d2t.copy_(kept - torch.arange(size))
    return model.eval()


def norm(x: Any, weight: Any, eps: float) -> Any:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotated(x: Any, positions: Any, theta: float) -> Any:
    import torch

    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Reading:
    """SGLang's LlamaModel and LlamaDecoderLayer of llama_eagle3.py, with a plain list as cache."""

    def __init__(self, folder: Path, embedding: Any):
        import torch
        from safetensors.torch import load_file

        self.w = {k: v.float() if v.is_floating_point() else v for k, v in
                  load_file(str(folder / "model.safetensors")).items()}  # fmt: skip
        self.c = json.loads((folder / "config.json").read_text())
        self.embedding, self.torch = embedding, torch
        self.keys: list[Any] = []
        self.values: list[Any] = []

    def step(self, token: int, hidden: Any, position: int) -> tuple[Any, Any]:
        """Logits, and the hidden state that the next draft step gets."""
        w, c, eps = self.w, self.c, self.c["rms_norm_eps"]
        embeds = self.embedding[token]
        if hidden.shape[-1] != embeds.shape[-1]:
            hidden = w["fc.weight"] @ hidden
        residual = hidden
        x = self.torch.cat([
            norm(embeds, w["midlayer.input_layernorm.weight"], eps),
            norm(hidden, w["midlayer.hidden_norm.weight"], eps),
        ])  # fmt: skip
        places = self.torch.tensor([position])
        q, k, v = (
            (w[f"midlayer.self_attn.{n}_proj.weight"] @ x).view(1, -1, c["head_dim"]) for n in "qkv"
        )
        q, k = (rotated(one, places, c["rope_theta"]) for one in (q, k))
        self.keys.append(k[0])
        self.values.append(v[0])
        groups = c["num_attention_heads"] // c["num_key_value_heads"]
        keys = self.torch.stack(self.keys).repeat_interleave(groups, 1)
        values = self.torch.stack(self.values).repeat_interleave(groups, 1)
        scores = self.torch.einsum("hd,nhd->hn", q[0], keys) / c["head_dim"] ** 0.5
        mixed = self.torch.einsum("hn,nhd->hd", scores.softmax(-1), values).reshape(-1)
        residual = residual + w["midlayer.self_attn.o_proj.weight"] @ mixed
        x = norm(residual, w["midlayer.post_attention_layernorm.weight"], eps)
        gate = self.torch.nn.functional.silu(w["midlayer.mlp.gate_proj.weight"] @ x)
        x = w["midlayer.mlp.down_proj.weight"] @ (gate * (w["midlayer.mlp.up_proj.weight"] @ x))
        out = x + residual
        return w["lm_head.weight"] @ norm(out, w["norm.weight"], eps), out


@pytest.mark.parametrize("reduced", [False, True])
def test_logits_of_three_draft_steps_are_speculators_own(tmp_path: Path, reduced: bool) -> None:
    torch = pytest.importorskip("torch")
    model = small(reduced)
    model.save_pretrained(tmp_path / "saved")
    shapes = convert(tmp_path / "saved", tmp_path / "sglang", 30)
    assert shapes["fc.weight"] == [24, 72]
    assert shapes["midlayer.self_attn.q_proj.weight"] == [24, 48]
    length, steps = 9, 3
    draw = torch.Generator().manual_seed(2)
    tokens = torch.randint(50, (length + steps,), generator=draw)
    states = torch.randn(length + steps, 72, generator=draw)
    logits: list[Any] = []
    model.lm_head.register_forward_hook(lambda _m, _i, out: logits.append(out[0]))
    with torch.no_grad():
        model(
            hidden_states=states[None], input_ids=tokens[None],
            document_ids=torch.zeros(1, length + steps, dtype=torch.long), ttt_steps=steps,
        )  # fmt: skip
        reading = Reading(tmp_path / "sglang", model.embed_tokens.weight)
        for place in range(length):
            said, hidden = reading.step(int(tokens[place]), states[place], place + 1)
            torch.testing.assert_close(said, logits[0][place], rtol=2e-4, atol=2e-4)
        for ahead in range(1, steps):  # drafts of the last position, the true tokens given
            told = int(tokens[length - 1 + ahead])
            said, hidden = reading.step(told, hidden, length + ahead)
            torch.testing.assert_close(said, logits[ahead][length - 1], rtol=2e-4, atol=2e-4)
    if reduced:
        ids = reading.w["d2t"] + torch.arange(20)
        assert ids.tolist() == model.t2d.nonzero().flatten().tolist()

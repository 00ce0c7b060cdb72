"""What the plan knows of models, and its laws for any of them."""

import json
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.made.plan_cases import QWEN, QWEN_CONFIG, SMOL
from workflow_scripts import plan as module
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.load import load
from workflow_scripts.engine.protocol import Facts
from workflow_scripts.plan import main, show
from workflow_scripts.serve.gpus import Gpu
from workflow_scripts.serve.proofs import surprises
from workflow_scripts.sglang.geometry import Geometry, geometry, read_model
from workflow_scripts.sglang.memory import OWN_GIB, Plan, change, predict
from workflow_scripts.sglang.settings import NoRoom
from workflow_scripts.sglang.units import GIB

# ---- models -------------------------------------------------------------------------------------

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
}
NEXT: dict[str, Any] = {
    **{"architectures": ["Qwen3NextForCausalLM"], "num_hidden_layers": 48, "hidden_size": 2048},
    **{"vocab_size": 151936, "num_attention_heads": 16, "num_key_value_heads": 2},
    **{"head_dim": 256, "intermediate_size": 5120, "max_position_embeddings": 262144},
    **{"full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128},
    **{"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128},
    **{"num_experts": 512, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512},
}


def test_parameters_are_counted_as_published() -> None:
    qwen2 = {"num_hidden_layers": 28, "hidden_size": 3584, "vocab_size": 152064}
    qwen2 |= {"num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944}
    qwen3 = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 36, "vocab_size": 151936}
    qwen3 |= {"head_dim": 128, "intermediate_size": 12288}
    assert geometry(LLAMA).weights == 2 * 8_030_261_248
    assert (
        geometry(LLAMA | qwen2 | {"architectures": ["Qwen2ForCausalLM"]}).weights
        == 2 * 7_615_616_512
    )
    assert geometry(LLAMA | qwen3).weights == 2 * 8_190_735_360
    assert SMOL.weights == 2 * 134_515_008
    mixture = geometry(NEXT)
    assert mixture.weights + mixture.draft_weights == 2 * 81_324_862_720
    assert QWEN.weights + QWEN.draft_weights == pytest.approx(55.56e9, rel=0.0001)
    assert QWEN.slot(4) == 153_944_064 and QWEN.token_bytes(2) == 65_536


def test_a_dense_model_worked_by_hand() -> None:
    """8,030,261,248 parameters of 2 bytes are 14.95754 GiB. A token has 8 heads x 128 numbers x K
    and V x 32 layers x 2 bytes = 131,072 bytes. Of 80 GiB, 0.9 are 72; 72 - 14.95754 GiB hold
    467,291 tokens. With no limit, 512 x 467,291 / 131,072 is below the least, so 2,048 requests.
    """
    plan = predict(geometry(LLAMA), 80.0, "0.5.11", {"mem_fraction_static": 0.9})
    assert (plan.tokens, plan.max_running, plan.slots) == (467_291, 2048, 0)
    assert plan.parts["K"] == plan.parts["V"] == 467_292 * 65_536 / GIB
    assert plan.binds == "SGLang's own estimate of requests, 2,048"
    short = {"max_running_requests": 64, "max_total_tokens": 100_000, "page_size": 64}
    plan = change(plan, short)
    assert (plan.tokens, plan.max_running) == (99_968, 64)
    eighth = change(plan, {"kv_cache_dtype": "fp8_e4m3", "max_total_tokens": None})
    assert eighth.tokens == 467_291 * 2 // 64 * 64


def test_fp8_checkpoints() -> None:
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    full, plain = geometry(LLAMA | {"quantization_config": block}).weights, geometry(LLAMA).weights
    ends = 2 * 128256 * 4096 * 2  # embedding and head stay 16 bit
    assert full == pytest.approx(ends + (plain - ends) / 2, rel=0.001)
    kept = block | {"modules_to_not_convert": ["model.layers.0.mlp.gate_proj", "lm_head"]}
    more = geometry(LLAMA | {"quantization_config": kept}).weights - full
    assert more == pytest.approx(3 * 4096 * 14336, rel=0.001)
    tensors = {"quant_method": "compressed-tensors"}
    tensors["config_groups"] = {"group_0": {"weights": {"num_bits": 8}}}  # type: ignore[assignment]
    assert geometry(LLAMA | {"quantization_config": tensors}).weights == pytest.approx(
        full, rel=0.001
    )
    assert geometry(LLAMA, quantization="fp8").weights == pytest.approx(full, rel=0.001)
    with pytest.raises(ConfigError, match="'awq' is unknown"):
        geometry(LLAMA | {"quantization_config": {"quant_method": "awq"}})


def write_tensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    header = {n: {"dtype": d, "shape": s, "data_offsets": [0, 0]} for n, (d, s) in tensors.items()}
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def test_weights_are_those_of_the_files_where_there_are_any(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_CONFIG))
    assert read_model(tmp_path).weights == QWEN.weights
    index = {
        "metadata": {"total_size": 55_562_855_904},
        "weight_map": {"mtp.fc.weight": "a", "x": "b"},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    listed = read_model(tmp_path)
    assert listed.weights == QWEN.weights and "index" in listed.weights_from
    (tmp_path / "model.safetensors.index.json").unlink()
    tensors = {"model.a": ("BF16", [10, 10]), "model.b": ("F32", [10]), "mtp.c": ("BF16", [7])}
    write_tensors(tmp_path / "model.safetensors", tensors)
    stored = read_model(tmp_path)
    assert (stored.weights, stored.draft_weights) == (220, 14)
    assert stored.weights_from == "measured in the weight files"
    (tmp_path / "model.safetensors").write_bytes(b"\x05")
    with pytest.raises(ConfigError, match="fetch the model again"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ([], "not an object"),
        ({}, "architectures is None"),
        (LLAMA | {"architectures": ["GemmaForCausalLM"]}, "the plan knows LlamaForCausalLM"),
        (LLAMA | {"hidden_size": None}, "hidden_size is missing"),
        (LLAMA | {"vocab_size": "many"}, "vocab_size is 'many'"),
        (QWEN_CONFIG | {"text_config": 3}, "text_config"),
        (NEXT | {"linear_key_head_dim": 0}, "linear_key_head_dim is 0"),
        (NEXT | {"full_attention_interval": 100}, "no layer is full attention"),
    ],
)
def test_what_is_not_understood_is_refused(config: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        geometry(config)


# ---- laws ---------------------------------------------------------------------------------------

SERVERS = st.fixed_dictionaries(
    {"mem_fraction_static": st.floats(0.5, 0.95)},
    optional={
        "max_running_requests": st.integers(1, 600),
        "max_mamba_cache_size": st.integers(1, 800),
        "disable_radix_cache": st.booleans(),
        "mamba_scheduler_strategy": st.sampled_from(["no_buffer", "extra_buffer"]),
        "speculative_algorithm": st.sampled_from(["NEXTN", None]),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8_e4m3"]),
        "mamba_ssm_dtype": st.sampled_from(["float32", "bfloat16"]),
        "page_size": st.sampled_from([1, 64]),
        "context_length": st.integers(1024, 262_144),
        "enable_linear_replayssm_spec": st.booleans(),
    },
)
MODELS = st.sampled_from([QWEN, SMOL, geometry(LLAMA)])
VERSIONS = st.sampled_from(["0.5.11", "0.5.23"])
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def attempt(model: Geometry, gib: float, version: str, server: dict[str, Any]) -> Plan | None:
    if version == "0.5.11":
        server = {k: v for k, v in server.items() if k != "enable_linear_replayssm_spec"}
    try:
        return predict(model, gib, version, server)
    except ConfigError:
        return None


@COMMON
@given(MODELS, st.floats(1, 300), VERSIONS, SERVERS)
def test_parts_sum_to_the_whole_and_a_plan_never_exceeds_the_card(
    model: Geometry, gib: float, version: str, server: dict[str, Any]
) -> None:
    plan = attempt(model, gib, version, server)
    assume(plan)
    assert plan
    assert sum(plan.parts.values()) == pytest.approx(gib)
    assert all(size >= 0 for size in plan.parts.values())
    assert plan.parts["free"] == plan.free >= plan.lowest >= 0
    assert 0 <= plan.unusable <= plan.free
    assert plan.max_running > 0 and plan.tokens > 0
    if plan.slots:
        assert plan.max_running * plan.per_request <= plan.slots


@COMMON
@given(MODELS, st.floats(1, 300), st.floats(0, 100), VERSIONS, SERVERS)
def test_more_memory_never_gives_less(
    model: Geometry, gib: float, more: float, version: str, server: dict[str, Any]
) -> None:
    """Tokens may fall by the share of one slot where SGLang itself chooses the number of slots."""
    less, plan = attempt(model, gib, version, server), attempt(model, gib + more, version, server)
    assume(less and plan)
    assert less and plan
    assert plan.slots >= less.slots
    step = 0
    if model.gdn_layers and "max_mamba_cache_size" not in server:
        slot = model.slot(model.state_bytes) * (1 + plan.drafts)
        step = slot // model.token_bytes(1) + plan.page
    assert plan.tokens >= less.tokens - step
    if plan.tokens >= less.tokens or less.tokens > 2 * 4096 + step:
        assert plan.max_running >= less.max_running


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@COMMON
@given(st.sampled_from([QWEN_CONFIG, LLAMA, NEXT]), st.randoms(use_true_random=False), st.data())
def test_any_config_gives_a_plan_or_a_refusal(
    base: dict[str, Any], chance: random.Random, data: st.DataObject
) -> None:
    config = json.loads(json.dumps(base))
    for _ in range(3):
        where = config
        inner = [key for key in config if isinstance(config[key], dict)]
        if inner and chance.random() < 0.7:
            where = config[chance.choice(inner)]
        keys = [*where, "quantization_config", "rope_scaling", "mlp_only_layers"]
        where[chance.choice(keys)] = data.draw(JSON | st.integers(0, 300))
    try:
        plan = predict(geometry(config), 139.13, "0.5.23", {"speculative_algorithm": "NEXTN"})
    except ConfigError as refusal:
        assert str(refusal)
        return
    assert list(show(plan))
    with pytest.raises(NoRoom):
        predict(replace(plan.inputs.model, weights=2**50), 80.0, "0.5.11", {})


def test_the_memory_of_a_gpu_that_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    file = tmp_path / "run.yaml"
    run = {"input": ["a.jsonl"], "output_dir": "out", "model": {"path": str(tmp_path)}}
    file.write_text(yaml.safe_dump(run))
    monkeypatch.setattr(module, "all_gpus", list)
    assert main(["--configfile", str(file)]) == 1
    assert "--gpu-gib" in capsys.readouterr().out
    gpu = type("Gpu", (), {"total_mib": 143_771})
    monkeypatch.setattr(module, "all_gpus", lambda: [gpu()])
    assert main(["--configfile", str(file)]) == 0
    assert f"{143_771 / 1024 - OWN_GIB:.2f} GiB free" in capsys.readouterr().out


def test_what_the_motivating_settings_would_have_been_told(tmp_path: Path) -> None:
    """/server_info of a real 0.5.11 with 80 slots on an H200; 48 - 16 requests of four intermediate
    states of 146.8 MiB are the 18.4 GiB."""
    server = {
        "mem_fraction_static": 0.8, "max_mamba_cache_size": 80, "max_running_requests": 48,
        "speculative_algorithm": "EAGLE", "speculative_num_steps": 3,
        "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4,
        "mamba_scheduler_strategy": "extra_buffer", "context_length": 8192,
        "attention_backend": "triton", "cuda_graph_max_bs": 16,
    }  # fmt: skip
    state = {"effective_max_running_requests_per_dp": 16, "max_mamba_cache_size": 80}
    info = {"internal_states": [state], "max_total_num_tokens": 347975, "context_length": 8192}
    (tmp_path / "config.json").write_text(json.dumps(QWEN_CONFIG))
    config = load(
        {
            "output_dir": "x",
            "input": "x",
            "model": {"path": str(tmp_path)},
            "engine": {"kind": "sglang", "server": server},
        }
    )
    card = Gpu(0, "GPU-0", "NVIDIA H200", 0, 143771, None, None)
    (line,) = surprises(config, "0.5.11", card, Facts(16, 8192, info))
    assert "asked for 48 requests at once, SGLang runs 16" in line
    assert "set max_mamba_cache_size to 240, or max_running_requests to 16" in line
    assert "frees 18.4 GiB" in line

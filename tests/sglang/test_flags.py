"""SGLang's flags: names, values, versions, and that what is written out is what argparse takes."""

import argparse
import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.made.paths import RECORDED, ROOT
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.sglang.flags import (
    NEUTRAL,
    REFUSED,
    RENAMED,
    SIMULATIONS,
    Flag,
    known,
    nearest,
    refuse_simulation,
    translate,
)
from workflow_scripts.sglang.numerics import NUMERIC_FLAGS

SAID = json.loads((RECORDED / "server_info.json").read_text())
# Not flags: what the server adds to its arguments in /server_info.
ADDED = {"status", "max_total_num_tokens", "max_req_input_len", "internal_states", "version"}
VERSIONS = ["0.5.11", "0.5.16", "0.5.23"]
SUFFIXES = {"k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20}


def size(text: str) -> int:
    """SGLang's human_readable_int, as far as it is needed here."""
    match = re.fullmatch(r"(\d+)([kKMi]+)", text)
    return int(match[1]) * SUFFIXES[match[2]] if match else int(text)


TYPES = {"int": int, "float": float, "str": str, "json": json.loads, "size": size}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise AssertionError(message)


def parser_of(version: str) -> Parser:
    """argparse as that version sets it up, abbreviations included."""
    parser = Parser()
    for flag in known(version).values():
        options: dict[str, Any] = {"dest": flag.name}
        if flag.kind == "switch":
            options["action"] = "store_true"
        elif flag.kind == "toggle":
            options |= {"action": argparse.BooleanOptionalAction, "default": None}
        else:
            options |= {"type": TYPES[flag.type], "choices": flag.choices, "nargs": flag.nargs}
        if flag.nargs == "?":
            options["const"] = ""
        parser.add_argument(flag.option, **options)
    return parser


PARSERS = {version: parser_of(version) for version in VERSIONS}


def find(version: str, name: str) -> Flag:
    return next(f for f in known(version).values() if name in (f.name, *f.other_names))


def parsed(server: dict[str, Any], version: str) -> dict[str, Any]:
    return vars(PARSERS[version].parse_args(translate(server, version)))


# ---- the file of flags --------------------------------------------------------------------------


def test_every_argument_a_server_reported_is_a_flag_of_its_version() -> None:
    names = {n for flag in known("0.5.11").values() for n in (flag.name, *flag.other_names)}
    assert set(SAID) - ADDED <= names
    assert len(known("0.5.11")) > 350


def test_kinds_and_choices_fit_what_a_server_reported() -> None:
    for name in set(SAID) - ADDED:
        flag, value = find("0.5.11", name), SAID[name]
        if flag.kind in ("switch", "toggle"):
            assert value is None or isinstance(value, bool), name
        assert value is not True or flag.kind in ("switch", "toggle"), name
        if isinstance(value, list):
            assert flag.kind == "list", name
        if flag.choices and value is not None:
            assert value in flag.choices, name
        if flag.type in ("int", "size") and flag.kind == "value":
            assert value is None or isinstance(value, int), name


def test_a_reported_configuration_comes_back_from_the_command_line() -> None:
    server = {
        name: value
        for name, value in SAID.items()
        if name not in ADDED | set(REFUSED) and value not in (None, [], False)
    }
    said = parsed(server, "0.5.11")
    assert {name: said[find("0.5.11", name).name] for name in server} == server


# Copied by hand from the sources of the two wheels.
ONLY_OLD = """mamba_scheduler_strategy cuda_graph_max_bs cuda_graph_bs disable_piecewise_cuda_graph
    piecewise_cuda_graph_max_tokens piecewise_cuda_graph_tokens torchao_config enable_nan_detection
    nsa_prefill_backend speculative_dflash_draft_window_size"""
ONLY_NEW = """mamba_radix_cache_strategy cuda_graph_max_bs_decode cuda_graph_bs_decode
    cuda_graph_backend_decode cuda_graph_config disable_prefill_cuda_graph language_model_only
    enable_linear_replayssm_spec enable_int8_mamba_checkpoint mamba_max_states_per_path
    min_free_slots_delay speculative_use_rejection_sampling enable_strict_thinking
    return_output_ids attn_dp_size watermark_config"""
BOTH = """mem_fraction_static max_running_requests max_mamba_cache_size mamba_full_memory_ratio
    mamba_ssm_dtype disable_radix_cache speculative_algorithm speculative_num_steps
    speculative_eagle_topk speculative_num_draft_tokens kv_cache_dtype attention_backend
    chunked_prefill_size context_length reasoning_parser language_only load_format enable_metrics
    watchdog_timeout decode_log_interval page_size disable_overlap_schedule"""


def test_which_version_has_which_flag() -> None:
    old, new = known("0.5.11"), known("0.5.23")
    assert all(name in old and name not in new for name in ONLY_OLD.split())
    assert all(name in new and name not in old for name in ONLY_NEW.split())
    assert all(name in old and name in new for name in BOTH.split())
    assert all(a in known("0.5.16") and b in known("0.5.16") for a, b in RENAMED)


@pytest.mark.parametrize(
    ("version", "name", "kind", "type_", "choices"),
    [
        ("0.5.11", "mamba_scheduler_strategy", "value", "str", "auto no_buffer extra_buffer"),
        ("0.5.23", "mamba_radix_cache_strategy", "value", "str", "auto no_buffer extra_buffer "
         "extra_buffer_lazy"),
        ("0.5.11", "mamba_ssm_dtype", "value", "str", "float32 bfloat16 float16"),
        ("0.5.23", "mamba_ssm_dtype", "value", "str", "float32 bfloat16 float16"),
        ("0.5.11", "linear_attn_backend", "value", "str", "triton cutedsl flashinfer"),
        ("0.5.11", "speculative_algorithm", "value", "str", "DFLASH EAGLE EAGLE3 NEXTN STANDALONE "
         "NGRAM"),
        ("0.5.23", "speculative_algorithm", "value", "str", None),
        ("0.5.23", "cuda_graph_backend_decode", "value", "str", "full breakable disabled"),
        ("0.5.23", "cuda_graph_config", "value", "json", None),
        ("0.5.23", "cuda_graph_bs_decode", "list", "int", None),
        ("0.5.11", "cuda_graph_bs", "list", "int", None),
        ("0.5.11", "context_length", "value", "size", None),
        ("0.5.11", "mem_fraction_static", "value", "float", None),
        ("0.5.11", "speculative_adaptive", "switch", "str", None),
        ("0.5.23", "enable_tf32_matmul", "toggle", "str", None),
        ("0.5.11", "enable_fused_qk_norm_rope", "switch", "str", None),
        ("0.5.23", "enable_fused_qk_norm_rope", "toggle", "str", None),
        ("0.5.11", "hybrid_kvcache_ratio", "switch", "str", None),
        ("0.5.23", "monokernel_backend", "value", "str", "amd"),
    ],
)  # fmt: skip
def test_facts_of_the_sources(
    version: str, name: str, kind: str, type_: str, choices: str | None
) -> None:
    flag = known(version)[name]
    assert (flag.kind, flag.type) == (kind, type_)
    assert flag.choices == (tuple(choices.split()) if choices else None)


def test_deprecated_flags_say_what_to_use() -> None:
    flags = known("0.5.16")
    assert flags["mamba_scheduler_strategy"].deprecated == "--mamba-radix-cache-strategy"
    assert flags["cuda_graph_max_bs"].deprecated == "--cuda-graph-max-bs-decode"
    assert known("0.5.23")["disable_cuda_graph"].deprecated.startswith("--cuda-graph-backend-")
    assert not known("0.5.11")["cuda_graph_max_bs"].deprecated


def test_flags_that_change_numbers_are_flags_of_some_version() -> None:
    assert all(any(name in known(v) for v in VERSIONS) for name in NUMERIC_FLAGS)


# ---- what is written out ------------------------------------------------------------------------

# Flags a server was really started with, beside its model and ports.
STARTED = (
    "--attention-backend triton --sampling-backend pytorch --mm-attention-backend triton_attn "
    "--grammar-backend none --context-length 8192 --enable-metrics --disable-piecewise-cuda-graph "
    "--watchdog-timeout 600 --disable-radix-cache --mem-fraction-static 0.85 "
    "--max-running-requests 32 --cuda-graph-max-bs 32"
)


def test_a_command_line_that_was_run() -> None:
    server = {
        "attention_backend": "triton",
        "sampling-backend": "pytorch",
        "--mm-attention-backend": "triton_attn",
        "grammar_backend": "none",
        "context_length": 8192,
        "enable_metrics": True,
        "disable_prefill_cuda_graph": True,
        "watchdog_timeout": 600,
        "disable_radix_cache": True,
        "mem_fraction_static": 0.85,
        "max_running_requests": 32,
        "cuda_graph_max_bs_decode": 32,
        "enable_mixed_chunk": False,
        "mamba_radix_cache_strategy": None,
    }
    assert translate(server, "0.5.11") == STARTED.split()
    newer = STARTED.replace("disable-piecewise", "disable-prefill")
    newer = newer.replace("graph-max-bs", "graph-max-bs-decode")
    assert translate(server, "0.5.23") == newer.split()


@pytest.mark.parametrize(("old", "new"), RENAMED)
def test_names_of_either_version(old: str, new: str) -> None:
    value: Any = {"switch": True, "list": [1, 2]}.get(known("0.5.11")[old].kind, "8")
    if choices := known("0.5.11")[old].choices:
        value = next(c for c in choices if c in (known("0.5.23")[new].choices or ()))
    oldest = new if known("0.5.11")[old].deprecated else old
    for version, name in (("0.5.11", oldest), ("0.5.16", new), ("0.5.20", new), ("0.5.23", new)):
        for written in (old, new, f"--{new.replace('_', '-')}"):
            assert translate({written: value}, version)[0] == "--" + name.replace("_", "-")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shipped_configuration(version: str) -> None:
    config = yaml.safe_load((ROOT / "config/qwen3.6-27b.yaml").read_text())
    said = parsed(config["engine"]["server"], version)
    assert said["speculative_algorithm"] == "NEXTN"
    assert said["disable_radix_cache"] is True


def test_values_of_all_shapes() -> None:
    assert translate({"cuda_graph_bs": [1, 2, 8]}, "0.5.11") == ["--cuda-graph-bs", "1", "2", "8"]
    assert translate({"model_loader_extra_config": {"num_threads": 4}}, "0.5.11") == [
        "--model-loader-extra-config",
        '{"num_threads": 4}',
    ]
    assert translate({"enable_tf32_matmul": False}, "0.5.23") == ["--no-enable-tf32-matmul"]
    assert translate({"chunked_prefill_size": -1}, "0.5.11") == ["--chunked-prefill-size", "-1"]
    assert translate({"context_length": "256Ki"}, "0.5.23") == ["--context-length", "256Ki"]
    assert translate({"tensor_parallel_size": 1}, "0.5.11") == ["--tensor-parallel-size", "1"]
    assert translate({"model_checksum": True}, "0.5.11") == ["--model-checksum"]
    assert translate({}, "0.5.11") == []


def values(flag: Flag) -> st.SearchStrategy[Any]:
    one: st.SearchStrategy[Any] = {
        "int": st.integers(-(2**31), 2**31),
        "float": st.floats(allow_nan=False, allow_infinity=False),
        "size": st.one_of(st.integers(0, 2**40), st.sampled_from(["8k", "25M", "2Ki", "1Mi"])),
        "json": st.dictionaries(st.text(), st.one_of(st.none(), st.integers(), st.text())),
        "str": st.text(st.characters(codec="utf-8")).filter(lambda text: text != "--"),
    }[flag.type]
    if flag.choices is not None:
        one = st.sampled_from(flag.choices)
    if flag.kind in ("switch", "toggle"):
        return st.booleans()
    if flag.kind == "list":
        one = one.filter(lambda item: not str(item).startswith("-"))
        return st.lists(one, min_size=int(flag.nargs == "+"), max_size=3)
    return one


@st.composite
def servers(draw: st.DrawFn, version: str) -> dict[str, Any]:
    free = [f for f in known(version).values() if not {f.name, *f.other_names} & set(REFUSED)]
    free = [f for f in free if f.name != "language_only" and not f.deprecated]
    flags = draw(st.lists(st.sampled_from(free), max_size=6, unique=True))
    spellings = st.sampled_from(["{}", "--{}", "-{}"])
    server = {}
    for flag in flags:
        name = draw(st.sampled_from([flag.name, flag.name.replace("_", "-")]))
        server[draw(spellings).format(name)] = draw(values(flag))
    return server


@pytest.mark.parametrize("version", VERSIONS)
def test_argparse_takes_every_flag(version: str) -> None:
    """Each by itself, with one fixed value; a deprecated one as what took its place."""
    flags = known(version)
    for name, written in flags.items():
        if {name, *written.other_names} & set(REFUSED) or name == "language_only":
            continue
        flag = flags[dict(RENAMED).get(name, name)] if written.deprecated else written
        value: Any = flag.choices[0] if flag.choices else {"json": {}, "str": "x"}.get(flag.type, 8)
        value = {"switch": True, "toggle": True, "list": [value]}.get(flag.kind, value)
        words = translate({name: value}, version)
        assert words[0] == flag.option
        assert getattr(PARSERS[version].parse_args(words), flag.name) == value


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_argparse_reads_what_was_meant(version: str, data: st.DataObject) -> None:
    server = data.draw(servers(version))
    said = parsed(server, version)
    for written, value in server.items():
        flag = known(version)[written.strip("-").replace("-", "_")]
        meant = size(str(value)) if flag.type == "size" else value
        assert said[flag.name] == meant


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "version", "message"),
    [
        ({"max_runing_requests": 8}, "0.5.11", "max_runing_requests: SGLang 0.5.11 has no such flag"
         "; did you mean max_running_requests?"),
        ({"enable_linear_replayssm_spec": True}, "0.5.11", r"\(0.5.23 has\)"),
        ({"torchao_config": "int8wo"}, "0.5.23", r"\(0.5.11.* has\)"),
        ({"zzzzqqq": 1}, "0.5.23", "has no such flag$"),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, "0.5.11", "--mamba-scheduler-strategy"
         " of SGLang 0.5.11 takes one of auto, no_buffer, extra_buffer; got \"extra_buffer_lazy\""),
        ({"max_running_requests": "many"}, "0.5.11", "takes a whole number; got \"many\""),
        ({"max_running_requests": 8.5}, "0.5.11", "takes a whole number; got 8.5"),
        ({"mem_fraction_static": [0.9]}, "0.5.11", "takes a number"),
        ({"context_length": "8K"}, "0.5.11", "such as 8k"),
        ({"disable_radix_cache": "true"}, "0.5.11", "is a switch: true or false; got \"true\""),
        ({"kv_cache_dtype": True}, "0.5.11", "takes a value; got true .YAML reads on"),
        ({"cuda_graph_bs": []}, "0.5.11", "takes at least one value"),
        ({"log_requests_target": ["-x"]}, "0.5.11", "begins with a dash"),
        ({"cuda_graph_config": "{"}, "0.5.23", "takes JSON"),
        ({"cuda_graph_max_bs": 8, "cuda-graph-max-bs-decode": 9}, "0.5.23", "cuda_graph_max_bs and "
         "cuda-graph-max-bs-decode are the same flag"),
        ({"model": "x"}, "0.5.11", "engine.server.model: not to be set; set model.path"),
        ({"--port": 30000}, "0.5.23", "Tracemill gives each server its own"),
        ({"port": 0}, "0.5.23", "Tracemill gives each server its own"),
        ({"tp_size": 2}, "0.5.11", "each server has one GPU"),
        ({"tensor-parallel-size": 2}, "0.5.23", "each server has one GPU"),
        ({"data_parallel_size": 7}, "0.5.11", "each server has one GPU"),
        ({"attention_data_parallel_size": 7}, "0.5.11", "has no such flag"),
        ({"base_gpu_id": 3}, "0.5.11", "engine.gpus"),
        ({"config": "flags.yaml"}, "0.5.11", "run's hash"),
        ({"api_key": "k"}, "0.5.11", "without keys"),
        ({"disaggregation_mode": "decode"}, "0.5.11", "whole requests"),
        ({"delete_ckpt_after_loading": True}, "0.5.23", "deletes the model's files"),
        ({"language_only": True}, "0.5.11", "without encoder_urls"),
        ({"stream_outptu": True}, "0.5.20", "no such flag.*\n.*those of 0.5.16 are taken"),
    ],
)  # fmt: skip
def test_refused(server: dict[str, Any], version: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        translate(server, version)


def test_what_changes_nothing_is_let_through() -> None:
    names = {n for f in known("0.5.23").values() for n in (f.name, *f.other_names)}
    for name, value in NEUTRAL.items():
        if name in names:
            translate({name: value}, "0.5.23")
    assert translate({"language_only": True}, "0.5.23") == ["--language-only"]
    assert translate({"language_only": True, "encoder_urls": ["http://a"]}, "0.5.11")


@pytest.mark.parametrize(
    ("version", "base"),
    [
        ("0.5.11", "0.5.11"),
        ("0.5.23+cu130", "0.5.23"),
        ("0.5.11.post1", "0.5.11"),
        ("0.5.15", "0.5.11"),
        ("0.5.22", "0.5.16"),
        ("0.6.0", "0.5.23"),
        ("0.5.9", "0.5.11"),
    ],
)
def test_the_nearest_older_version_stands_in(version: str, base: str) -> None:
    found, warning = nearest(version)
    assert found == base
    assert bool(warning) == (version.split("+")[0] != base)
    assert known(version) == known(base)


# ---- simulation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["3", "3.0", "0.5", "x"])
def test_a_faked_accept_length_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="unset SGLANG_SIMULATE_ACC_LEN"):
        refuse_simulation({"SGLANG_SIMULATE_ACC_LEN": value}, False)
    refuse_simulation({"SGLANG_SIMULATE_ACC_LEN": value}, True)


@pytest.mark.parametrize("value", ["", "-1", "0", "false"])
def test_a_simulation_that_is_off_is_none(value: str) -> None:
    refuse_simulation(dict.fromkeys(SIMULATIONS, value), False)


def test_random_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="random weights"):
        refuse_simulation({}, False, {"--load-format": "dummy"})
    refuse_simulation({}, True, {"load_format": "dummy"})
    refuse_simulation({}, False, {"load_format": "auto"})

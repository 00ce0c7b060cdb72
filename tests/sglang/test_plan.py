"""The plan: against logs of real starts, against figures that were published, and by its laws."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.made.paths import RECORDED, ROOT
from tests.made.plan_cases import (
    B200_MIB,
    BEFORE,
    BOOT,
    BUFFERED,
    FITTED_GIB,
    FLAGS,
    H200,
    MTP,
    NO_RADIX,
    QWEN,
    QWEN_CONFIG,
    TUNED,
    logged,
    motivating,
    planned,
)
from tests.sglang.test_plan_models import LLAMA
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.plan import main, show, warnings
from workflow_scripts.sglang.compare import compare
from workflow_scripts.sglang.geometry import geometry
from workflow_scripts.sglang.levers import SPECULATION, levers
from workflow_scripts.sglang.memory import change, fit, predict
from workflow_scripts.sglang.observed import Observed, from_log, from_server_info
from workflow_scripts.sglang.settings import read_flags
from workflow_scripts.sglang.units import GIB

# ---- real starts --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLAGS)
def test_slots_requests_and_caches_are_those_of_the_log(name: str) -> None:
    plan, seen = planned(name)
    parts = fit(plan, seen).parts
    assert (plan.slots, plan.max_running) == (seen.slots or 0, seen.max_running)
    assert plan.context == seen.context
    for part, size in (
        ("state (SSM)", seen.ssm),
        ("state (conv)", seen.conv),
        ("intermediate state (SSM)", seen.intermediate_ssm),
        ("intermediate state (conv)", seen.intermediate_conv),
    ):
        assert f"{parts[part]:.2f}" == f"{size or 0:.2f}", part
    # K and V exactly for the tokens that were logged, and near where these are planned as well.
    assert seen.tokens and seen.k and seen.v
    model = plan.inputs.model
    half = (seen.tokens + plan.page) * model.token_bytes(2) / 2 / GIB
    assert f"{half:.2f}" == f"{seen.k:.2f}" == f"{seen.v:.2f}"
    assert abs(parts["K"] - seen.k) < 0.015
    if seen.draft_k:
        draft = (seen.tokens + plan.page) * model.token_bytes(2, 1) / 2 / GIB
        assert f"{draft:.2f}" == f"{seen.draft_k:.2f}"


@pytest.mark.parametrize("name", FLAGS)
def test_tokens_and_free_memory_are_near_those_of_the_log(name: str) -> None:
    plan, seen = planned(name)
    fitted = fit(plan, seen)
    assert seen.tokens and seen.pool_end
    assert plan.tokens == pytest.approx(seen.tokens, rel=0.01)
    assert fitted.tokens == pytest.approx(seen.tokens, rel=0.001)
    assert fitted.pool_end == pytest.approx(seen.pool_end, abs=0.1)
    if seen.draft_load:
        draft = QWEN.draft_weights + QWEN.draft_transient
        assert f"{draft / GIB:.2f}" == f"{seen.draft_load:.2f}"
    # What was left at the end is what the plan leaves, less the graphs.
    assert seen.graphs and seen.free_end
    assert fitted.free - seen.graphs == pytest.approx(seen.free_end, abs=0.25)


def test_a_log_is_read() -> None:
    seen = logged("seed_before_80")
    assert (seen.free, seen.loaded, seen.slots, seen.max_running) == (139.13, 88.07, 80, 16)
    assert seen.weights == pytest.approx(51.06)
    assert (seen.k, seen.v, seen.draft_k, seen.draft_load) == (10.62, 10.62, 0.66, 5.53)
    assert (seen.pool_end, seen.free_end) == (45.44, 42.24)
    assert seen.graphs == pytest.approx(0.60 + 0.16 + 0.23)
    twice = (BOOT / "kit_nospec32.log").read_text() + (BOOT / "seed_before_80.log").read_text()
    assert from_log(twice) == seen
    assert from_log("") == Observed()
    newer = (
        "Full KV is allocated. dtype: torch.bfloat16, #tokens: 12, K size: 0.50 GB, V size: 1.00 GB"
    )
    assert (from_log(newer).tokens, from_log(newer).k, from_log(newer).v) == (12, 0.5, 1.0)


def test_what_a_server_reports_agrees_with_the_plan() -> None:
    info = json.loads((RECORDED / "server_info.json").read_text())
    seen = from_server_info(info)
    assert (seen.slots, seen.tokens, seen.max_running) == (256, 613_614, 256)
    assert compare(planned("noradix_nospec256")[0], seen) == []
    assert from_server_info({}) == Observed()


# ---- the motivating run -------------------------------------------------------------------------


def test_80_slots_make_16_requests() -> None:
    plan = motivating(**{"max-mamba-cache-size": 80, "mem-fraction-static": 0.8})
    assert (plan.per_request, plan.max_running) == (5, 16)
    assert f"{plan.parts['state (SSM)']:.1f}" == "11.4"
    assert f"{plan.parts['intermediate state (SSM)']:.1f}" == "9.6"
    assert plan.binds == "state slots: 80 slots, 5 a request, make 16 requests; 64 were asked for"


def test_200_slots_make_40_requests_and_798080_tokens() -> None:
    both = motivating(**{"max-mamba-cache-size": 80, "max-running-requests": 16})
    assert both.binds.endswith("which is what 80 state slots hold at 5 a request")
    plan = motivating()
    parts = {name: f"{size:.1f}" for name, size in plan.parts.items()}
    assert (plan.max_running, plan.tokens, plan.page) == (40, 798_080, 64)
    assert (parts["state (SSM)"], parts["intermediate state (SSM)"]) == ("28.3", "23.1")
    assert (parts["K"], parts["V"]) == ("24.4", "24.4")
    assert f"{plan.unusable:.1f}" == "13.8"
    assert any("mamba_full_memory_ratio has no effect" in line for line in warnings(plan))
    exact = next(lever for lever in levers(plan) if lever.name.startswith("ask for no more"))
    assert (exact.max_running, f"{exact.freed_gib:.1f}") == (40, "13.8")
    assert exact.flags == {"max_running_requests": 40}
    assert exact.tokens == pytest.approx(1_023_680, rel=0.001)


def test_the_documented_plan_and_levers_are_what_is_printed() -> None:
    text = (ROOT / "docs/tuning.md").read_text()
    server = BEFORE | {"mem-fraction-static": 0.9}
    before = predict(QWEN, FITTED_GIB, "0.5.11", server, total_mib=B200_MIB)
    printed = [line.strip() for line in (*show(before), *show(motivating()))]
    lines = [line.strip() for line in text.splitlines() if line.startswith("     ")]
    assert len(lines) > 20
    for line in lines:
        assert any(shown.startswith(line) for shown in printed), line
    for name in FLAGS:  # the table of starts
        plan, seen = planned(name)
        row = [plan.max_running, plan.tokens, fit(plan, seen).tokens, seen.tokens]
        assert " | ".join(f"{number:,}" for number in row) in text


def test_a_plan_takes_less_than_two_seconds() -> None:
    start = time.perf_counter()
    assert list(show(motivating()))
    assert time.perf_counter() - start < 2


def test_without_speculation_nothing_is_reserved_for_it() -> None:
    plan = change(motivating(), dict.fromkeys(SPECULATION))
    assert plan.requested == 64 and plan.unusable == 0 and plan.parts["draft KV"] == 0
    assert plan.parts["intermediate state (SSM)"] == 0


def test_the_rules_of_0_5_23_reserve_for_what_runs() -> None:
    new = predict(QWEN, FITTED_GIB, "0.5.23", TUNED, total_mib=B200_MIB)
    assert (new.max_running, new.unusable, new.rules) == (40, 0, "0.5.23")
    assert new.tokens == pytest.approx(939_000, rel=0.001)
    lazy = change(new, {"mamba_scheduler_strategy": "extra_buffer_lazy"})
    assert (lazy.per_request, lazy.max_running) == (4, 50)
    replay = change(new, {"enable_linear_replayssm_spec": True})
    assert replay.parts["intermediate state (SSM)"] == 0
    assert replay.parts["replay ring"] == 41 * QWEN.ring(16) / GIB
    automatic = predict(QWEN, FITTED_GIB, "0.5.23", MTP, total_mib=B200_MIB)
    assert automatic.fraction == pytest.approx(0.79, abs=0.001)
    old = predict(QWEN, FITTED_GIB, "0.5.11", BUFFERED, total_mib=B200_MIB)
    assert (f"{old.fraction:.4f}", old.slots, old.max_running) == ("0.7685", 191, 38)


def test_versions() -> None:
    between = predict(QWEN, H200, "0.5.16", BEFORE)
    assert between.rules == "0.5.23" and "rules of 0.5.23" in between.warnings[0]
    assert predict(QWEN, H200, "0.5.12", BEFORE).rules == "0.5.11"
    assert predict(QWEN, H200, "0.5.11+cu130", BEFORE).warnings == ()
    with pytest.raises(ConfigError, match="not a version"):
        predict(QWEN, H200, "new", BEFORE)


# ---- flags --------------------------------------------------------------------------------------


def test_flags_may_be_those_of_either_version() -> None:
    for written in ("--mamba-scheduler-strategy", "mamba_radix_cache_strategy"):
        for version in ("0.5.11", "0.5.23"):
            flags = read_flags({written: "extra_buffer", "page-size": "64"}, version)
            assert flags == {"mamba_scheduler_strategy": "extra_buffer", "page_size": 64}
    assert read_flags({"max-total-tokens": "8k"}, "0.5.23") == {"max_total_tokens": 8000}
    with pytest.raises(ConfigError, match="no such flag"):
        predict(QWEN, H200, "0.5.11", {"max_mamba": 1})


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (MTP, "needs extra_buffer"),
        (BUFFERED | NO_RADIX, "does not go with disable_radix_cache"),
        ({"speculative_algorithm": "NGRAM"}, "NGRAM is not known"),
        ({"kv_cache_dtype": "fp4_e2m1"}, "fp4_e2m1 is not known"),
        ({"mem_fraction_static": 1.5}, "not between 0 and 1"),
        ({"max_running_requests": 0}, "set it above 0"),
        ({"mem_fraction_static": 0.3}, "would not start"),
        ({"mem_fraction_static": 0.9, "max_mamba_cache_size": 2}, "too few"),
        ({"mem_fraction_static": 0.9, "max_mamba_cache_size": 9000}, "would not start"),
        (NO_RADIX | {"mem_fraction_static": 0.9999}, "run out of memory"),
    ],
)
def test_what_sglang_would_not_start_with_is_refused(server: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        predict(QWEN, H200, "0.5.11", server)


# ---- levers, clamps, the page -------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.5.11", "0.5.23"])
def test_levers_say_what_they_give(version: str) -> None:
    plan = predict(QWEN, H200, version, BEFORE)
    found = {lever.name: lever for lever in levers(plan)}
    for lever in found.values():
        if lever.plan:  # what a lever says is what its flags, written by a user, would give
            server = {k.replace("-", "_"): v for k, v in BEFORE.items()} | dict(lever.flags)
            if version == "0.5.23" and "mamba_radix_cache_strategy" in server:
                server.pop("mamba_scheduler_strategy")
            again = predict(QWEN, H200, version, {k: v for k, v in server.items() if v is not None})
            assert (again.max_running, again.tokens) == (lever.max_running, lever.tokens)
    order = [lever.max_running for lever in levers(plan)]
    assert order == sorted(order, reverse=True)
    assert found["radix cache off"].max_running > found["more state slots"].max_running > 16
    assert found["radix cache and MTP off"].max_running > 100
    assert found["MTP off"].freed_gib > found["one draft token fewer"].freed_gib > 0
    assert "changes numerics" in found["state in 16 bits"].warning
    assert "changes numerics" in found["KV cache in 8 bits"].warning
    assert found["KV cache in 8 bits"].tokens == pytest.approx(2 * plan.tokens, rel=0.001)
    assert "no effect" in found["more decode steps at once"].note
    assert found["more decode steps at once"].freed_gib == 0
    if version == "0.5.11":
        assert found["scheduling strategy"].plan is None
        assert "needs extra_buffer" in found["scheduling strategy"].note
    else:
        assert found["scheduling strategy"].max_running == 20
        assert found["no vision tower"].freed_gib == pytest.approx(0.86, abs=0.01)


def test_half_the_context_only_shrinks_the_table_of_requests() -> None:
    server = {"mem_fraction_static": 0.9, "max_running_requests": 256}
    plan = predict(geometry(LLAMA), 80.0, "0.5.11", server)
    half = next(lever for lever in levers(plan) if lever.name == "half the context")
    assert half.tokens == plan.tokens
    assert half.freed_gib == pytest.approx(256 * 65_536 * 4 / GIB)


def test_a_silent_clamp_is_told_with_its_remedy() -> None:
    plan = motivating()
    (line,) = compare(plan, Observed(max_running=40, slots=200, tokens=798_080))
    assert line.startswith("asked for 64 requests at once, SGLang runs 40: it has 200 state slots")
    assert "set max_mamba_cache_size to 320, or max_running_requests to 40" in line
    assert "frees 13.8 GiB" in line
    (line,) = compare(*planned("seed_before_80"))
    assert line.startswith("SGLang's limit with speculation is 48 requests at once, SGLang runs 16")
    for name in set(FLAGS) - {"default80", "seed_before_80"}:
        assert compare(*planned(name)) == []
    lines = compare(plan, Observed(max_running=64, slots=199, tokens=700_000, context=1))
    assert len(lines) == 4 and "-12.3%" in lines[2]
    asked = change(planned("smollm2_real_model")[0], {"max_total_tokens": 3_000_000})
    assert "asked for 3,000,000 KV tokens" in compare(asked, logged("smollm2_real_model"))[0]


def test_kv_tokens_bind_where_requests_are_long() -> None:
    server = TUNED | {"max-running-requests": 40}
    plan = predict(QWEN, FITTED_GIB, "0.5.11", server, total_mib=B200_MIB, request_tokens=50_000)
    assert plan.binds.startswith("KV tokens: ") and "hold 20 requests" in plan.binds


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_CONFIG))
    run = {"input": ["a.jsonl"], "output_dir": "out", "model": {"path": str(tmp_path)}}
    run["engine"] = {"kind": "sglang", "server": BEFORE | {"context-length": 8192}}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(run))
    log = str(BOOT / "seed_before_80.log")
    assert main(["--configfile", str(file), "--gpu-gib", "139.13", "--log", log]) == 0
    page = capsys.readouterr().out
    for text in (
        "16 requests at once, 347,913 KV tokens",
        "bound by state slots: 80 slots, 5 a request",
        "by the log",
        "radix cache off: disable_radix_cache: true, max_running_requests: ",
        "state (SSM), GiB                   11.39       11.39",
    ):
        assert text in page
    assert main(["--configfile", str(tmp_path / "none.yaml")]) == 1
    assert main(["--configfile", str(file), "--sglang", "x", "--gpu-gib", "80"]) == 1
    assert "FAIL" in capsys.readouterr().out

"""The tune's candidates and judgement. Whole tunes are in test_tuned.py."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import pytest
import yaml

from tests.made.paths import DATA, ROOT
from tests.made.plan_cases import BOOT, FITTED_GIB, H200, TUNED
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.load import load
from workflow_scripts.tune import judge
from workflow_scripts.tune.candidates import BASELINE, Maker, merged, read_named
from workflow_scripts.tune.results import Answered, Result, append, read_results

QWEN = BOOT / "qwen3.6-27b.config.json"
RECORDED_TUNE = DATA / "tune/h200"
NAMED = ROOT / "benchmarks/tune_h200_candidates.yaml"
# KV tokens that real starts with these flags reported (tests/data/sglang/0.5.11/boot).
RECORDED = {
    BASELINE: (32, 538_446),
    "MTP, no radix cache, 64 requests": (64, 463_278),
    "no MTP, no radix cache, 256 requests": (256, 613_614),
}


@pytest.fixture
def shape(tmp_path: Path) -> Path:
    """A folder with the shape of Qwen3.6-27B, without weights."""
    shutil.copy(QWEN, tmp_path / "config.json")
    return tmp_path


# ---- candidates ----


def test_the_ready_candidates_are_predicted_as_real_servers_reported(shape: Path) -> None:
    config = load(yaml.safe_load((ROOT / "benchmarks/tune_h200.yaml").read_text()))
    assert isinstance(config.engine.server, dict)
    maker = Maker(shape, config.engine.server, "0.5.11", H200, 143_771)
    found = {c.name: c for c in maker.all(read_named(NAMED), 4)}
    assert [c.name for c in maker.all(read_named(NAMED), 2)] == [*found][:2]
    assert len(found) == 4 and [c.speculative for c in found.values()] == [True, True, False, False]
    for name, (running, tokens) in RECORDED.items():
        plan = found[name].plan
        assert plan is not None and plan.max_running == running
        assert plan.tokens == pytest.approx(tokens, rel=0.01)
    assert "mamba_scheduler_strategy" not in found["MTP, no radix cache, 64 requests"].server


def test_the_plan_proposes_what_runs_differently(shape: Path) -> None:
    """The levers of docs/tuning.md for the motivating run, those left out that change the numbers
    of every answer, and those with which just as many requests run."""
    maker = Maker(shape, TUNED, "0.5.11", FITTED_GIB, 183_359)
    found = {c.name: c.plan.max_running for c in maker.all({}, 20) if c.plan}
    assert found == {
        BASELINE: 40,
        "radix cache and MTP off": 290,
        "radix cache and MTP off, 145 requests": 145,
        "radix cache off": 118,
        "more state slots": 74,
        "radix cache off, 59 requests": 59,
        "MTP off": 40,
        "one draft token fewer": 40,
    }
    most = maker.all({}, 3)
    assert [c.name for c in most] == list(found)[:3]
    # 290 requests in a step are more than the CUDA graphs that SGLang makes by itself
    assert most[1].server["cuda_graph_max_bs"] == 290
    assert "cuda_graph_max_bs" not in most[2].server
    assert "speculative-algorithm" not in most[1].server


def test_a_configuration_that_took_the_levers_gets_others(shape: Path) -> None:
    server = {"disable_radix_cache": True, "max_running_requests": 64, "mem_fraction_static": 0.9}
    found = Maker(shape, server, "0.5.11", H200, 143_771, 700.0).all({}, 9)
    assert [c.name for c in found][1:2] == ["more requests"]
    assert "MTP on" in [c.name for c in found]
    assert all(c.plan and c.plan.tokens >= 700 * c.plan.max_running for c in found)


def test_flags_are_changed_however_they_are_spelled() -> None:
    server = {"--max-running-requests": 8, "mamba_radix_cache_strategy": "extra_buffer", "x": 1}
    changes = {"max_running_requests": 16, "mamba-scheduler-strategy": None}
    assert merged(server, changes) == {"x": 1, "max_running_requests": 16}


def test_candidates_that_cannot_be(shape: Path, tmp_path: Path) -> None:
    maker = Maker(shape, {"mem_fraction_static": 0.9}, "0.5.11", H200, 143_771)
    with pytest.raises(ConfigError, match="max_running_requests"):
        maker.all({"typo": {"max_running_request": 4}}, 4)
    with pytest.raises(ConfigError, match="`same` has the flags of `baseline`"):
        maker.all({"same": {"mem_fraction_static": 0.9}}, 4)
    (tmp_path / "c.yaml").write_text("[1, 2]")
    with pytest.raises(ConfigError, match="must hold names"):
        read_named(tmp_path / "c.yaml")
    huge = maker.all({"huge": {"max_running_requests": 900, "disable_radix_cache": True}}, 2)[1]
    assert huge.plan is None and "would not start" in huge.problem


# ---- numbers ----


def answered(tokens: int, ended: bool = True, loop: bool = False) -> Answered:
    return Answered(tokens, ended, False, loop, prompt=10)


def test_mean_length_counts_unfinished_answers() -> None:
    """Remission times of 21 leukemia patients under 6-MP (Freireich and others, 1963); Klein and
    Moeschberger, Survival Analysis, section 4.5: the mean restricted to 35 weeks is 23.29."""
    relapsed, remission = [6, 6, 6, 7, 10, 13, 16, 22, 23], [6, 9, 10, 11, 17, 19, 20, 25, 32, 32]
    remission += [34, 35]
    told = [answered(weeks) for weeks in relapsed]
    found = judge.lengths(told + [answered(weeks, ended=False) for weeks in remission])
    assert found is not None
    assert found.mean == pytest.approx(23.29, abs=0.005)
    assert (found.at_least, found.ended, found.unfinished) == (True, 9, 12)
    assert found.finished_mean == pytest.approx(sum(relapsed) / 9)


def test_lengths_that_have_all_ended_are_a_plain_mean() -> None:
    found = judge.lengths([answered(2), answered(4)])
    assert found is not None and (found.mean, found.at_least) == (3.0, False)
    assert found.held == pytest.approx((4 + 16) / 2 / (2 * 3))  # E[L^2] / (2 E[L])
    assert judge.lengths([]) is None


def moments(running: list[int], queued: int = 1) -> list[dict[str, Any]]:
    return [
        {"t": float(t), "running": n, "queued": queued, "decoded": 100.0 * t}
        for t, n in enumerate(running)
    ]


def test_when_a_server_is_full() -> None:
    assert judge.full_from(moments([0, 10, 60, 89, 90, 100]), 100, 3) == 4
    # it runs 40 and lets no more in although some wait: full after three seconds of that
    assert judge.full_from(moments([0, 20, 40, 40, 40, 40, 40, 40]), 100, 3) == 6
    # the same with an empty queue: the load is too small, nothing can be told
    assert judge.full_from(moments([0, 20, 40, 40, 40, 40, 40, 40], queued=0), 100, 3) is None
    assert judge.full_from(moments([0, 10, 20, 30, 40, 50, 60, 70]), 100, 3) is None


def test_speed_is_counted_over_intervals() -> None:
    samples = [{"t": t, "decoded": d} for t, d in ((0, 0), (3, 50), (5, 100), (10, 300), (12, 9))]
    assert judge.interval_rates(samples, 5) == [20, 40]
    again = [{"t": t, "decoded": d} for t, d in ((0, 500), (5, 100), (10, 200))]
    assert judge.interval_rates(again, 5) == [20]  # the counter began anew in the first one
    # quartiles of 1..9 are 3 and 7: 1.57 * 4 / 3
    assert judge.notch([float(n) for n in range(1, 10)]) == pytest.approx(1.57 * 4 / 3)
    assert judge.is_known([100.0] * 6) and not judge.is_known([100.0] * 5)
    assert not judge.is_known([100.0, 120, 90, 110, 80, 100])
    assert not judge.is_known([95.0 + n for n in range(12)])  # grows by 11 %: still warming up
    assert judge.is_hopeless([100.0] * 4, 140.0) and not judge.is_hopeless([100.0] * 4, 130.0)
    assert not judge.is_hopeless([100.0] * 3, 1000.0) and not judge.is_hopeless([1.0] * 9, None)


def test_a_start_that_differs_is_left_out() -> None:
    # by hand: from the third value on the sum of squares is 0, before that it is not
    assert judge.settled([9.0, 7, 5, 5, 5, 5]) == [5, 5, 5, 5]
    # 12 / 4^2 = 0.75 with all, 32/3 / 3^2 = 1.19 from the second, 8 / 2^2 = 2 from the third
    assert judge.settled([9.0, 9, 9, 5]) == [9, 9, 9, 5]
    assert judge.settled([4.0]) == [4] and judge.settled([]) == []
    assert len(judge.settled([float(n) for n in range(20)])) >= 10  # at most half is left out


def test_agreement() -> None:
    same, late, early = list(range(100)), [*range(90), *[0] * 10], [0, 1, 2, *[9] * 97]
    found = judge.agreement([same, late, early], [same, same, same])
    assert found is not None
    assert found.share == pytest.approx((1 + 0.9 + 0.03) / 3)
    assert found.early == pytest.approx(1 / 3)
    assert judge.agreement([[1, 2]], [[1, 2, 3, 4]]) == judge.Agreement(0.5, 1.0)
    assert judge.agreement([], []) is None


# ---- a recorded tune ----


def test_a_tune_on_an_h200_measured_what_sglang_said() -> None:
    """Speeds beside those of SGLang's own log at full occupancy, memory beside the prediction of
    before the start, and the choice by the log's speeds."""
    results = list(read_results(RECORDED_TUNE / "candidates.jsonl"))
    lines = [orjson.loads(x) for x in (RECORDED_TUNE / "decode.jsonl").read_text().splitlines()]
    logged = {}
    for found in results:
        assert found.reported and found.predicted
        most = found.reported["max_running"]
        rates = [
            line["tokens_s"]
            for line in lines
            if line["name"] == found.name and line["running"] >= 0.9 * most
        ]
        # the log leaves out the time of prompts, and holds the start
        assert median(found.rates) == pytest.approx(median(rates), rel=0.03)
        logged[found.name] = median(rates[len(rates) // 2 :])
        assert judge.speed(found) == pytest.approx(logged[found.name], rel=0.05)
        assert found.predicted["max_running"] == most
        assert found.predicted["slots"] == found.reported["slots"]
        assert found.predicted["tokens"] == pytest.approx(found.reported["tokens"], rel=0.01)
    assert len(results) == 5
    assert chosen(*results, enforce=False) == max(logged, key=lambda name: logged[name])
    same_numerics = [found for found in results if "bfloat16" not in found.name]
    assert chosen(*same_numerics, enforce=False) == "no MTP, no radix cache, 256 requests"
    assert logged["no MTP, no radix cache, 256 requests"] > 2.5 * logged[BASELINE]


# ---- the choice ----


def result(name: str, speed: float, loop: float = 0.0, **changes: Any) -> Result:
    answers = [answered(100 + i, loop=i < loop * 200) for i in range(200)]
    found = Result(name, name, "", {}, {}, False, {"drafts": 0}, status="measured")
    found.reported = {"max_running": 8, "tokens": 10**6}
    found.rates, found.answers, found.greedy = [speed] * 6, answers, [list(range(128))] * 16
    found.samples = moments([8] * 7)
    found.steady_s = 0.0
    return replace(found, **changes)


def chosen(*results: Result, enforce: bool = True) -> str | None:
    choice = judge.choose(results, enforce)
    return choice.result.name if choice.result else None


def test_the_fastest_acceptable_candidate_is_the_choice() -> None:
    base, fast = result("base", 100), result("fast", 250)
    assert chosen(base, result("slow", 50), fast) == "fast"
    assert chosen(base, result("same", 101)) == "base"  # no reason to change anything
    assert chosen(base, replace(fast, status="stopped")) == "base"
    assert chosen(replace(base, status="failed", rates=[]), fast) == "fast"
    assert chosen(replace(base, status="failed", rates=[])) is None


def test_worse_answers_are_refused_with_the_numbers() -> None:
    base, looping = result("base", 100, loop=0.01), result("loops", 300, loop=0.2)
    assert chosen(base, looping, result("good", 200)) == "good"
    assert chosen(base, looping) == "base"
    assert chosen(base, looping, enforce=False) == "loops"  # a rehearsal only says it
    (said,) = judge.choose([base, looping], False).refused["loops"]
    assert "20.0 % of its answers loop, of the baseline's 1.0 %" in said
    few = replace(looping, answers=[answered(9, loop=True), *[answered(9)] * 9])
    assert chosen(base, few) == "loops"  # one of ten may be chance
    # half the greedy answers part at once, with speculation
    other = result("mtp", 300, speculative=True)
    other.greedy = [[0, 99] * 64] * 8 + [list(range(128))] * 8
    early, less = judge.choose([base, other], True).refused["mtp"]
    assert "50 % of its greedy answers part from those of `base`" in early
    # half are equal, half for 1 token of 128
    assert "begin as those of `base` for 50 % of their length" in less
    # where all part late, as batches make them, nothing is wrong
    other.greedy = [[*range(100), *[0] * 28]] * 16
    assert chosen(base, other) == "mtp"
    # a speculative baseline is held against the plain candidate, not the other way round
    parts = [[0, 99] * 64] * 16
    mtp = replace(base, name="base", speculative=True, greedy=parts)
    assert judge.choose([mtp, replace(other, greedy=parts), result("p", 150)], True).refused == {}


def test_what_a_window_cannot_show_is_said() -> None:
    few = {"max_running": 8, "tokens": 400}
    (said,) = judge.concerns(replace(result("a", 100), reported=few))
    # answers of 100 to 299: E[L^2] / (2 E[L]) = 108, with a prompt of 10: 118 a request
    assert "the 400 KV tokens are full with 3 requests, not 8" in said
    young = [answered(50, ended=False) for _ in range(9)]
    (said,) = judge.concerns(replace(result("a", 100), answers=young))
    assert said.startswith("0 answers ended while 8 ran at once")
    eager = result("b", 100, speculative=True, predicted={"drafts": 4})
    eager.samples = [s | {"accept_length": 3.9} for s in eager.samples]
    (said,) = judge.concerns(eager)
    assert "accept length 3.90 of at most 4" in said
    assert judge.hours(914_000, 4_000, 5_000, 7) == pytest.approx(29.02, abs=0.01)


def test_results_are_read_back_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    append(path, {"kind": "result", **asdict(result("a", 1.0))})
    with path.open("ab") as f:
        f.write(b'{"kind": "result", "key"')
    append(path, {"kind": "result", **asdict(result("b", 2.0))})
    assert read_results(path) == [result("a", 1.0), result("b", 2.0)]

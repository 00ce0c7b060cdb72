"""The report says the right numbers in the right places, whatever the texts and the gaps."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.made.page_reader import Page, assert_headings_and_ids, assert_nothing_is_fetched
from tests.made.report_run import HOSTILE, RUN, FakeRun
from workflow_scripts.report.job import lengths
from workflow_scripts.report.page import plots


@pytest.fixture
def run(tmp_path: Path) -> FakeRun:
    return FakeRun(tmp_path)


@pytest.fixture
def page(run: FakeRun) -> Page:
    run.write()
    return run.page()


# ---- numbers ------------------------------------------------------------------------------------


def test_headline(page: Page) -> None:
    assert page["headline"].all("p", "lead")[0].text == (
        "11 input rows: 4 completed, 3 kept, 2 failed, 2 rejected. "
        "They became 6 training rows and 1 validation row."
    )
    assert page.badges() == [
        ("verify: passed, 2 checks", "good"),
        ("old responses: worthless, 66.7 % trivial", "bad"),
    ]
    assert page.facts() == {
        "run hash": RUN,
        "model": "models/some-model",
        "engine": "sglang",
        "made (newest file of the run)": "2023-11-14 22:13 UTC",
    }
    assert "Demo engine" not in page.source
    cards = [card.text for card in page["headline"].all("div", "card")]
    assert cards == [
        "6training rows",
        "5,134supervised tokens",
        "2 → 40median tokens, old → new",
        "66.7 % → 28.6 %with 6 tokens or fewer",
    ]


def test_flow_adds_up(page: Page) -> None:
    assert page.flow() == [
        "12 lines in =1 blank +2 rejected +9 accepted ✓",
        "9 accepted =6 flagged +3 not flagged ✓",
        "9 accepted =6 asked +3 kept ✓",
        "6 asked =4 completed +2 failed ✓",
        "10 responses =4 completed rows +3 kept rows +3 further turns ✓",
        "10 responses =6 training rows +1 validation rows +3 dropped ✓",
    ]


def test_flow_that_does_not_add_up_says_so(run: FakeRun) -> None:
    run.manifest["asked"] = 5
    run.write()
    flow = run.page().flow()
    assert flow[2] == "9 accepted =5 asked +3 kept ✗ does not add up: 8, not 9"
    assert flow[3] == "5 asked =4 completed +2 failed ✗ does not add up: 6, not 5"
    assert [line[-1] for line in flow].count("✓") == 4


def test_lengths(page: Page) -> None:
    assert page.table("length-table") == [
        ["old", "9", "2", "30", "30", "6"],
        ["new", "7", "40", "5,000", "5,000", "2"],
    ]
    figures = {name: page[f"plot-{name}"].all("svg")[0] for name in ("old", "new")}
    assert all(figure.attrs["role"] == "img" for figure in figures.values())
    assert figures["old"].attrs["aria-label"] == (
        "Tokens of the old responses, 9 in all: median 2, 95 % at most 30, longest 30; "
        "66.7 % have 6 tokens or fewer"
    )
    assert (figures["new"].attrs["aria-label"] or "").endswith("28.6 % have 6 tokens or fewer")
    axes = [[t.text for t in figure.all("text")][:10] for figure in figures.values()]
    assert axes[0] == axes[1], "the axes differ"
    assert axes[0] == ["0", "1", "3", "10", "30", "100", "300", "1k", "3k", "tokens"]
    for name in figures:
        assert page[f"plot-{name}"].all("figcaption")


def test_length_numbers_by_hand() -> None:
    found = lengths({"1": 1, "6": 1, "7": 2})
    assert (found["total"], found["median"], found["p95"], found["max"]) == (4, 6, 7, 7)
    assert (found["trivial"], found["trivial_share"]) == (2, 0.5)
    nothing = lengths({})
    assert (nothing["total"], nothing["median"], nothing["max"]) == (0, 0, 0)
    assert nothing["trivial_share"] == 0


def test_bars_stand_where_the_tokens_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def look(name: str, shares: list[float], edges: list[int], *rest: Any) -> None:
        seen[name] = (shares, edges)

    monkeypatch.setattr("workflow_scripts.report.page.plot", look)
    plots(lengths({"0": 1, "6": 1, "7": 1, "14": 1}), lengths({"15": 1, "29": 2, "30": 1}))
    edges = [0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50]
    assert seen["old"] == ([25, 0, 0, 0, 25, 25, 25, 0, 0, 0], edges)
    assert seen["new"] == ([0, 0, 0, 0, 0, 0, 0, 25, 50, 25], edges)


def test_old_responses(page: Page) -> None:
    assert [[row[0], *row[2:]] for row in page.table("old-classes")] == [
        ["empty", "3", "33.3 %"],
        ["normal", "3", "33.3 %"],
        ["repeated", "2", "22.2 %"],
        ["missing", "1", "11.1 %"],
    ]
    assert page.table("repeated-table") == [[HOSTILE, "2", "2"]]
    assert page.table("rules-table") == [["repeated_user", "1"]]
    assert page.table("source-table") == [
        ["a.jsonl", "9", "1", "1", "7", "5", "71.4 %"],
        ["b<i>.jsonl", "3", "0", "1", "2", "1", "50.0 %"],
    ]


def test_new_responses(page: Page) -> None:
    assert [[row[0], *row[2:]] for row in page.table("new-classes")] == [
        ["complete", "4", "40.0 %", "–"],
        ["kept", "4", "40.0 %", "–"],
        ["truncated_in_thinking", "2", "20.0 %", "drop"],
    ]
    assert page.table("shard-table") == [
        ["0", "4", "3", "1", "10,200"],
        ["1", "2", "1", "1", "45"],
        ["all", "6", "4", "2", "10,245"],
    ]
    told = page["new"].text
    assert "the loss mask is 1 on 5,134 of them (82.4 %), and 4,000 of those (77.9 %)" in told
    assert "7 completions encoded again from the text: 2 gave other ids" in told
    assert page.table("tokens-table") == [["a<i>.jsonl", *"77777"]]
    assert not page["new"].all("details")


def test_a_reduced_vocabulary(run: FakeRun) -> None:
    covered = [["8,000", "85.0 %"], ["16,000", "> 99.9 %"], ["32,000", "100.0 %"]]
    note = "20,123 different ids among the 5,094 supervised tokens that a drafter's training sees"
    run.write()
    page = run.page()
    assert page.table("vocabulary-table") == covered
    assert f"{note}: validation rows are not counted." in page["new"].text
    run.stats["rows"] |= {"train": 4, "drafter": 2}
    run.write()
    assert (
        f"{note}: validation rows are not counted, rows for drafters are." in run.page()["new"].text
    )


def test_endings_are_counted(run: FakeRun) -> None:
    run.write()
    assert "ended early" not in run.page().source
    run.stats["ended"] = {"calls_differ": 12, "no_call": 1}
    run.write()
    assert run.page().table("ended-table") == [
        ["calls_differ", "other calls than the old ones, whose results do not fit", "12"],
        ["no_call", "an answer where the old turn called tools", "1"],
    ]


def test_a_sample_that_calls_shows_its_calls(run: FakeRun) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": HOSTILE}}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages = [{"role": "user", "content": "q"}, called]
    run.after[3]["messages"] = json.dumps(messages)
    run.write()
    page = run.page()
    assert "&#34;name&#34;: &#34;f&#34;" in page.source and HOSTILE not in page.source


def test_why_rows_fell_out(page: Page) -> None:
    assert page.table("reject-table") == [
        ["invalid_json", "1", f"a.jsonl:11: {HOSTILE}"],
        ["no_user_turn", "1", "b.jsonl:2: the conversation has no user turn"],
    ]
    server = "http://127.0.0.1:30000"
    failure = f"a.jsonl:8: 500: {HOSTILE}"
    assert page.table("failure-table") == [
        ["over_context", "1", "b<i>.jsonl:1: too long a prompt", "0", "–", "–", "–", "–"],
        ["server_error", "1", failure, "4", server, "1:15", "1,200", "97.3 %"],
    ]
    assert page.table("drop-table") == [
        ["truncated_in_thinking", "2", "a.jsonl:2, turn 3: the answer is truncated in thinking"],
        ["too_long", "1", f"a.jsonl:7, turn 2: 9000 tokens {HOSTILE}"],
    ]
    assert [h.text for h in page["lost"].all("h3")] == [
        "Rejected by the audit: 2",
        "Failed to generate: 2",
        "Dropped by the dataset's filters: 3",
    ]


def test_samples(page: Page) -> None:
    found = page["samples"].all("article")
    heads = [sample.all("header")[0].text for sample in found]
    assert heads == [  # the classes in turn, each by row id
        "1 complete a.jsonl:1 train",
        "2 kept a.jsonl:5 train",
        "3 truncated_in_thinking a.jsonl:2 turn 3 dropped: truncated_in_thinking",
        "4 complete a.jsonl:3 validation",
        "5 kept a.jsonl:6 train",
        "6 truncated_in_thinking a.jsonl:4 dropped: truncated_in_thinking",
    ]
    prompts = [sample.all("div", "prompt")[0].text for sample in found]
    hostile_prompt = f"first? {HOSTILE}"
    assert prompts == [hostile_prompt, "fifth?", "last q", "third?", "sixth?", "fourth?"]
    old = [sample.all("div", "old")[0].text for sample in found]
    assert old[0] == "old · empty · 0 tokens empty"
    assert old[1] == "old · normal · 7 tokens a fine old answer"
    assert old[3] == f"old · repeated · 30 tokens {HOSTILE}"
    assert old[5] == "old · missing · 0 tokens no response"
    new = [sample.all("div", "new")[0].text for sample in found]
    assert new[0] == f"new · 5,000 tokens new {HOSTILE}␀"
    assert new[1] == "kept as it was · 3 tokens a fine old answer"
    reasoning = found[3].all("details")[0]
    assert reasoning.all("pre")[0].text == f"think {HOSTILE}"
    assert "open" not in reasoning.attrs
    assert new[3].endswith("aaa … (1,234 more characters)")
    assert "b" * 10 not in page.source


def test_verify_table(run: FakeRun) -> None:
    run.verify["ok"] = False
    bad = {"ok": False, "count": 1234, "fault": "rows missing from merged/"}
    run.verify["checks"].append({"check": "merge", **bad, "examples": [["r1", 2], ["r<b>2", 0]]})
    run.write()
    page = run.page()
    assert page.badges()[0] == ("verify: FAILED, 1 of 3 checks", "bad")
    assert page.table("verify-table") == [
        ["input: none missing", "✓ passed", "0"],
        ["masks", "✓ passed", "0"],
        ["mergerows missing from merged/, for example r1, 2; r<b>2, 0", "✗ failed", "1,234"],
    ]


def test_settings(page: Page) -> None:
    text = page["settings"].text
    assert "temperature0.7" in text.replace(" ", "")
    assert "truncated_in_answerdrop" in text.replace(" ", "")
    assert json.loads(page["settings"].all("pre")[0].raw)["run_hash"] == RUN
    assert all("open" not in part.attrs for part in page["settings"].all("details"))


# ---- the page as a file -------------------------------------------------------------------------


def test_texts_stay_texts(page: Page) -> None:
    tags = {node.tag for node in page.root.walk()}
    assert not tags & {"script", "img", "iframe", "object", "link", "base"}
    for node in page.root.walk():
        assert not [name for name in node.attrs if name.startswith("on")]
    # the hostile text stands in: repeated, reject, failure and drop example, a prompt, an
    # answer, an old response and a reasoning; the old response of f9 is not shown
    assert page.root.raw.count(HOSTILE) == 8


def test_nothing_is_fetched(page: Page) -> None:
    assert_nothing_is_fetched(page)
    assert "<metadata" not in page.source


def test_headings_and_ids(page: Page) -> None:
    assert_headings_and_ids(page)
    assert page.root.all("html")[0].attrs["lang"] == "en"


def test_same_run_same_bytes(run: FakeRun) -> None:
    run.write()
    run.page()
    first = run.page_path.read_bytes()
    run.page()
    assert run.page_path.read_bytes() == first
    os.utime(run.out / "verify.json", (1_700_003_600, 1_700_003_600))
    assert run.page().facts()["made (newest file of the run)"] == "2023-11-14 23:13 UTC"


# ---- gaps ---------------------------------------------------------------------------------------


def test_nothing_at_all(run: FakeRun) -> None:
    run.empty()
    run.write()
    page = run.page()
    assert page["headline"].all("p", "lead")[0].text == (
        "11 input rows: 0 completed, 0 kept, 0 failed, 11 rejected. "
        "They became 0 training rows and 0 validation rows."
    )
    assert page.badges()[1] == ("old responses: worthless, no usable row", "bad")
    assert all(line.endswith("✓") for line in page.flow())
    for name in ("plot-old", "plot-new", "samples"):
        assert page[name].text.endswith("none"), name
    for name in ("old-classes", "repeated-table", "new-classes", "failure-table", "drop-table"):
        assert not page.has(name)
    assert page.table("shard-table")[-1] == ["all", "0", "0", "0", "0"]


def no_failures(run: FakeRun) -> None:
    run.failed.clear()
    for shard in run.shards:
        shard["completed"], shard["failed"] = shard["rows"], 0


def no_training_rows(run: FakeRun) -> None:
    run.dropped += [row | {"reason": "no_answer"} for row in run.train + run.validation]
    run.train.clear()
    run.validation.clear()
    run.stats |= {"rows": {"train": 0, "validation": 0, "drafter": 0, "dropped": 10}}
    run.stats["completion_token_counts"] = {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (no_failures, "Failed to generate: 0 none"),
        (no_training_rows, "no_answer 7 a.jsonl:5, turn 1:"),
    ],
)
def test_a_gap_is_said(run: FakeRun, change: Callable[[FakeRun], None], expected: str) -> None:
    change(run)
    run.write()
    page = run.page()
    assert expected.replace(" ", "") in page["lost"].text.replace(" ", "")


def test_a_row_missing_from_the_dataset_is_left_to_verify(run: FakeRun) -> None:
    run.train = [row for row in run.train if row["row_id"] != "r1"]
    run.write()
    page = run.page()
    assert len(page["samples"].all("article")) == 5
    assert page.flow()[5].endswith("✓"), "the counts are those of stats.json"


def test_many_shards_and_files_are_folded(run: FakeRun) -> None:
    run.settings["shards"] = 17
    run.shards += [{"rows": 0, "completed": 0, "failed": 0, "tokens": 0}] * 15
    source = run.audit["sources"]["a.jsonl"]
    run.audit["sources"] = {f"{k:02d}.jsonl": source for k in range(17)}
    run.write()
    page = run.page()
    (shards,) = page["new"].all("details")
    assert shards.all("summary")[0].text == "17 shards"
    assert len(page.table("shard-table")) == 18
    assert page["old"].all("summary")[0].text == "17 input files"


def test_demo_engine_is_named_as_such(run: FakeRun) -> None:
    run.settings["engine"] = {"kind": "embedded"}
    run.audit |= {"verdict": "suspicious", "trivial_share": 0.07}
    run.write()
    page = run.page()
    (note,) = page["headline"].all("p", "honest")
    assert "135M-parameter model on the CPU" in note.text
    assert page.badges()[1] == ("old responses: suspicious, 7.0 % trivial", "warn")


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("verify.json", "verify"),
        ("merged/failed.parquet", "merge"),
        (f"generate/{RUN}/shard-0001.json", "generate"),
    ],
)
def test_a_missing_file_is_named(
    run: FakeRun, capsys: pytest.CaptureFixture[str], name: str, stage: str
) -> None:
    run.write()
    (run.out / name).unlink()
    assert run.main() == 1
    said = capsys.readouterr().err
    assert f"{run.out / name} does not exist; run the stage `{stage}` first" in said
    assert not run.page_path.exists()


def test_a_broken_file_is_named(run: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.write()
    (run.out / "dataset/stats.json").write_text('{"rows":')
    assert run.main() == 1
    assert "stats.json: not a JSON object" in capsys.readouterr().err

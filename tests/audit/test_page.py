"""The audit's page shows every number of the report, whatever the texts and the gaps."""

import re
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest

from tests.made.audit_reports import Report, bad_report, good_report, nothing_report, source
from tests.made.page_reader import Page, assert_headings_and_ids, assert_nothing_is_fetched
from tests.made.report_run import HOSTILE
from workflow_scripts.audit.page import EDGES, histogram, page, shapes, worst_sources
from workflow_scripts.pages.text import number, percent, time, visible


@pytest.fixture(scope="module")
def bad() -> Page:
    return Page(page(bad_report()))


@pytest.fixture(scope="module")
def good() -> Page:
    return Page(page(good_report()))


# ---- numbers ------------------------------------------------------------------------------------


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, v in value.items() for leaf in leaves(v, f"{path}.{key}")]
    if isinstance(value, list):
        return [leaf for v in value for leaf in leaves(v, path)]
    return [(path, value)]


def test_every_number_is_seen(bad: Page) -> None:
    texts = (part for node in bad.root.walk() for part in node.inside if isinstance(part, str))
    text = " ".join(texts)
    report = bad_report()
    for name in ("response_token_counts", "prompt_token_counts", "columns"):  # drawn, or added up
        del report[name]
    for path, value in leaves(report):
        if isinstance(value, int) and not path.endswith((".ids", ".line")):
            said = rf"(?<![\d,.]){value:,}(?![\d,]|\.\d)"
            assert re.search(said, text), f"{path}: {value:,}"
        if "share" in path:
            assert percent(value) in text, path
    for source_file in report["sources"].values():
        assert percent(source_file["flagged"] / source_file["accepted"]) in text


def test_verdict(bad: Page, good: Page) -> None:
    (title,) = bad["headline"].all("h1")
    assert title.text == "Worthless: 87.0 % of 1,000,000 responses are trivial"
    assert bad["headline"].all("div", "verdict")[0].attrs["class"] == "verdict bad"
    assert [item.text for item in bad["headline"].all("li")] == bad_report()["reasons"]
    assert "From 5.0 % trivial responses an input is suspicious, from 50.0 %" in bad.root.text
    assert good["headline"].all("h1")[0].text.startswith("OK: 0.8 % of 5,000 responses")


def test_cost(bad: Page, good: Page) -> None:
    text = bad["estimate"].text
    assert "565,452,288 tokens, 104.7 GPU hours, cost 261.78. On 8 GPUs" in text
    assert "that takes 13.1 hours" in text
    assert "Assumed: 512 tokens a response; 1,500 tokens/s a GPU. 2.50 for a GPU hour." in text
    assert "Only the trivial ones" not in text
    part = bad_report()["estimate"] | {"turns": 960, "cost": 7.0}
    found = Page(page(bad_report() | {"estimate_trivial": part, "tokenized": {"same prompt": 77}}))
    assert "Only the trivial ones: 960 responses" in found["estimate"].text
    assert found.table("tokenized-table") == [["same prompt", "77"]]
    assert "cost 0" not in good["estimate"].text and "21 minutes" in good["estimate"].text
    assert "No price is set: audit.estimate.price_per_gpu_hour." in good["estimate"].text


def test_findings_in_their_order(bad: Page, good: Page) -> None:
    found = bad["findings"].all("li")
    assert [item.all("h3")[0].text for item in found] == [
        "trivial responses",
        "length spike",
        "bad part",
        "personal data",
    ]
    tones = [(item.all("span", "badge")[0].attrs["class"] or "").split()[1] for item in found]
    assert tones == ["bad", "bad", "warn", "idle"]
    assert "870,000 rows, 87.0 %" in found[0].text
    assert "data/chat-00.jsonl:17 data/chat-00.jsonl:18" in found[0].text
    assert "218 rows, < 0.1 %" in found[3].text
    assert good["findings"].text.endswith("none found")


def test_the_empty_turn_is_shown_as_ids_and_text(bad: Page) -> None:
    numbers, (shown,) = bad.table("spike-table")
    assert numbers == ["6", "801,204", "80.1 %", "1"]
    assert shown.startswith("248068 271 248069 271 248046 198<think>↵ ↵ </think>↵ ↵ <|im_end|>↵")
    assert "what the model's template makes of an empty answer" in shown


def test_charts_say_what_they_show(bad: Page) -> None:
    figures = {name: bad[f"plot-{name}"].all("svg")[0] for name in ("responses", "prompts")}
    assert all(figure.attrs["role"] == "img" for figure in figures.values())
    label = figures["responses"].attrs["aria-label"] or ""
    assert "longest 8,192; spike at 6 tokens: 80.1 %" in label
    assert "80.1 %" in [text.text for text in figures["responses"].all("text")]
    assert "context limit 32,768" in (figures["prompts"].attrs["aria-label"] or "")
    assert "32,768" in [text.text for text in figures["prompts"].all("text")]
    assert (bad["plot-positions"].all("svg")[0].attrs["aria-label"] or "").endswith("99.5 %")


def test_bins_rise() -> None:
    assert all(a < b for a, b in pairwise(EDGES))
    assert EDGES[:12] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12]


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 99, 100, 4096, 123456, 10**9])
def test_any_length_has_a_bar(size: int) -> None:
    spike = {"tokens": size, "share": 1.0}
    assert f"spike at {size:,} tokens" in str(histogram("x", {str(size): 3}, [spike], 2048))


def test_a_bad_tail_is_seen(bad: Page) -> None:
    assert bad.table("position-table")[0] == ["1", "50,000", "40", "0.1 %"]
    assert bad.table("position-table")[-1] == ["950,001", "50,000", "49,764", "99.5 %"]
    rows = {row[0]: row for row in bad.table("source-table")}
    assert rows["data/chat-07.parquet"][1:4:2] == ["36.8 %", "55,200"]
    bars = [span for span in bad.root.all("span", "tenths") if "21.0 %" in str(span.attrs)]
    heights = [bar.attrs["style"] for bar in bars[-1].all("i")]
    assert heights == ["height:21%"] * 8 + ["height:100%"] * 2
    assert [bar.attrs["class"] for bar in bars[-1].all("i")][-3:] == ["warn", "bad", "bad"]


def test_worst_source_first() -> None:
    sources = {
        "large": source(10000, [0.1] * 10),
        "unusable": source(0, [None] * 10, 700),
        "one_bad": source(500, [1.0] * 10),
    }
    assert [s["name"] for s in worst_sources(sources)] == ["unusable", "one_bad", "large"]


def test_files_with_the_same_columns_stand_together() -> None:
    odd, same, again = shapes(
        {"a": {"x": {"str": 2}}, "b": {"x": {"int": 1}}, "c": {"y": {"str": 1}}}
        | {"d": {"x": {"str": 3}}}
    )
    assert [odd["sources"], same["sources"], again["sources"]] == [["b"], ["c"], ["a", "d"]]
    assert again["columns"] == {"x": {"str": 5}}


def test_what_was_not_asked_for_says_how(bad: Page, good: Page) -> None:
    assert "not asked for: set audit.near_duplicates" in bad["prompts"].text
    assert "not asked for: set audit.held_out" in good["prompts"].text
    assert "none found (similarity from 0.8)" in good["prompts"].text
    assert "none found (looked for: email, secret key)" in good["prompts"].text
    report = bad_report()
    unasked = ("languages", "personal_data", "encoding", "control_tokens", "estimate", "context")
    report |= {name: None for name in (*unasked, "response_tokens", "prompt_tokens")}
    report["empty_turn"] = report["spikes"][0]["ids"] = None
    assert Page(page(report)).has("spike-table")


def test_near_duplicates() -> None:
    near = {"threshold": 0.8, "clusters": 10, "rows": 45, "largest": [{"rows": 9, "text": "Hi"}]}
    found = Page(page(good_report() | {"near_duplicates": near}))
    assert "45 rows in 10 groups" in found["prompts"].text
    assert found.table("near-table") == [["Hi", "9"]]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (0.1137, "0.11"),
        (104.71, "104.7"),
        (2.0, "2"),
        (None, "–"),
    ],
)
def test_numbers(value: float | None, said: str) -> None:
    assert number(value) == said


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        (0.001, "less than a minute"),
        (0.016, "1 minute"),
        (1.5, "90 minutes"),
        (13.09, "13.1 hours"),
        (96, "4.0 days"),
    ],
)
def test_times(hours: float, said: str) -> None:
    assert time(hours) == said


def test_a_share_is_not_rounded_to_nothing_or_all() -> None:
    assert [percent(x) for x in (0, 1e-6, 0.5, 0.99999, 1)] == [
        "0.0 %",
        "< 0.1 %",
        "50.0 %",
        "> 99.9 %",
        "100.0 %",
    ]


# ---- texts --------------------------------------------------------------------------------------


def hostile(value: Any, text: str) -> Any:
    """The report with every text replaced, keys of the user too."""
    users = {"sources", "columns", "reject_reasons", "rules_applied", "held_out", "tokens"}
    if isinstance(value, dict):
        return {
            key: {f"{k}{text}": hostile(v, text) for k, v in v.items()}
            if key in users and isinstance(v, dict)
            else v
            if key in ("verdict", "level")
            else hostile(v, text)
            for key, v in value.items()
        }
    if isinstance(value, list):
        return [hostile(v, text) for v in value]
    return text if isinstance(value, str) else value


def test_texts_stay_texts() -> None:
    found = Page(page(hostile(bad_report(), HOSTILE)))
    tags = {node.tag for node in found.root.walk()}
    assert not tags & {"script", "img", "iframe", "object", "link", "base"}
    for node in found.root.walk():
        assert not [name for name in node.attrs if name.startswith("on")]
    assert found.root.raw.count(HOSTILE) > 30


def test_what_cannot_be_seen_is_made_visible() -> None:
    assert visible("a\x00\x1b\x7f\x85b") == "a␀␛␡⟨U+0085⟩b"
    assert visible("safe\u202egpj.exe\u200b\ufeff\ud800") == (
        "safe⟨U+202E⟩gpj.exe⟨U+200B⟩⟨U+FEFF⟩⟨U+D800⟩"
    )
    assert visible("می‌خواهم 👩‍🔬\tx\n") == "می‌خواهم 👩‍🔬\tx\n"
    source = page(hostile(bad_report(), "\x00\u202e\udc80\x9f\r"))
    assert not re.search("[\x00\u202e\udc80\x9f\r]", source)
    source.encode()


def test_long_texts_are_cut() -> None:
    source = page(hostile(bad_report(), "x" * 5_000_000))
    assert len(source) < 500_000
    assert "more characters)" in source


# ---- the page as a file -------------------------------------------------------------------------


@pytest.mark.parametrize("report", [bad_report(), good_report(), nothing_report()])
def test_nothing_is_fetched(report: Report) -> None:
    found = Page(page(report))
    assert not found.root.all("script")
    assert_nothing_is_fetched(found)


def test_headings_ids_and_tables(bad: Page) -> None:
    assert_headings_and_ids(bad)
    for link in bad.root.all("a"):
        assert bad.has((link.attrs["href"] or "")[1:])
    assert all(table.all("th") for table in bad.root.all("table"))


def test_same_report_same_page() -> None:
    report = bad_report()
    assert page(report) == page(deepcopy(report))
    assert report == bad_report(), "the report was changed"


# ---- gaps ---------------------------------------------------------------------------------------


def test_no_usable_row() -> None:
    found = Page(page(nothing_report()))
    assert found["headline"].all("h1")[0].text == "Worthless: no usable row in 11 lines"
    assert "nothing to regenerate" in found["estimate"].text
    for name in ("plot-responses", "plot-prompts", "plot-positions"):
        assert found[name].text.endswith("no rows")
    assert found.table("reject-table") == [["invalid json", "11", "a.jsonl:1: not JSON"]]
    assert found.table("source-table")[0][1:6] == ["–", "", "0", "0", "11"]


def test_thousands_of_files_are_cut() -> None:
    report = good_report()
    report["sources"] = {f"data/{k:04d}.jsonl": source(10, [0.0] * 10) for k in range(3000)}
    report["sources"]["data/1234.jsonl"] = source(10, [1.0] * 10)
    report["columns"] = {name: {f"key{k}": {"str": 10}} for k, name in enumerate(report["sources"])}
    found = Page(page(report))
    rows = found.table("source-table")
    assert len(rows) == 50 and rows[0][0] == "data/1234.jsonl"
    assert "50 of 3,000 files are shown; audit/report.json has all." in found["where"].text
    assert "20 of 3,000 groups are shown" in found["input"].text
    assert len(found.source) < 300_000

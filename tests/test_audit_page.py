"""The audit's page shows every number of the report, whatever the texts and the gaps."""

import re
from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import yaml
from test_report import HOSTILE, Page, assert_headings_and_ids, assert_nothing_is_fetched

from workflow_scripts.audit_page import (
    EDGES,
    histogram,
    number,
    page,
    percent,
    shapes,
    time,
    visible,
    worst_sources,
)

Report = dict[str, Any]
EMPTY_TURN = {
    "tokens": 6,
    "ids": [248068, 271, 248069, 271, 248046, 198],
    "text": "<think>\n\n</think>\n\n<|im_end|>\n",
}


# ---- reports by hand ----------------------------------------------------------------------------


BAD = """
verdict: worthless
trivial_share: 0.87
thresholds: {suspicious: 0.05, worthless: 0.5}
reasons:
  - "870,000 of 1,000,000 responses (87.0 %) are trivial: 801,204 empty, 41,377 repeated, \
27,419 refusals"
  - 801,204 responses (80.1 %) are exactly the 6 tokens that the template makes of an empty answer
findings:
  - {name: trivial_responses, level: worthless, rows: 870000, share: 0.87,
     text: Most responses say nothing; a model trained on them learns to say nothing.,
     examples: ["data/chat-00.jsonl:17", "data/chat-00.jsonl:18"]}
  - {name: length_spike, level: worthless, rows: 801204, share: 0.801204,
     text: "This many responses have exactly 6 tokens, all of them the same text.",
     examples: ["data/chat-00.jsonl:17"]}
  - {name: bad_part, level: suspicious, rows: 30000, share: 0.03,
     text: The last fifth of data/chat-07.parquet is trivial throughout; the rest of it is not.,
     examples: ["data/chat-07.parquet:120001"]}
  - {name: personal_data, level: note, rows: 218, share: 0.000218,
     text: Some prompts hold what looks like an e-mail address or a phone number., examples: []}
lines: 1000341
blank_lines: 12
bytes: 2318114207
accepted: 1000000
rejected: 329
flagged: 870000
reject_reasons: {invalid_json: 301, no_user_turn: 28}
reject_examples:
  invalid_json: "data/chat-01.jsonl:99120: unexpected end of data: line 1 column 4097"
  no_user_turn: "data/chat-02.jsonl:7: the conversation has no user turn"
rules_applied: {second_system: 4127, repeated_user: 19}
response_classes: {empty_think: 801204, normal: 130000, repeated: 41377, refusal: 27419}
class_examples:
  empty_think:
    - {source: data/chat-00.jsonl, line: 17, response: "",
       prompt: "Write a function that merges two sorted lists.\\nUse Python."}
    - {source: data/chat-00.jsonl, line: 18, response: "", prompt: 请用一句话解释什么是光合作用。}
  repeated:
    - {source: data/chat-02.jsonl, line: 4213, response: Sure.,
       prompt: "What is the capital of Australia?"}
  refusal:
    - {source: data/small.csv, line: 5, prompt: "ما هي عاصمة فرنسا؟",
       response: "I'm sorry, but I can't help with that."}
top_repeated_responses:
  - {text: "", rows: 801204, prompts: 764118, tokens: 6}
  - {text: Sure., rows: 31240, prompts: 31187, tokens: 9}
  - {text: "I'm sorry, but I can't help with that.", rows: 26801, prompts: 26544, tokens: 17}
top_repeated_patterns:
  - {text: The answer is 0., rows: 8114, prompts: 8093, example: The answer is 17.}
response_tokens: {total: 41388211, mean: 41.388211, median: 6, p95: 311, max: 8192}
prompt_tokens: {total: 187204118, mean: 187.204118, median: 122, p95: 702, max: 41233}
context: {limit: 32768, over: 3, examples: ["data/chat-01.jsonl:9911"]}
prompts:
  {distinct: 951223, turns: 1104399, multi_turn_rows: 61702, duplicate_rows: 48777,
   top: [{text: Hello, rows: 1733}, {text: Continue., rows: 911}]}
near_duplicates: null
contamination:
  ngram: 13
  held_out: {gsm8k/test.jsonl: {rows: 1319, hits: 4}, mt_bench.jsonl: {rows: 80, hits: 0}}
  rows: 57
  examples: ["data/chat-02.jsonl:9: Janet's ducks lay 16 eggs per day. She eats three"]
scripts: {Latin: 871004, Han: 104223, Arabic: 18441, Cyrillic: 6332}
languages: {sampled: 5000, counts: {en: 4187, zh: 522, und: 198, ar: 93}}
control_tokens:
  rows: 241
  tokens: {"<|im_end|>": 233, "<|endoftext|>": 14}
  examples: ["data/chat-01.jsonl:408"]
encoding:
  rows: 83
  kinds: {replacement_character: 61, mojibake: 22, control_character: 0}
  examples: ["data/chat-02.jsonl:1114"]
personal_data: {rows: 218, kinds: {email: 177, phone: 39, ip_address: 2, payment_card: 0}}
ids: {missing: 50666, duplicate: 7}
estimate:
  {rows: 1000000, turns: 1104399, mean_output_tokens: 512.0, output_tokens: 565452288,
   assumption: "512 tokens a response; 1,500 tokens/s a GPU", tokens_per_s: 1500.0, gpus: 8,
   gpu_hours: 104.71, hours: 13.09, price_per_gpu_hour: 2.5, cost: 261.78}
"""
GOOD = """
verdict: ok
trivial_share: 0.0082
thresholds: {suspicious: 0.05, worthless: 0.5}
reasons: ["41 of 5,000 responses (0.8 %) are trivial, fewer than 5.0 %"]
findings: []
lines: 5000
blank_lines: 0
bytes: 18114207
accepted: 5000
rejected: 0
flagged: 41
reject_reasons: {}
reject_examples: {}
rules_applied: {}
response_classes: {normal: 4950, refusal: 41, short: 9}
class_examples:
  refusal: [{source: data/good.jsonl, line: 5, prompt: Pick a lock, response: I cannot.}]
top_repeated_responses: []
top_repeated_patterns: []
response_tokens: {total: 1911403, mean: 382.28, median: 309, p95: 1022, max: 2711}
spikes: []
prompt_tokens: {total: 612004, mean: 122.4, median: 101, p95: 390, max: 1204}
context: {limit: 32768, over: 0, examples: []}
columns: {data/good.jsonl: {messages: {list: 5000}, id: {int: 5000}}}
prompts: {distinct: 5000, turns: 5000, multi_turn_rows: 0, duplicate_rows: 0, top: []}
near_duplicates: {threshold: 0.8, clusters: 0, rows: 0, largest: []}
contamination: null
scripts: {Latin: 5000}
languages: {sampled: 5000, counts: {en: 5000}}
control_tokens: {rows: 0, tokens: {}, examples: []}
encoding: {rows: 0, kinds: {mojibake: 0}, examples: []}
personal_data: {rows: 0, kinds: {email: 0, secret_key: 0}}
ids: {missing: 0, duplicate: 0}
estimate:
  {rows: 5000, turns: 5000, mean_output_tokens: 382.28, output_tokens: 1911403,
   assumption: as long as the normal responses, tokens_per_s: 1500.0, gpus: 1, gpu_hours: 0.354,
   hours: 0.354, price_per_gpu_hour: null, cost: null}
"""


def spread(rows: int, middle: int, wide: int) -> dict[str, int]:
    """Counts around a middle length, by a fixed rule that looks like a real one."""
    counts: dict[int, int] = {}
    for i in range(rows):
        step = (i * 7919) % 1009 / 1009 + (i * 104729) % 997 / 997 + (i * 31) % 101 / 101
        length = max(1, round(middle * wide ** (step - 1.5)))
        counts[length] = counts.get(length, 0) + 1
    return {str(length): rows for length, rows in sorted(counts.items())}


def source(rows: int, shares: Sequence[float | None], rejected: int = 0, **more: Any) -> Report:
    flagged = round(sum(share or 0 for share in shares) * rows / 10)
    counts = {"lines": rows + rejected, "blank": 0, "rejected": rejected, "accepted": rows}
    tokens = {"response_tokens": rows * 41, "prompt_tokens": rows * 187}
    return {"format": "jsonl", **counts, "flagged": flagged, **tokens, "parts": shares, **more}


def bad_report() -> Report:
    """What is left when somebody lost the responses: 87 % trivial, 80 % of them empty turns."""
    responses = {length: 45 * rows for length, rows in spread(2900, 260, 10).items()}
    prompts = {length: 300 * rows for length, rows in spread(3333, 120, 20).items()}
    flagged = [40, 17203, *[48000] * 8, *[44777] * 9, 49764]
    chat = {"messages": {"list": 266666}, "id": {"str": 266000, "null": 666}}
    table = {"prompt": {"str": 50000}, "answer": {"str": 49000, "null": 1000}}
    return {
        **yaml.safe_load(BAD),
        "response_token_counts": responses | {"6": 801204, "9": 31240, "17": 26801, "8192": 41},
        "spikes": [{**EMPTY_TURN, "rows": 801204, "share": 0.801204, "distinct": 1}],
        "empty_turn": EMPTY_TURN,
        "prompt_token_counts": prompts | {"41233": 3},
        "positions": [
            {"first": 1 + 50000 * i, "rows": 50000, "flagged": rows}
            for i, rows in enumerate(flagged)
        ],
        "sources": {
            "data/chat-00.jsonl": source(300000, [0.99] * 10),
            "data/chat-01.jsonl": source(260000, [0.97, 0.99, *[0.98] * 8], 301),
            "data/chat-02.jsonl": source(240000, [1.0, *[0.97] * 9], 28),
            "data/chat-07.parquet": source(150000, [0.21] * 8 + [1.0, 1.0], format="parquet"),
            "data/small.csv": source(50000, [0.9, None, *[0.95] * 8], format="csv"),
        },
        "columns": {f"data/chat-0{i}.jsonl": chat for i in range(3)}
        | {"data/chat-07.parquet": {"prompt": {"str": 150000}}, "data/small.csv": table},
    }


def good_report() -> Report:
    """A set that is worth what it cost."""
    return {
        **yaml.safe_load(GOOD),
        "response_token_counts": spread(4950, 310, 5) | {"4": 9, "17": 41},
        "empty_turn": EMPTY_TURN,
        "prompt_token_counts": spread(5000, 100, 6),
        "positions": [{"first": 1 + 250 * i, "rows": 250, "flagged": i % 5} for i in range(20)],
        "sources": {"data/good.jsonl": source(5000, [0.01, 0.0, 0.012, *[0.009] * 7])},
    }


def nothing_report() -> Report:
    """Every line was rejected."""
    report = good_report()
    for name, value in report.items():
        if isinstance(value, int | list):
            report[name] = type(value)()
        elif name in ("estimate", "prompts", "response_tokens", "prompt_tokens"):
            report[name] = value | {k: 0 for k, v in value.items() if isinstance(v, int | float)}
        elif "class" in name or "counts" in name or name in ("columns", "scripts"):
            report[name] = {}
    return report | {
        "verdict": "worthless",
        "lines": 11,
        "rejected": 11,
        "reject_reasons": {"invalid_json": 11},
        "reject_examples": {"invalid_json": "a.jsonl:1: not JSON"},
        "sources": {"a.jsonl": source(0, [None] * 10, 11)},
        "languages": {"sampled": 0, "counts": {}},
    }


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

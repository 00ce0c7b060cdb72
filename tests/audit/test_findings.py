"""The audit's findings in words, of reports and rows by hand."""

from typing import Any

import polars as pl
import pytest

from tests.made.audit_reports import Report, good_report
from workflow_scripts.audit.findings import Finding, findings
from workflow_scripts.audit.verdict import verdict
from workflow_scripts.config.audit import Audit

SCHEMA = {
    "source": pl.String,
    "line": pl.Int64,
    "response_class": pl.String,
    "flagged": pl.Boolean,
    "response_tokens": pl.Int64,
    "id_key": pl.UInt64,
}
TRIVIAL = "Trivial responses: 41 are refusals."


def rows(*told: tuple[str, int, int | None]) -> pl.DataFrame:
    """Rows that are not flagged, by class, tokens and own id."""
    named = [("a.jsonl", at + 1, name, False, n, key) for at, (name, n, key) in enumerate(told)]
    return pl.DataFrame(named, SCHEMA, orient="row")


def said(frame: pl.DataFrame | None = None, **changed: Any) -> list[Finding]:
    """What is found in a good set of 5,000 rows with this changed."""
    report: Report = good_report() | {"tokenized": {}} | changed
    return findings(Audit(short_tokens=16), report, rows() if frame is None else frame)


def spike(tokens: int, distinct: int) -> Report:
    return {"tokens": tokens, "rows": 1000, "distinct": distinct, "examples": ["a.jsonl:1"]}


def seen(rows: int, chars: float, varies: bool = True) -> Report:
    told = {"rows": rows, "text": True, "varies": varies, "mean_chars": chars}
    return {**told, "example": "ab", "where": "a.jsonl:1"}


def test_a_good_set() -> None:
    (only,) = said()
    assert only.as_dict() == {
        "name": "trivial_responses", "level": "note", "rows": 41, "share": 0.0082,
        "text": TRIVIAL, "examples": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "name", "level", "text"),
    [
        (
            {"spikes": [spike(6, 1)]},
            "length_spike",
            "note",
            "1,000 responses are exactly 6 tokens long: the empty assistant turn as this template "
            "writes it.",
        ),
        (
            {"spikes": [spike(9, 1)], "trivial_share": 0.5},
            "length_spike",
            "worthless",
            "1,000 responses are exactly 9 tokens long and all the same.",
        ),
        (
            {"spikes": [spike(9, 499)], "trivial_share": 0.05},
            "length_spike",
            "suspicious",
            "1,000 responses are exactly 9 tokens long, only 499 of them different.",
        ),
        (
            {"spikes": [spike(9, 500)], "trivial_share": 0.5},
            "length_spike",
            "note",
            "1,000 responses are exactly 9 tokens long.",
        ),
        (
            {"rejected": 264, "reject_reasons": {"bad_content": 264}},
            "rejected_lines",
            "suspicious",
            "264 of 5,264 lines cannot be used (264 bad_content); see audit/rejected.jsonl.",
        ),
        (
            {"context": {"limit": 4096, "over": 1, "examples": []}},
            "over_context",
            "suspicious",
            "1 prompt fills the context of 4,096 tokens; no answer fits.",
        ),
        (
            {"tokenized": {"other prompt": 1200}},
            "other_template",
            "suspicious",
            "1,200 tokenized rows hold another prompt than this template would write.",
        ),
        (
            {
                "template": {"refused": {"no system turn": 5, "roles": 1}, "left_out": {}},
                "reject_reasons": {"template_refused": 6},
            },
            "template_refused",
            "suspicious",
            "6 rows are refused by the chat template (5 x no system turn; 1 x roles). Change the "
            "rows, or set model.chat_template to one that takes them.",
        ),
        (
            {"template": {"refused": {}, "left_out": {"tools": {"rows": 9, "examples": []}}}},
            "left_out_by_template",
            "suspicious",
            "9 rows have tools, which the chat template never writes: the model does not see "
            "them. Set model.chat_template to one that does.",
        ),
        (
            {"unused_columns": {"hints": seen(2500, 40.0), "topic": seen(5000, 9.0)}},
            "unused_columns",
            "suspicious",
            "No rule uses `hints` (50 % of the rows, e.g. 'ab'), `topic` (100 % of the rows, e.g. "
            "'ab'). If they belong to the question, name them in audit.columns.prompt.",
        ),
        (
            {"unused_columns": {"topic": seen(5000, 9.0), "split": seen(5000, 5.0, varies=False)}},
            "unused_columns",
            "note",
            "No rule uses `topic` (100 % of the rows, e.g. 'ab'). If they belong to the question, "
            "name them in audit.columns.prompt.",
        ),
        (
            {"named_columns": {"meta.idd": 0, "prompt": 5000}},
            "missing_columns",
            "suspicious",
            "audit.columns names `meta.idd`, which no row has.",
        ),
    ],
)
def test_words(changed: Report, name: str, level: str, text: str) -> None:
    (found,) = (finding for finding in said(**changed) if finding.text != TRIVIAL)
    assert (found.name, found.level, found.text) == (name, level, text)


def test_rows_are_named() -> None:
    """An empty turn is 6 tokens and `short_tokens` 16: an answer of 22 tokens is a short one."""
    frame = rows(
        ("normal", 22, 7), ("normal", 23, None), ("reasoning_only", 99, 7), ("normal", 99, None)
    )
    found = {f.name: (f.rows, f.examples) for f in said(frame, ids={"duplicate": 1})}
    assert found == {
        "trivial_responses": (41, []),
        "reasoning_only": (1, ["a.jsonl:3"]),
        "short_responses": (1, ["a.jsonl:1"]),
        "duplicate_ids": (1, ["a.jsonl:1", "a.jsonl:3"]),
    }


def test_the_worst_is_first_and_of_those_the_most_frequent() -> None:
    found = said(
        trivial_share=0.6,
        prompts={"duplicate_rows": 9, "top": []},
        context={"limit": 9, "over": 2, "examples": []},
        tokenized={"other prompt": 3},
    )
    assert [(f.level, f.rows) for f in found] == [
        ("worthless", 41), ("suspicious", 3), ("suspicious", 2), ("note", 9),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "share", "wanted"),
    [
        ("missing_columns", 0.001, "suspicious"),
        ("left_out_by_template", 0.05, "suspicious"),
        ("left_out_by_template", 0.049, "ok"),
        ("template_refused", 0.05, "suspicious"),
        ("unused_columns", 1.0, "ok"),
    ],
)
def test_what_makes_a_set_suspicious_beside_its_responses(
    name: str, share: float, wanted: str
) -> None:
    """As many rows as trivial responses must be, 5 %."""
    found = {"name": name, "share": share, "text": "This."}
    told, reasons = verdict(good_report() | {"findings": [found]})
    assert told == wanted and ("This." in reasons) == (wanted == "suspicious")

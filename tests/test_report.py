"""The report says the right numbers in the right places, whatever the texts and the gaps."""

import json
import os
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workflow_scripts.config import load
from workflow_scripts.dataset import OF_SOURCE
from workflow_scripts.report import lengths, main, plots
from workflow_scripts.tables import AUDIT, COMPLETIONS, DROPPED, FAILED, TRAIN
from workflow_scripts.visible import CAP

RUN = "feedfacefeedface"
HOSTILE = '</script><img src="http://evil.example/x" onerror="alert(1)"><script>alert(2)</script>'
VOID = {"meta", "br", "img", "link", "input", "hr", "base", "wbr"}
Row = dict[str, Any]


# ---- reading the page ---------------------------------------------------------------------------


class Node:
    def __init__(self, tag: str, attrs: dict[str, str | None]):
        self.tag, self.attrs = tag, attrs
        self.inside: list[Node | str] = []

    def walk(self) -> "Iterator[Node]":
        yield self
        for part in self.inside:
            if isinstance(part, Node):
                yield from part.walk()

    def all(self, tag: str, cls: str | None = None) -> "list[Node]":
        found = [node for node in self.walk() if node.tag == tag]
        return [n for n in found if cls is None or cls in (n.attrs.get("class") or "").split()]

    @property
    def raw(self) -> str:
        return "".join(part if isinstance(part, str) else part.raw for part in self.inside)

    @property
    def text(self) -> str:
        return " ".join(self.raw.split())


class Page(HTMLParser):
    """A page as a tree; every element must be closed in its place."""

    def __init__(self, source: str):
        super().__init__()
        self.source = source
        self.root = Node("", {})
        self.open = [self.root]
        self.feed(source)
        self.close()
        assert self.open == [self.root], f"not closed: {self.open[-1].tag}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        self.open[-1].inside.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)

    def __getitem__(self, name: str) -> Node:
        """The element with an id."""
        (found,) = (node for node in self.root.walk() if node.attrs.get("id") == name)
        return found

    def has(self, name: str) -> bool:
        return any(node.attrs.get("id") == name for node in self.root.walk())

    def table(self, name: str) -> list[list[str]]:
        """The cells of a table's body and foot."""
        rows = [
            row for part in ("tbody", "tfoot") for p in self[name].all(part) for row in p.inside
        ]
        return [
            [cell.text for cell in row.inside if isinstance(cell, Node)]
            for row in rows
            if isinstance(row, Node)
        ]

    def badges(self) -> list[tuple[str, str]]:
        found = self["headline"].all("span", "badge")
        return [(badge.text, (badge.attrs["class"] or "").split()[-1]) for badge in found]

    def flow(self) -> list[str]:
        return [item.all("div", "sum")[0].text for item in self["flow"].all("li")]

    def facts(self) -> dict[str, str]:
        pairs = self["headline"].all("dl")[0].all("div")
        return {pair.all("dt")[0].text: pair.all("dd")[0].text for pair in pairs}


# ---- a run by hand ------------------------------------------------------------------------------


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def bot(text: str | None, reasoning: str | None = None) -> Row:
    more = {} if reasoning is None else {"reasoning_content": reasoning}
    return {"role": "assistant", "content": text, **more}


def placed(row_id: str, turn: int, tokens: int, **more: Any) -> Row:
    return {
        "row_id": row_id,
        "turn": turn,
        "source": "a.jsonl",
        "line": int(row_id[1:]),
        "completion_length": tokens,
        **more,
    }


class FakeRun:
    """12 lines: 1 blank, 2 rejected, 9 accepted; 6 of them flagged and asked, 3 kept; 4 of those
    asked completed (one with 3 turns), 2 failed; of the 10 responses 6 train, 1 validates."""

    def __init__(self, folder: Path):
        self.out = folder / "run"
        self.page_path = folder / "report.html"
        self.settings: Row = {
            "output_dir": str(self.out),
            "input": "*.jsonl",
            "regenerate": "trivial",
            "shards": 2,
            "model": {"path": "models/some-model"},
            "sampling": {"max_new_tokens": 5000, "temperature": 0.7},
        }
        self.audit: Row = {
            "verdict": "worthless",
            "trivial_share": 0.666667,
            "thresholds": {"suspicious": 0.05, "worthless": 0.5},
            "lines": 12,
            "blank_lines": 1,
            "bytes": 4321,
            "accepted": 9,
            "flagged": 6,
            "rejected": 2,
            "reject_reasons": {"invalid_json": 1, "no_user_turn": 1},
            "reject_examples": {
                "invalid_json": f"a.jsonl:11: {HOSTILE}",
                "no_user_turn": "b.jsonl:2: the conversation has no user turn",
            },
            "rules_applied": {"repeated_user": 1},
            "response_classes": {"empty": 3, "normal": 3, "repeated": 2, "missing": 1},
            "top_repeated_responses": [{"text": HOSTILE, "rows": 2, "prompts": 2}],
            "response_tokens": {"total": 77, "median": 2, "p95": 30, "max": 30},
            "response_token_counts": {"0": 3, "2": 2, "6": 1, "7": 1, "30": 2},
            "ids": {"missing": 9, "duplicate": 0},
            "prompts": {"distinct": 8, "turns": 12, "multi_turn_rows": 2},
            "sources": {
                "a.jsonl": {"lines": 9, "blank": 1, "rejected": 1, "accepted": 7, "flagged": 5},
                "b<i>.jsonl": {"lines": 3, "blank": 0, "rejected": 1, "accepted": 2, "flagged": 1},
            },
        }
        self.manifest: Row = {"shards": 2, "asked": 6, "kept": 3, "rows": [4, 2]}
        self.shards: list[Row] = [
            {"rows": 4, "completed": 3, "failed": 1, "tokens": 10200},
            {"rows": 2, "completed": 1, "failed": 1, "tokens": 45},
        ]
        self.stats: Row = {
            "rows": {"train": 6, "validation": 1, "drafter": 0, "dropped": 3},
            "tokens": 6234,
            "supervised_tokens": 5134,
            "reasoning_tokens": 4000,
            "sources": {"a<i>.jsonl": dict.fromkeys(OF_SOURCE, 7)},
            "prompt_clusters": 6,
            "drift": {"turns_checked": 7, "turns_differing": 2},
            "drop_reasons": {"truncated_in_thinking": 2, "too_long": 1},
            "classes": {"complete": 4, "kept": 4, "truncated_in_thinking": 2},
            "completion_token_counts": {"3": 2, "8": 1, "40": 3, "5000": 1},
            "run": {},
        }
        good: Row = {"ok": True, "count": 0, "fault": None, "examples": []}
        self.verify: Row = {
            "ok": True,
            "run_hash": RUN,
            "checks": [{"check": "input: none missing", **good}, {"check": "masks", **good}],
        }
        self.before = [
            self.old("r1", [user(f"first? {HOSTILE}"), bot("")], "empty", 0),
            self.old(
                "r2", [user("q"), bot(""), user("q"), bot(""), user("q"), bot("")], "empty", 0
            ),
            self.old("r3", [user("third?"), bot(HOSTILE)], "repeated", 30),
            self.old("r4", [user("fourth?"), bot(None)], "missing", 0),
            self.old("k5", [user("fifth?"), bot("a fine old answer")], "normal", 7),
            self.old("k6", [user("sixth?"), bot("another")], "normal", 2),
            self.old("k7", [user("seventh?"), bot("x"), user("more?"), bot("y")], "normal", 30),
            self.old("f8", [user("eighth?"), bot("")], "empty", 2),
            self.old("f9", [user("ninth?"), bot(HOSTILE)], "repeated", 6),
        ]
        turns = [user("q"), bot("one"), user("q"), bot("two"), user("last q"), bot("", "cut sho")]
        long = "a" * CAP + "b" * 1234
        self.after = [
            self.new("k5", [user("fifth?"), bot("a fine old answer")], "kept"),
            self.new("k6", [user("sixth?"), bot("another")], "kept"),
            self.new("k7", [user("seventh?"), bot("x"), user("more?"), bot("y")], "kept"),
            self.new("r1", [user(f"first? {HOSTILE}"), bot(f"new {HOSTILE}\x00")], "complete"),
            self.new("r2", turns, "truncated_in_thinking"),
            self.new("r3", [user("third?"), bot(long, f"think {HOSTILE}")], "complete"),
            self.new("r4", [user("fourth?"), bot("", "so long")], "truncated_in_thinking"),
        ]
        self.failed: list[Row] = [
            {
                "row_id": "f8",
                "source": "a.jsonl",
                "line": 8,
                "messages": "[]",
                "reason": "server_error",
                "message": f"500: {HOSTILE}",
                "attempts": 4,
                "server": "http://127.0.0.1:30000",
                "server_age_s": 75.5,
                "running_requests": 1200,
                "cache_use": 0.973,
            },
            {
                "row_id": "f9",
                "source": "b<i>.jsonl",
                "line": 1,
                "messages": "[]",
                "reason": "over_context",
                "message": "too long a prompt",
                "attempts": 0,
            },
        ]
        self.train = [
            placed("k5", 0, 3),
            placed("k6", 0, 3),
            placed("k7", 0, 8),
            placed("r1", 0, 5000),
            placed("r2", 0, 40),
            placed("r2", 1, 40),
        ]
        self.validation = [placed("r3", 0, 40)]
        cut = {"reason": "truncated_in_thinking", "message": "the answer is truncated in thinking"}
        self.dropped = [
            placed("k7", 1, 9000, reason="too_long", message=f"9000 tokens {HOSTILE}"),
            placed("r2", 2, 5000, **cut),
            placed("r4", 0, 5000, **cut),
        ]

    @staticmethod
    def old(row_id: str, messages: list[Row], kind: str, tokens: int) -> Row:
        fields = {"source": "a.jsonl", "line": int(row_id[1:]), "response_tokens": tokens}
        texts = {"messages": json.dumps(messages), "response_class": kind}
        return {"row_id": row_id, **fields, **texts}

    @staticmethod
    def new(row_id: str, messages: list[Row], kind: str) -> Row:
        return {"row_id": row_id, "messages": json.dumps(messages), "class": kind}

    def empty(self) -> None:
        """Nothing was accepted, so nothing came after."""
        for name in ("accepted", "flagged"):
            self.audit[name] = 0
        self.audit |= {"rejected": 11, "reject_reasons": {"invalid_json": 11}, "trivial_share": 1.0}
        for name in ("response_classes", "response_token_counts", "rules_applied", "sources"):
            self.audit[name] = {}
        self.audit["top_repeated_responses"] = []
        self.audit["prompts"] = {"distinct": 0, "turns": 0, "multi_turn_rows": 0}
        self.manifest = {"shards": 2, "asked": 0, "kept": 0, "rows": [0, 0]}
        self.shards = [{"rows": 0, "completed": 0, "failed": 0, "tokens": 0}] * 2
        self.stats |= {"rows": dict.fromkeys(self.stats["rows"], 0), "tokens": 0}
        self.stats |= {"supervised_tokens": 0, "classes": {}, "completion_token_counts": {}}
        self.stats |= {"sources": {}}
        for rows in (self.before, self.after, self.failed, self.train, self.validation):
            rows.clear()
        self.dropped.clear()

    def write(self) -> None:
        def table(name: str, rows: list[Row], schema: pa.Schema) -> None:
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema), self.out / name)

        def dump(name: str, value: Row) -> None:
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
            (self.out / name).write_text(json.dumps(value))

        identity = {"run_hash": RUN, "engine": "sglang", "model": "0123456789abcdef"}
        config = load(self.settings).model_dump(mode="json")
        dump("run.json", {"config": config, "identity": identity})
        dump("audit/report.json", self.audit)
        dump("shards/manifest.json", self.manifest)
        for k, counts in enumerate(self.shards):
            dump(f"generate/{RUN}/shard-{k:04d}.json", counts)
        dump("dataset/stats.json", self.stats)
        dump("verify.json", self.verify)
        table("audit/rows.parquet", self.before, AUDIT)
        table("merged/completions.parquet", self.after, COMPLETIONS)
        table("merged/failed.parquet", self.failed, FAILED)
        table("dataset/train-00000.parquet", self.train, TRAIN)
        table("dataset/validation-00000.parquet", self.validation, TRAIN)
        table("dataset/rejected.parquet", self.dropped, DROPPED)
        for path in self.out.rglob("*.*"):
            os.utime(path, (1_700_000_000, 1_700_000_000))  # 2023-11-14 22:13:20 UTC

    def main(self) -> int:
        return main(["--run", str(self.out / "run.json"), "--output", str(self.page_path)])

    def page(self) -> Page:
        assert self.main() == 0
        return Page(self.page_path.read_text(encoding="utf-8"))


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

    monkeypatch.setattr("workflow_scripts.report.plot", look)
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


def assert_nothing_is_fetched(page: Page) -> None:
    for node in page.root.walk():
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            if node.tag == "a" and name == "href":  # followed by hand, and stays in the run
                assert ":" not in (node.attrs.get(name) or "")
                continue
            assert (node.attrs.get(name) or "#").startswith("#"), node.attrs
        for value in (node.attrs.get("style"), node.raw if node.tag == "style" else None):
            assert "@import" not in (value or "")
            assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", value or ""))
    policies = [node.attrs.get("content") for node in page.root.all("meta")]
    assert "default-src 'none'; style-src 'unsafe-inline'" in policies


def assert_headings_and_ids(page: Page) -> None:
    levels = [int(n.tag[1]) for n in page.root.walk() if re.fullmatch(r"h\d", n.tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    ids = [node.attrs["id"] for node in page.root.walk() if "id" in node.attrs]
    assert len(ids) == len(set(ids))
    for section in page.root.all("section"):
        assert page[section.attrs["aria-labelledby"] or ""].tag == "h2"


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

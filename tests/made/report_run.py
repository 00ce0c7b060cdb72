"""A run of nine rows made by hand, whose report can be checked by hand."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.made.page_reader import Page
from workflow_scripts.config.load import load
from workflow_scripts.dataset.job import OF_SOURCE
from workflow_scripts.pages.text import CAP
from workflow_scripts.report.__main__ import main
from workflow_scripts.tables.columns import AUDIT, COMPLETIONS, DROPPED, FAILED, TRAIN

RUN = "feedfacefeedface"
HOSTILE = '</script><img src="http://evil.example/x" onerror="alert(1)"><script>alert(2)</script>'
Row = dict[str, Any]

# ---- its parts ----------------------------------------------------------------------------------


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


def old(row_id: str, messages: list[Row], kind: str, tokens: int) -> Row:
    fields = {"source": "a.jsonl", "line": int(row_id[1:]), "response_tokens": tokens}
    texts = {"messages": json.dumps(messages), "response_class": kind}
    return {"row_id": row_id, **fields, **texts}


def new(row_id: str, messages: list[Row], kind: str) -> Row:
    return {"row_id": row_id, "messages": json.dumps(messages), "class": kind}


def audited() -> Row:
    """The audit of twelve lines."""
    return {
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


def dataset_stats() -> Row:
    """The dataset of the ten responses."""
    return {
        "rows": {"train": 6, "validation": 1, "drafter": 0, "dropped": 3},
        "tokens": 6234,
        "supervised_tokens": 5134,
        "reasoning_tokens": 4000,
        "drafter_vocabulary": {
            "supervised_tokens": 5094,
            "distinct_ids": 20_123,
            "coverage": {"8000": 0.85, "16000": 0.9999, "32000": 1.0},
        },
        "sources": {"a<i>.jsonl": dict.fromkeys(OF_SOURCE, 7)},
        "prompt_clusters": 6,
        "drift": {"turns_checked": 7, "turns_differing": 2},
        "drop_reasons": {"truncated_in_thinking": 2, "too_long": 1},
        "classes": {"complete": 4, "kept": 4, "truncated_in_thinking": 2},
        "ended": {},
        "completion_token_counts": {"3": 2, "8": 1, "40": 3, "5000": 1},
        "run": {},
    }


def verified() -> Row:
    """Two checks that passed."""
    good: Row = {"ok": True, "count": 0, "fault": None, "examples": []}
    return {
        "ok": True,
        "run_hash": RUN,
        "checks": [{"check": "input: none missing", **good}, {"check": "masks", **good}],
    }


def old_rows() -> list[Row]:
    """The accepted rows: r1 to r4 are asked and answered, f8 and f9 only asked, k5 to k7 kept."""
    return [
        old("r1", [user(f"first? {HOSTILE}"), bot("")], "empty", 0),
        old("r2", [user("q"), bot(""), user("q"), bot(""), user("q"), bot("")], "empty", 0),
        old("r3", [user("third?"), bot(HOSTILE)], "repeated", 30),
        old("r4", [user("fourth?"), bot(None)], "missing", 0),
        old("k5", [user("fifth?"), bot("a fine old answer")], "normal", 7),
        old("k6", [user("sixth?"), bot("another")], "normal", 2),
        old("k7", [user("seventh?"), bot("x"), user("more?"), bot("y")], "normal", 30),
        old("f8", [user("eighth?"), bot("")], "empty", 2),
        old("f9", [user("ninth?"), bot(HOSTILE)], "repeated", 6),
    ]


def new_rows() -> list[Row]:
    """The same rows with their new responses, but for those that failed."""
    turns = [user("q"), bot("one"), user("q"), bot("two"), user("last q"), bot("", "cut sho")]
    long = "a" * CAP + "b" * 1234
    return [
        new("k5", [user("fifth?"), bot("a fine old answer")], "kept"),
        new("k6", [user("sixth?"), bot("another")], "kept"),
        new("k7", [user("seventh?"), bot("x"), user("more?"), bot("y")], "kept"),
        new("r1", [user(f"first? {HOSTILE}"), bot(f"new {HOSTILE}\x00")], "complete"),
        new("r2", turns, "truncated_in_thinking"),
        new("r3", [user("third?"), bot(long, f"think {HOSTILE}")], "complete"),
        new("r4", [user("fourth?"), bot("", "so long")], "truncated_in_thinking"),
    ]


def failed_rows() -> list[Row]:
    """The rows that were asked and not answered."""
    return [
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


def train_rows() -> list[Row]:
    """Where the responses to train on come from."""
    return [
        placed("k5", 0, 3),
        placed("k6", 0, 3),
        placed("k7", 0, 8),
        placed("r1", 0, 5000),
        placed("r2", 0, 40),
        placed("r2", 1, 40),
    ]


def dropped_rows() -> list[Row]:
    """The responses that are not to be trained on, with the reason."""
    cut = {"reason": "truncated_in_thinking", "message": "the answer is truncated in thinking"}
    return [
        placed("k7", 1, 9000, reason="too_long", message=f"9000 tokens {HOSTILE}"),
        placed("r2", 2, 5000, **cut),
        placed("r4", 0, 5000, **cut),
    ]


# ---- the run ------------------------------------------------------------------------------------


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
        self.audit = audited()
        self.manifest: Row = {"shards": 2, "asked": 6, "kept": 3, "rows": [4, 2]}
        self.shards: list[Row] = [
            {"rows": 4, "completed": 3, "failed": 1, "tokens": 10200},
            {"rows": 2, "completed": 1, "failed": 1, "tokens": 45},
        ]
        self.stats = dataset_stats()
        self.verify = verified()
        self.before, self.after, self.failed = old_rows(), new_rows(), failed_rows()
        self.train, self.dropped = train_rows(), dropped_rows()
        self.validation = [placed("r3", 0, 40)]

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
        self.stats["drafter_vocabulary"] |= {"supervised_tokens": 0, "coverage": {}}
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

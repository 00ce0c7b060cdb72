"""What the audit says: counts into audit/report.json, findings in words, a verdict.

The report's schema is described in docs/audit.md.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from workflow_scripts.audit.examples import beginning, named_rows
from workflow_scripts.audit.findings import FEW_ROWS, findings
from workflow_scripts.audit.tally import Tally
from workflow_scripts.audit.turns import AssistantTurns, as_turn
from workflow_scripts.audit.verdict import verdict
from workflow_scripts.config.audit import Estimate
from workflow_scripts.config.sections import Config
from workflow_scripts.input.parts import format_of
from workflow_scripts.input.turn import Turn
from workflow_scripts.model.folder import context_limit
from workflow_scripts.model.prompts import Prompts

TOP = 10  # repeated responses shown
PARTS = 20  # equal parts of the input, in its order
TENTHS = 10  # of one source
REFUSALS = 20  # different words of a chat template that refuses rows
GUESSED_TOKENS = 1024.0  # of an answer where the old ones tell nothing


@dataclass(slots=True)
class Repeated:
    """Short responses, and ones with their numbers as 0, that many prompts got."""

    texts: pl.DataFrame
    patterns: pl.DataFrame


@dataclass(slots=True)
class Evidence:
    """All that was read. `rows` is audit/rows.parquet, `counted` its columns without texts."""

    found: Tally
    per_source: dict[str, Tally]
    counted: pl.DataFrame
    repeated: Repeated
    examples: dict[str, list[dict[str, Any]]]
    rows: Path
    checks: dict[str, Any]  # languages, near_duplicates, contamination


def build(
    config: Config, prompts: Prompts, turns: AssistantTurns, evidence: Evidence
) -> dict[str, Any]:
    """The report, all of its keys."""
    found, frame = evidence.found, evidence.counted
    accepted, flagged = frame.height, int(frame["flagged"].sum())
    answered = frame.filter(pl.col("response_class") != "missing")
    share = flagged / accepted if accepted else 1.0
    result: dict[str, Any] = {
        "verdict": "ok",
        "trivial_share": round(share, 6),
        "thresholds": _thresholds(config),
        "reasons": [],
        "findings": [],
        "lines": found.lines.lines,
        "blank_lines": found.lines.blank,
        "bytes": found.lines.bytes,
        "accepted": accepted,
        "flagged": flagged,
        "rejected": sum(found.rejects.values()),
        "reject_reasons": dict(found.rejects.most_common()),
        "reject_examples": found.reject_examples,
        "rules_applied": dict(sorted(found.rules.items())),
        "tokenized": dict(sorted(found.tokenized.items())),
        "response_classes": _counts(frame, "response_class"),
        "class_examples": evidence.examples,
        "top_repeated_responses": _repeated(evidence.repeated.texts, frame, prompts),
        "top_repeated_patterns": _repeated(evidence.repeated.patterns, frame, prompts),
        "response_tokens": _lengths(answered["response_tokens"]),
        "response_token_counts": _histogram(answered["response_tokens"]),
        "empty_turn": _empty_turn(prompts, turns),
        "spikes": _spikes(answered, evidence.rows, prompts, turns, config.audit.spike_share),
        "prompt_tokens": _lengths(frame["prompt_tokens"]),
        "prompt_token_counts": _histogram(frame["prompt_tokens"]),
        "context": _context(config, frame),
        "positions": _positions(frame, PARTS),
        "sources": _sources(config, evidence),
        "columns": {
            source: dict(sorted(part.columns().items()))
            for source, part in evidence.per_source.items()
        },
        "unused_columns": found.keys.as_dict(),
        "ignored_keys": dict(found.keys.ignored.most_common()),
        "named_columns": dict(sorted(found.keys.named.items())),
        "template": _template(found),
        "prompts": _prompts(evidence),
        "scripts": _counts(frame, "script"),
        **evidence.checks,
        "control_tokens": _scanned(found.control, "tokens", found.examples.get("control")),
        "encoding": _scanned(found.damage, "kinds", found.examples.get("damage")),
        "personal_data": _scanned(found.personal, "kinds", found.examples.get("personal")),
        "ids": _own_ids(frame["id_key"]),
        "estimate": estimate(config.audit.estimate, frame, frame),
        "estimate_trivial": estimate(config.audit.estimate, frame, frame.filter(pl.col("flagged"))),
    }
    result["findings"] = [f.as_dict() for f in findings(config.audit, result, frame)]
    result["verdict"], result["reasons"] = verdict(result)
    return result


# ---- counts ----


def _thresholds(config: Config) -> dict[str, float]:
    limits = config.audit
    return {"suspicious": limits.suspicious_share, "worthless": limits.worthless_share}


def _template(found: Tally) -> dict[str, Any]:
    """What the chat template refuses, and what it never writes."""
    left_out = {
        kind: {"rows": rows, "examples": found.examples.get(f"left out: {kind}", [])}
        for kind, rows in found.left_out.most_common()
    }
    return {"refused": dict(found.refused.most_common(REFUSALS)), "left_out": left_out}


def _counts(frame: pl.DataFrame, column: str) -> dict[str, int]:
    counts = (
        frame[column]
        .cast(pl.String)
        .value_counts()
        .sort(["count", column], descending=[True, False])
    )
    return dict(counts.iter_rows())


def _lengths(values: pl.Series) -> dict[str, float]:
    return {
        "total": int(values.sum() or 0),
        "mean": round(float(values.mean() or 0), 1),  # type: ignore[arg-type]
        "median": values.median() or 0,  # type: ignore[dict-item]
        "p95": values.quantile(0.95) or 0,
        "max": values.max() or 0,  # type: ignore[dict-item]
    }


def _histogram(values: pl.Series) -> dict[str, int]:
    counts = values.rename("n").value_counts().sort("n")
    return {str(length): rows for length, rows in counts.iter_rows()}


def _repeated(found: pl.DataFrame, frame: pl.DataFrame, prompts: Prompts) -> list[dict[str, Any]]:
    top = found.head(TOP)
    lengths = map(len, prompts.encode(top["text"].to_list()))
    return [
        {
            "text": beginning(row["text"]),
            "rows": row["rows"],
            "prompts": row["prompts"],
            "tokens": tokens,
            "examples": named_rows(frame[row["first"]]),
        }
        for row, tokens in zip(top.iter_rows(named=True), lengths, strict=True)
    ]


def _empty_turn(prompts: Prompts, turns: AssistantTurns) -> dict[str, Any]:
    """What the template makes of an empty response."""
    text = turns.text(Turn("assistant", ""))
    (ids,) = prompts.encode([text])
    return {"tokens": len(ids), "ids": ids, "text": text}


def _spikes(
    frame: pl.DataFrame, rows_file: Path, prompts: Prompts, turns: AssistantTurns, share: float
) -> list[dict[str, Any]]:
    """Lengths that very many responses have, each with the one that is most frequent there."""
    counts = frame["response_tokens"].value_counts()
    counts = counts.sort(["count", "response_tokens"], descending=[True, False])
    spikes = []
    for tokens, rows in counts.filter(pl.col("count") >= share * frame.height).head(5).iter_rows():
        if rows < 2:
            continue
        there = frame.filter(pl.col("response_tokens") == tokens)
        keys = there["response_key"].value_counts().sort(["count", "response_key"], descending=True)
        first = there.filter(pl.col("response_key") == keys["response_key"][0]).head(1)
        text = turns.text(as_turn(_messages(rows_file, first)[-1]))
        spikes.append(
            {
                "tokens": tokens,
                "rows": rows,
                "share": round(rows / frame.height, 6),
                "distinct": keys.height,
                "ids": prompts.encode([text])[0][:64],
                "text": beginning(prompts.spellings.unmasked(text)),
                "examples": named_rows(there),
            }
        )
    return spikes


def _messages(rows: Path, one: pl.DataFrame) -> list[dict[str, Any]]:
    """The conversation of a row of the counted frame."""
    source, line = str(one["source"][0]), one["line"][0]
    found = pl.scan_parquet(rows).filter(pl.col("source") == source, pl.col("line") == line)
    return list(orjson.loads(found.select("messages").collect()["messages"][0]))


def _context(config: Config, frame: pl.DataFrame) -> dict[str, Any]:
    """Prompts that fill the model's context, so that no answer fits."""
    limit = context_limit(config)
    over = frame.filter(pl.col("prompt_tokens") >= limit) if limit else frame.clear()
    return {"limit": limit, "over": over.height, "examples": named_rows(over)}


def _positions(frame: pl.DataFrame, count: int) -> list[dict[str, int]]:
    """Equal parts of the rows in the input's order, with how many are flagged in each."""
    rows, cuts = frame.height, min(count, frame.height)
    edges = [k * rows // cuts for k in range(cuts + 1)] if cuts else []
    return [
        {"first": start + 1, "rows": end - start, "flagged": int(frame["flagged"][start:end].sum())}
        for start, end in pairwise(edges)
    ]


def _sources(config: Config, evidence: Evidence) -> dict[str, dict[str, Any]]:
    frame = evidence.counted
    parts = {str(k[0]): f for k, f in frame.partition_by("source", as_dict=True).items()}
    told = {}
    for source, found in evidence.per_source.items():
        own = parts.get(source, frame.clear())
        told[source] = {
            "format": format_of(source, config.input_format),
            "lines": found.lines.lines,
            "blank": found.lines.blank,
            "rejected": sum(found.rejects.values()),
            "accepted": own.height,
            "flagged": int(own["flagged"].sum()),
            "response_tokens": int(own["response_tokens"].sum()),
            "prompt_tokens": int(own["prompt_tokens"].sum()),
            "parts": [round(part["flagged"] / part["rows"], 4) for part in _positions(own, TENTHS)],
        }
    return told


def _prompts(evidence: Evidence) -> dict[str, Any]:
    frame = evidence.counted
    keys = frame["prompt_key"].value_counts().filter(pl.col("count") > 1)
    top = []
    most = keys.join(
        frame.with_row_index("at").group_by("prompt_key").agg(pl.min("at")), "prompt_key"
    )
    for _, rows, at in most.sort(["count", "at"], descending=[True, False]).head(3).iter_rows():
        first = frame[at]
        messages = _messages(evidence.rows, first)
        asked = next((m["content"] for m in messages if m["role"] == "user"), "")
        top.append({"text": beginning(asked), "rows": rows, "examples": named_rows(first)})
    return {
        "distinct": frame["prompt_key"].n_unique(),
        "turns": int(frame["turns"].sum()),
        "multi_turn_rows": int((frame["turns"] > 1).sum()),
        "duplicate_rows": int(keys["count"].sum() or 0) - keys.height,
        "top": top,
    }


def _scanned(counts: Counter[str], key: str, examples: list[str] | None) -> dict[str, Any]:
    """Rows by what was seen in their texts; "" counts the rows."""
    kinds = {kind: rows for kind, rows in counts.most_common() if kind}
    return {"rows": counts[""], key: kinds, "examples": examples or []}


def _own_ids(keys: pl.Series) -> dict[str, int]:
    """Rows without an id of the user's, and those that repeat one."""
    given = keys.drop_nulls()
    return {"missing": keys.null_count(), "duplicate": len(given) - given.n_unique()}


def estimate(settings: Estimate, frame: pl.DataFrame, asked: pl.DataFrame) -> dict[str, Any]:
    """Tokens, GPU hours and cost of regenerating rows, with what was assumed."""
    good = frame.filter(~pl.col("flagged"))["response_tokens"]
    mean = settings.mean_output_tokens
    if mean is not None:
        assumed = f"{mean:,.0f} tokens an answer, as audit.estimate.mean_output_tokens says"
    elif len(good) >= FEW_ROWS:
        mean = float(good.mean())  # type: ignore[arg-type]
        assumed = f"{mean:,.0f} tokens an answer, the mean of the {len(good):,} old responses that "
        assumed += "are not trivial; a thinking model writes several times as much"
    else:
        mean = GUESSED_TOKENS
        assumed = f"{mean:,.0f} tokens an answer, a guess: too few old responses are usable"
    turns = int(asked["turns"].sum())
    hours = turns * mean / settings.tokens_per_s / 3600
    price = settings.price_per_gpu_hour
    return {
        "rows": asked.height,
        "turns": turns,
        "mean_output_tokens": round(mean, 1),
        "output_tokens": round(turns * mean),
        "assumption": f"{assumed}; {settings.tokens_per_s:,.0f} tokens/s a GPU",
        "tokens_per_s": settings.tokens_per_s,
        "gpus": settings.gpus,
        "gpu_hours": round(hours, 3),
        "hours": round(hours / settings.gpus, 3),
        "price_per_gpu_hour": price,
        "cost": None if price is None else round(hours * price, 2),
    }

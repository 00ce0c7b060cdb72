"""Audit a dataset: what is in it, what its responses are worth, and what cannot be used.

Always ends with 0 once it has written its evidence; the audit gate judges it.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import polars as pl
from tokenizers import Tokenizer

from workflow_scripts.config import Audit, ConfigError, read_run
from workflow_scripts.conversation import Reject, Turn, prompt_hash, read_conversation
from workflow_scripts.identity import digest, tokenizer_file
from workflow_scripts.progress import say, write_atomically
from workflow_scripts.read_input import Counts, Line, input_files, read_lines
from workflow_scripts.tables import AUDIT, read_batches, table_writer

BATCH = 2048
TOP = 10  # repeated responses shown

# Worst first: a row has the worst class of its responses.
TRIVIAL = ("missing", "empty", "whitespace", "empty_think", "refusal", "repeated")
REFUSAL = re.compile(
    r"\A\W*(?:(?:i['’]?m|i am) (?:very |so |really )?sorry|sorry,? (?:but )?i|i apologi[sz]e)?\W*"
    r"(?:but )?(?:as an ai(?: language)? (?:model|assistant)\W+)?(?:i['’]?m|i am|i)? ?"
    r"(?:can(?:no|['’])t|cannot|can not|unable|not able|won['’]t|will not|must decline)"
    r"(?: to)? (?:help|assist|answer|comply|fulfil|provide|do|complete|continue|engage|with)",
    re.IGNORECASE,
)
REFUSAL_CHARS = 300


def response_class(turn: Turn) -> str:
    """The class that a response has by itself; `normal` where nothing is wrong with it."""
    if turn.content is None and turn.reasoning is None:
        return "missing"
    text = turn.content or ""
    if not text and not (turn.reasoning or "").strip():
        return "empty_think" if turn.reasoning is not None else "empty"
    if not text.strip() and not (turn.reasoning or "").strip():
        return "whitespace"
    if len(text) <= REFUSAL_CHARS and REFUSAL.match(text):
        return "refusal"
    return "normal"


def whole_text(turn: Turn) -> str:
    """A response as one text, reasoning in its tags."""
    text = turn.content or ""
    return f"<think>\n{turn.reasoning}\n</think>\n\n{text}" if turn.reasoning is not None else text


@dataclass(slots=True)
class Findings:
    """What is counted while the lines go by."""

    counts: dict[str, Counts] = field(default_factory=dict)
    rejects: Counter[str] = field(default_factory=Counter)
    rejected_of: Counter[str] = field(default_factory=Counter)
    reject_examples: dict[str, str] = field(default_factory=dict)
    rules: Counter[str] = field(default_factory=Counter)


def read_rows(
    files: list[str], audit: Audit, tokenizer: Tokenizer, rejected: Path, found: Findings
) -> Iterator[list[dict[str, Any]]]:
    """The accepted rows in batches; the others go to the file `rejected`."""
    batch: list[tuple[dict[str, Any], str]] = []
    with rejected.open("wb") as out:
        for path in files:
            counts = found.counts[path] = Counts()
            for line in read_lines(path, counts):
                try:
                    batch.append(_row(line, audit, found))
                except Reject as reject:
                    out.write(_rejected(line, reject, found))
                if len(batch) >= BATCH:
                    yield _with_lengths(batch, tokenizer)
                    batch = []
    if batch:
        yield _with_lengths(batch, tokenizer)


def _row(line: Line, audit: Audit, found: Findings) -> tuple[dict[str, Any], str]:
    if line.record is None:
        reason, message = line.reject or ("invalid_json", "")
        raise Reject(reason, message)
    conversation = read_conversation(line.record, audit.rules)
    found.rules.update(set(conversation.used))
    messages = [turn.as_dict() for turn in conversation.turns]
    responses = conversation.responses()
    classes = {response_class(turn) for turn in responses}
    last = responses[-1]
    text = whole_text(last)
    row = {
        "row_id": line.row_id,
        "content_hash": digest(line.content),
        "source": line.source,
        "line": line.line,
        "id": user_id(line.record),
        "messages": orjson.dumps(messages).decode(),
        "prompt_hash": prompt_hash(messages),
        "turns": len(responses),
        "response_chars": len(last.content or ""),
        "response_class": next((c for c in TRIVIAL if c in classes), "normal"),
        "rules": sorted(set(conversation.used)),
    }
    return row, text


def user_id(record: dict[str, Any]) -> str | None:
    """The user's own id as JSON text, so that 7 and "7" stay apart."""
    for key in ("id", "uuid", "question_id"):
        if record.get(key) is not None:
            return orjson.dumps(record[key]).decode()
    return None


def _rejected(line: Line, reject: Reject, found: Findings) -> bytes:
    found.rejects[reject.reason] += 1
    found.rejected_of[line.source] += 1
    found.reject_examples.setdefault(reject.reason, f"{line.source}:{line.line}: {reject.message}")
    entry = {
        "row_id": line.row_id,
        "source": line.source,
        "line": line.line,
        "id": user_id(line.record) if line.record else None,
        "reason": reject.reason,
        "message": reject.message,
    }
    return orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)


def _with_lengths(
    batch: list[tuple[dict[str, Any], str]], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    encoded = tokenizer.encode_batch_fast([text for _, text in batch], add_special_tokens=False)
    for (row, _), encoding in zip(batch, encoded, strict=True):
        row["response_tokens"] = len(encoding.ids)
    return [row for row, _ in batch]


LAST_RESPONSE = pl.col("messages").str.json_path_match("$[-1:].content").str.strip_chars()


def repeated_responses(part: Path, audit: Audit) -> pl.DataFrame:
    """Short last responses that many different prompts got: text, prompts, rows."""
    return (
        pl.scan_parquet(part)
        .filter(pl.col("response_chars").is_between(1, audit.repeated_max_chars))
        .select(LAST_RESPONSE.alias("text"), "prompt_hash")
        .filter(pl.col("text") != "")
        .group_by("text")
        .agg(pl.col("prompt_hash").n_unique().alias("prompts"), pl.len().alias("rows"))
        .filter(pl.col("prompts") >= audit.repeated_min_prompts)
        .sort(["rows", "text"], descending=[True, False])
        .collect(engine="streaming")
    )


def flag(part: Path, target: Path, repeated: set[str]) -> None:
    """Write the final rows: those of a repeated response get their class, and all a flag."""
    with table_writer(target, AUDIT, BATCH) as writer:
        for batch in read_batches(part, BATCH):
            rows = batch.to_pylist()
            for row in rows:
                if row["response_class"] == "normal":
                    last = orjson.loads(row["messages"])[-1]["content"] or ""
                    if last.strip() in repeated:
                        row["response_class"] = "repeated"
                row["flagged"] = row["response_class"] in TRIVIAL
            writer.add(rows)


def report(
    rows: Path, found: Findings, repeated: pl.DataFrame, audit: Audit, top: int = TOP
) -> dict[str, Any]:
    """The audit's report from the rows written and what was counted on the way."""
    frame = pl.scan_parquet(rows).drop("messages").collect(engine="streaming")
    accepted, flagged = frame.height, int(frame["flagged"].sum())
    share = flagged / accepted if accepted else 1.0
    verdict = "ok"
    if share >= audit.suspicious_share:
        verdict = "worthless" if share >= audit.worthless_share else "suspicious"
    tokens = frame["response_tokens"]
    per_source = {
        source: {"accepted": n, "flagged": int(f)}
        for source, n, f in frame.group_by("source")
        .agg(pl.len(), pl.col("flagged").sum())
        .iter_rows()
    }
    ids = frame["id"].drop_nulls()
    return {
        "verdict": verdict,
        "trivial_share": round(share, 6),
        "thresholds": {"suspicious": audit.suspicious_share, "worthless": audit.worthless_share},
        "lines": sum(c.lines for c in found.counts.values()),
        "blank_lines": sum(c.blank for c in found.counts.values()),
        "bytes": sum(c.bytes for c in found.counts.values()),
        "accepted": accepted,
        "flagged": flagged,
        "rejected": sum(found.rejects.values()),
        "reject_reasons": dict(found.rejects.most_common()),
        "reject_examples": found.reject_examples,
        "rules_applied": dict(sorted(found.rules.items())),
        "response_classes": dict(
            frame.group_by("response_class").len().sort("len", descending=True).iter_rows()
        ),
        "top_repeated_responses": [
            {"text": text, "rows": rows, "prompts": prompts}
            for text, prompts, rows in repeated.head(top).iter_rows()
        ],
        "response_tokens": {
            "total": int(tokens.sum() or 0),
            "median": tokens.median() or 0,
            "p95": tokens.quantile(0.95) or 0,
            "max": tokens.max() or 0,
        },
        "response_token_counts": dict(
            (str(k), v) for k, v in tokens.value_counts().sort("response_tokens").iter_rows()
        ),
        "ids": {"missing": frame.height - len(ids), "duplicate": len(ids) - ids.n_unique()},
        "prompts": {
            "distinct": frame["prompt_hash"].n_unique(),
            "turns": int(frame["turns"].sum()),
            "multi_turn_rows": int((frame["turns"] > 1).sum()),
        },
        "sources": {
            source: {
                "lines": counts.lines,
                "blank": counts.blank,
                "rejected": found.rejected_of[source],
                **per_source.get(source, {"accepted": 0, "flagged": 0}),
            }
            for source, counts in sorted(found.counts.items())
        },
    }


def summary(found: dict[str, Any]) -> list[str]:
    """The report in a few lines."""
    lines = [
        f"audit: {found['verdict'].upper()}: {found['flagged']} of {found['accepted']} rows "
        f"({100 * found['trivial_share']:.1f} %) have a trivial response"
    ]
    classes = ", ".join(f"{n} {name}" for name, n in found["response_classes"].items())
    lines.append(f"  responses: {classes or 'none'}")
    for top in found["top_repeated_responses"][:3]:
        lines.append(f"  {top['rows']} x {top['text'][:60]!r} to {top['prompts']} prompts")
    rejects = ", ".join(f"{n} {name}" for name, n in found["reject_reasons"].items())
    lines.append(
        f"  {found['rejected']} lines rejected{f' ({rejects})' if rejects else ''}, "
        f"{found['blank_lines']} blank; ids: {found['ids']['missing']} missing, "
        f"{found['ids']['duplicate']} duplicate"
    )
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--rejected", type=Path, required=True)
    args = parser.parse_args(argv)
    config, _ = read_run(args.run)
    try:
        files = input_files(config.input)
    except ConfigError as error:
        say(f"audit: {error}")
        return 1
    found = Findings()
    tokenizer = Tokenizer.from_file(str(tokenizer_file(config)))
    part = args.rows.with_name("rows.unflagged.parquet")
    try:
        with table_writer(part, AUDIT, BATCH) as writer:
            for batch in read_rows(files, config.audit, tokenizer, args.rejected, found):
                writer.add(batch)
        repeated = repeated_responses(part, config.audit)
        flag(part, args.rows, set(repeated["text"]))
    finally:
        part.unlink(missing_ok=True)
    result = report(args.rows, found, repeated, config.audit)
    write_atomically(args.report, orjson.dumps(result, option=orjson.OPT_INDENT_2))
    for line in summary(result):
        say(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

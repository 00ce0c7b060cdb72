"""The audit's findings in words, its verdict and its ten lines for the terminal."""

from typing import Any

import polars as pl

from workflow_scripts.config.sections import Config
from workflow_scripts.texts.classes import CLASS_TEXT, TRIVIAL

FEW_ROWS = 100  # of a source or part that say nothing by themselves
NAMED = 5  # rows named for a finding
LEVELS = ("worthless", "suspicious", "note")


def named_rows(frame: pl.DataFrame) -> list[str]:
    """Where the first few rows stand."""
    return [f"{source}:{line}" for source, line in frame.head(NAMED)["source", "line"].iter_rows()]


def some(count: int, one: str, many: str) -> str:
    """A count with what is counted."""
    return f"{count:,} {one if count == 1 else many}"


def findings(config: Config, found: dict[str, Any], frame: pl.DataFrame) -> list[dict[str, Any]]:
    """What a reader should know, the worst first."""
    out: list[dict[str, Any]] = []
    rows = found["accepted"]

    def say(name: str, level: str, count: int, text: str, examples: list[str]) -> None:
        if count:
            share = round(count / max(rows, 1), 6)
            entry = {"name": name, "level": level, "rows": count, "share": share}
            out.append({**entry, "text": text, "examples": examples})

    limits, share = found["thresholds"], found["trivial_share"]
    level = "note" if share < limits["suspicious"] else "suspicious"
    level = "worthless" if share >= limits["worthless"] else level
    classes = found["response_classes"]
    flagged = frame.filter(pl.col("flagged"))
    kinds = ", ".join(f"{classes[c]:,} {CLASS_TEXT[c]}" for c in TRIVIAL if c in classes)
    say(
        "trivial_responses",
        level,
        found["flagged"],
        f"Trivial responses: {kinds}.",
        named_rows(flagged),
    )
    for spike in found["spikes"]:
        shown = some(spike["rows"], "response is", "responses are")
        shown += f" exactly {spike['tokens']} tokens long"
        if spike["tokens"] == found["empty_turn"]["tokens"] and spike["distinct"] == 1:
            shown += ": the empty assistant turn as this template writes it"
        elif spike["distinct"] == 1:
            shown += " and all the same"
        elif spike["distinct"] < spike["rows"] / 2:
            shown += f", only {spike['distinct']:,} of them different"
        same = spike["distinct"] < spike["rows"] / 2
        say(
            "length_spike", level if same else "note", spike["rows"], shown + ".", spike["examples"]
        )
    for source, told in found["sources"].items():
        bad = told["flagged"] / max(told["accepted"], 1)
        if (
            len(found["sources"]) > 1
            and told["accepted"] >= FEW_ROWS
            and bad >= limits["worthless"]
        ):
            own = flagged.filter(pl.col("source") == source)
            text = f"{source}: {100 * bad:.1f} % of its {told['accepted']:,} responses are trivial."
            say("bad_source", "suspicious", told["flagged"], text, named_rows(own))
    bad_parts = [
        p for p in found["positions"]
        if p["rows"] >= FEW_ROWS / 2 and p["flagged"] / p["rows"] >= limits["worthless"]
    ]  # fmt: skip
    if bad_parts and share < limits["worthless"]:
        first, last = bad_parts[0], bad_parts[-1]
        text = f"The trivial responses are not spread evenly: rows {first['first']:,} to "
        text += f"{last['first'] + last['rows'] - 1:,} hold most of them."
        start = first["first"] - 1
        named = named_rows(frame[start : start + first["rows"]].filter(pl.col("flagged")))
        say("bad_stretch", "suspicious", sum(p["flagged"] for p in bad_parts), text, named)
    for top in found["top_repeated_patterns"][:1]:
        text = f"{top['rows']:,} responses to {top['prompts']:,} prompts differ only in numbers: "
        text += f"`{top['text'][:80]}`."
        say("repeated_pattern", "suspicious", top["rows"], text, top["examples"])
    only = frame.filter(pl.col("response_class") == "reasoning_only")
    text = f"{only.height:,} of the responses are a reasoning without an answer."
    say("reasoning_only", "suspicious", only.height, text, named_rows(only))
    least = found["empty_turn"]["tokens"] + config.audit.short_tokens
    brief = frame.filter(~pl.col("flagged"), pl.col("response_tokens") <= least)
    text = (
        f"{brief.height:,} of the responses are short (at most {config.audit.short_tokens} tokens "
    )
    text += "of answer) but differ from each other; they are not counted as trivial."
    say("short_responses", "note", brief.height, text, named_rows(brief))
    _input_findings(found, frame, say)
    return sorted(out, key=lambda entry: (LEVELS.index(entry["level"]), -entry["rows"]))


def _input_findings(found: dict[str, Any], frame: pl.DataFrame, say: Any) -> None:
    rejected, lines = found["rejected"], found["accepted"] + found["rejected"]
    worst = ", ".join(f"{n:,} {name}" for name, n in list(found["reject_reasons"].items())[:3])
    say(
        "rejected_lines",
        "suspicious" if rejected > 0.05 * lines else "note",
        rejected,
        f"{rejected:,} of {lines:,} lines cannot be used ({worst}); see audit/rejected.jsonl.",
        [example.split(": ", 1)[0] for example in found["reject_examples"].values()][:NAMED],
    )
    over = found["context"]
    limit = over["limit"] or 0
    text = some(over["over"], "prompt fills", "prompts fill")
    text += f" the context of {limit:,} tokens; no answer fits."
    say("over_context", "suspicious", over["over"], text, over["examples"])
    asked = found["prompts"]
    text = some(asked["duplicate_rows"], "row repeats", "rows repeat")
    text += " an earlier row's prompt exactly."
    named = [example for top in asked["top"] for example in top["examples"]]
    say("duplicate_prompts", "note", asked["duplicate_rows"], text, named)
    for name, what in (
        ("control_tokens", "with control tokens of the tokenizer in user text; they stay text"),
        ("encoding", "with damaged text (wrong decoding, control characters)"),
        ("personal_data", "with what looks like personal data; look before you publish"),
    ):
        told = found[name]
        kinds = told["tokens" if name == "control_tokens" else "kinds"]
        listed = ", ".join(f"{kind} {rows:,}" for kind, rows in list(kinds.items())[:4])
        say(
            name,
            "note",
            told["rows"],
            f"{some(told['rows'], 'row', 'rows')} {what}: {listed}.",
            told["examples"],
        )
    if near := found["near_duplicates"]:
        count = near["rows"] - near["clusters"]
        text = some(count, "row nearly repeats", "rows nearly repeat") + " another row's prompt ("
        text += some(near["clusters"], "cluster", "clusters")
        text += f" at a similarity of {near['threshold']:g})."
        named = [example for top in near["largest"] for example in top["examples"]]
        say("near_duplicates", "note", count, text, named[:NAMED])
    if held := found["contamination"]:
        sets = ", ".join(name for name, told in held["held_out"].items() if told["hits"])
        text = some(held["rows"], "prompt shares", "prompts share")
        text += f" {held['ngram']} words in a row with held-out sets "
        named = [example.split(": ")[0] for example in held["examples"]]
        say("contamination", "suspicious", held["rows"], f"{text}({sets}).", named)
    if found["ids"]["duplicate"]:
        count = found["ids"]["duplicate"]
        text = f"{count:,} rows repeat another row's id; ids are carried along, never used as keys."
        again = frame.filter(pl.col("id_key").is_not_null() & pl.col("id_key").is_duplicated())
        say("duplicate_ids", "note", count, text, named_rows(again))
    if found["tokenized"].get("other prompt"):
        count = found["tokenized"]["other prompt"]
        text = f"{count:,} tokenized rows hold another prompt than this template would write."
        say("other_template", "suspicious", count, text, [])

"""The audit's findings in words: what a reader should know, each from a function of its own."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from workflow_scripts.audit.examples import NAMED, named_rows
from workflow_scripts.config.audit import Audit
from workflow_scripts.texts.classes import CLASS_TEXT, TRIVIAL

FEW_ROWS = 100  # of a source or part that say nothing by themselves
SHOWN = 3  # columns or refusals told in a finding
# Names of columns that belong to a question more often than not.
QUESTION_PARTS = {
    "context", "passage", "passages", "document", "documents", "article", "background",
    "paragraph", "choices", "options", "examples", "hint", "hints", "input", "inputs", "code",
    "table", "schema", "premise", "hypothesis", "story", "problem", "constraints",
}  # fmt: skip
LEVELS = ("worthless", "suspicious", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a reader should know."""

    name: str
    level: str  # of LEVELS
    rows: int
    share: float  # of the accepted rows
    text: str
    examples: list[str]  # where rows stand

    def as_dict(self) -> dict[str, Any]:
        """The finding as audit/report.json holds it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Grounds:
    """What findings are drawn from: the report so far, and the accepted rows without texts."""

    settings: Audit
    report: dict[str, Any]
    frame: pl.DataFrame
    flagged: pl.DataFrame  # those of them that are
    level: str  # of the trivial share

    def finding(self, name: str, level: str, rows: int, text: str, examples: list[str]) -> Finding:
        share = round(rows / max(self.report["accepted"], 1), 6)
        return Finding(name, level, rows, share, text, examples)


def findings(settings: Audit, report: dict[str, Any], frame: pl.DataFrame) -> list[Finding]:
    """The findings that any row gives cause to, the worst first.

    Args:
        settings: the configuration's `audit`.
        report: what audit/report.json holds beside findings and verdict.
        frame: the accepted rows without texts, in the input's order.
    """
    level = _level(report["trivial_share"], report["thresholds"])
    grounds = Grounds(settings, report, frame, frame.filter(pl.col("flagged")), level)
    found = [finding for look in LOOKS for finding in look(grounds) if finding.rows]
    return sorted(found, key=lambda finding: (LEVELS.index(finding.level), -finding.rows))


def _level(share: float, limits: dict[str, float]) -> str:
    if share >= limits["worthless"]:
        return "worthless"
    return "note" if share < limits["suspicious"] else "suspicious"


def _some(count: int, one: str, many: str) -> str:
    """A count with what is counted."""
    return f"{count:,} {one if count == 1 else many}"


# ---- responses ----


def trivial_responses(grounds: Grounds) -> Iterator[Finding]:
    classes = grounds.report["response_classes"]
    kinds = ", ".join(f"{classes[c]:,} {CLASS_TEXT[c]}" for c in TRIVIAL if c in classes)
    yield grounds.finding(
        "trivial_responses",
        grounds.level,
        grounds.report["flagged"],
        f"Trivial responses: {kinds}.",
        named_rows(grounds.flagged),
    )


def length_spikes(grounds: Grounds) -> Iterator[Finding]:
    empty = grounds.report["empty_turn"]["tokens"]
    for spike in grounds.report["spikes"]:
        rows, tokens, distinct = spike["rows"], spike["tokens"], spike["distinct"]
        alike = distinct < rows / 2
        text = f"{_some(rows, 'response is', 'responses are')} exactly {tokens} tokens long"
        if tokens == empty and distinct == 1:
            text += ": the empty assistant turn as this template writes it"
        elif distinct == 1:
            text += " and all the same"
        elif alike:
            text += f", only {distinct:,} of them different"
        level = grounds.level if alike else "note"
        yield grounds.finding("length_spike", level, rows, f"{text}.", spike["examples"])


def bad_sources(grounds: Grounds) -> Iterator[Finding]:
    """Input files that are worthless by themselves, where there are others."""
    sources = grounds.report["sources"]
    if len(sources) < 2:
        return
    for source, told in sources.items():
        rows, flagged = told["accepted"], told["flagged"]
        bad = flagged / max(rows, 1)
        if rows >= FEW_ROWS and bad >= grounds.report["thresholds"]["worthless"]:
            text = f"{source}: {100 * bad:.1f} % of its {rows:,} responses are trivial."
            own = grounds.flagged.filter(pl.col("source") == source)
            yield grounds.finding("bad_source", "suspicious", flagged, text, named_rows(own))


def bad_stretch(grounds: Grounds) -> Iterator[Finding]:
    """Parts of the input that are worthless by themselves, where the whole is not."""
    limit = grounds.report["thresholds"]["worthless"]
    bad = [
        part
        for part in grounds.report["positions"]
        if part["rows"] >= FEW_ROWS / 2 and part["flagged"] / part["rows"] >= limit
    ]
    if bad and grounds.report["trivial_share"] < limit:
        first, last = bad[0], bad[-1]
        text = f"The trivial responses are not spread evenly: rows {first['first']:,} to "
        text += f"{last['first'] + last['rows'] - 1:,} hold most of them."
        own = grounds.frame[first["first"] - 1 :][: first["rows"]].filter(pl.col("flagged"))
        flagged = sum(part["flagged"] for part in bad)
        yield grounds.finding("bad_stretch", "suspicious", flagged, text, named_rows(own))


def repeated_pattern(grounds: Grounds) -> Iterator[Finding]:
    for top in grounds.report["top_repeated_patterns"][:1]:
        text = f"{top['rows']:,} responses to {top['prompts']:,} prompts differ only in numbers: "
        text += f"`{top['text'][:80]}`."
        yield grounds.finding("repeated_pattern", "suspicious", top["rows"], text, top["examples"])


def reasoning_only(grounds: Grounds) -> Iterator[Finding]:
    only = grounds.frame.filter(pl.col("response_class") == "reasoning_only")
    text = f"{only.height:,} of the responses are a reasoning without an answer."
    yield grounds.finding("reasoning_only", "suspicious", only.height, text, named_rows(only))


def short_responses(grounds: Grounds) -> Iterator[Finding]:
    few = grounds.settings.short_tokens
    most = grounds.report["empty_turn"]["tokens"] + few
    short = grounds.frame.filter(~pl.col("flagged"), pl.col("response_tokens") <= most)
    text = f"{short.height:,} of the responses are short (at most {few} tokens of answer) but "
    text += "differ from each other; they are not counted as trivial."
    yield grounds.finding("short_responses", "note", short.height, text, named_rows(short))


# ---- input ----


def rejected_lines(grounds: Grounds) -> Iterator[Finding]:
    report = grounds.report
    rejected, lines = report["rejected"], report["accepted"] + report["rejected"]
    worst = ", ".join(f"{n:,} {name}" for name, n in list(report["reject_reasons"].items())[:3])
    yield grounds.finding(
        "rejected_lines",
        "suspicious" if rejected > 0.05 * lines else "note",
        rejected,
        f"{rejected:,} of {lines:,} lines cannot be used ({worst}); see audit/rejected.jsonl.",
        [example.split(": ", 1)[0] for example in report["reject_examples"].values()][:NAMED],
    )


def template_refused(grounds: Grounds) -> Iterator[Finding]:
    rows = grounds.report["reject_reasons"].get("template_refused", 0)
    words = "; ".join(
        f"{n:,} x {what}" for what, n in _first(grounds.report["template"]["refused"])
    )
    example = grounds.report["reject_examples"].get("template_refused", "").split(": ", 1)[0]
    text = f"{_some(rows, 'row is', 'rows are')} refused by the chat template ({words}). Change "
    text += "the rows, or set model.chat_template to one that takes them."
    yield grounds.finding("template_refused", "suspicious", rows, text, [example])


def left_out_by_template(grounds: Grounds) -> Iterator[Finding]:
    for kind, told in grounds.report["template"]["left_out"].items():
        rows = told["rows"]
        text = f"{_some(rows, 'row has', 'rows have')} {kind}, which the chat template never "
        text += "writes: the model does not see them. Set model.chat_template to one that does."
        yield grounds.finding("left_out_by_template", "suspicious", rows, text, told["examples"])


def unused_columns(grounds: Grounds) -> Iterator[Finding]:
    """Columns with a text of each row's own, which could be part of the question."""
    columns = grounds.report["unused_columns"]
    texts = {name: told for name, told in columns.items() if told["text"] and told["varies"]}
    if not texts:
        return
    ordered = sorted(texts.items(), key=lambda item: -item[1]["mean_chars"])
    accepted = max(grounds.report["accepted"], 1)
    told = ", ".join(
        f"`{name}` ({100 * one['rows'] / accepted:.0f} % of the rows, e.g. {one['example'][:60]!r})"
        for name, one in ordered[:SHOWN]
    )
    if len(ordered) > SHOWN:
        told += f" and {len(ordered) - SHOWN} more"
    text = f"No rule uses {told}. If they belong to the question, name them in "
    text += "audit.columns.prompt."
    known = QUESTION_PARTS & {name.lower() for name in texts}
    rows = max(one["rows"] for one in texts.values())
    level = "suspicious" if known else "note"
    examples = [one["where"] for _, one in ordered[:NAMED]]
    yield grounds.finding("unused_columns", level, rows, text, examples)


def missing_columns(grounds: Grounds) -> Iterator[Finding]:
    named = grounds.report["named_columns"]
    missing = ", ".join(f"`{path}`" for path, rows in named.items() if not rows)
    rows = max(grounds.report["accepted"], 1) if missing else 0
    text = f"audit.columns names {missing}, which no row has."
    yield grounds.finding("missing_columns", "suspicious", rows, text, [])


def _first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return list(counts.items())[:SHOWN]


def over_context(grounds: Grounds) -> Iterator[Finding]:
    context = grounds.report["context"]
    over, limit = context["over"], context["limit"] or 0
    text = _some(over, "prompt fills", "prompts fill")
    text += f" the context of {limit:,} tokens; no answer fits."
    yield grounds.finding("over_context", "suspicious", over, text, context["examples"])


def duplicate_prompts(grounds: Grounds) -> Iterator[Finding]:
    asked = grounds.report["prompts"]
    rows = asked["duplicate_rows"]
    text = f"{_some(rows, 'row repeats', 'rows repeat')} an earlier row's prompt exactly."
    named = [example for top in asked["top"] for example in top["examples"]]
    yield grounds.finding("duplicate_prompts", "note", rows, text, named)


def scanned_texts(grounds: Grounds) -> Iterator[Finding]:
    """What was looked for in every row's text."""
    for name, key, what in (
        (
            "control_tokens",
            "tokens",
            "with control tokens of the tokenizer in user text; they stay text",
        ),
        ("encoding", "kinds", "with damaged text (wrong decoding, control characters)"),
        ("personal_data", "kinds", "with what looks like personal data; look before you publish"),
    ):
        told = grounds.report[name]
        listed = ", ".join(f"{kind} {rows:,}" for kind, rows in list(told[key].items())[:4])
        text = f"{_some(told['rows'], 'row', 'rows')} {what}: {listed}."
        yield grounds.finding(name, "note", told["rows"], text, told["examples"])


def near_duplicates(grounds: Grounds) -> Iterator[Finding]:
    if near := grounds.report["near_duplicates"]:
        rows = near["rows"] - near["clusters"]
        text = _some(rows, "row nearly repeats", "rows nearly repeat") + " another row's prompt ("
        text += _some(near["clusters"], "cluster", "clusters")
        text += f" at a similarity of {near['threshold']:g})."
        named = [example for top in near["largest"] for example in top["examples"]]
        yield grounds.finding("near_duplicates", "note", rows, text, named[:NAMED])


def contamination(grounds: Grounds) -> Iterator[Finding]:
    if held := grounds.report["contamination"]:
        sets = ", ".join(name for name, told in held["held_out"].items() if told["hits"])
        text = _some(held["rows"], "prompt shares", "prompts share")
        text += f" {held['ngram']} words in a row with held-out sets ({sets})."
        named = [example.split(": ")[0] for example in held["examples"]]
        yield grounds.finding("contamination", "suspicious", held["rows"], text, named)


def duplicate_ids(grounds: Grounds) -> Iterator[Finding]:
    if rows := grounds.report["ids"]["duplicate"]:
        text = f"{rows:,} rows repeat another row's id; ids are carried along, never used as keys."
        own = pl.col("id_key").is_not_null() & pl.col("id_key").is_duplicated()
        named = named_rows(grounds.frame.filter(own))
        yield grounds.finding("duplicate_ids", "note", rows, text, named)


def other_template(grounds: Grounds) -> Iterator[Finding]:
    rows = grounds.report["tokenized"].get("other prompt", 0)
    text = f"{rows:,} tokenized rows hold another prompt than this template would write."
    yield grounds.finding("other_template", "suspicious", rows, text, [])


# Of findings with the same level and rows, that of the earlier look comes first.
LOOKS: tuple[Callable[[Grounds], Iterator[Finding]], ...] = (
    trivial_responses,
    length_spikes,
    bad_sources,
    bad_stretch,
    repeated_pattern,
    reasoning_only,
    short_responses,
    rejected_lines,
    template_refused,
    left_out_by_template,
    unused_columns,
    missing_columns,
    over_context,
    duplicate_prompts,
    scanned_texts,
    near_duplicates,
    contamination,
    duplicate_ids,
    other_template,
)

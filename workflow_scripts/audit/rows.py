"""The audit's reading: input lines become rows, in as many processes as there are cores.

Each part of an input file is read by one process, which writes the part's rows to a file of its own
and returns what it counted. Parts are taken in the input's order, so nothing depends on who was
first.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from workflow_scripts.audit.tally import Tally
from workflow_scripts.audit.turns import PROBE, REMEMBERED, SHORT_CHARS, AssistantTurns, as_turn
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import digest, key64
from workflow_scripts.input.conversation import FOUND, Conversation, prompt_hash, read_conversation
from workflow_scripts.input.lines import Line, read_part
from workflow_scripts.input.parts import Part
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.tokenized import Detokenizer, is_tokenized
from workflow_scripts.input.turn import Turn
from workflow_scripts.model.prompts import MASK, Prompts
from workflow_scripts.tables.columns import AUDIT
from workflow_scripts.texts.classes import TRIVIAL, folded, pattern, response_class
from workflow_scripts.texts.hints import damage, personal
from workflow_scripts.texts.scripts import script

BATCH = 1024  # rows encoded at a time
EXACT = 2000  # characters of a prompt from which on it is always counted
RANKS = {name: rank for rank, name in enumerate((*TRIVIAL, "reasoning_only", "normal"))}
# Columns that only the audit itself needs, beside those of rows.parquet.
PART = pa.schema(
    [
        *AUDIT,
        pa.field("response_key", pa.uint64()),
        pa.field("short_text", pa.string()),
        pa.field("pattern", pa.string()),
        pa.field("script", pa.string()),
    ]
)


@dataclass(slots=True)
class _Row:
    """A row on its way: its columns, and what is still to be counted in tokens."""

    columns: dict[str, Any]
    response: str | None  # as the template writes it; None if it is counted
    prompt: str


class PartReader:
    """Reads parts of the input.

    Of a large input, the tokens of prompts under EXACT characters are estimated by those of every
    sixteenth of them: they only feed a distribution and totals.

    Args:
        config: the run's configuration.
        prompts: the model's template and tokenizer.
        folder: where the rows of the parts go.
        large: whether the input is a large one.
    """

    def __init__(self, config: Config, prompts: Prompts, folder: Path, large: bool = False):
        self.large = large
        self.config = config
        self.prompts = prompts
        self.folder = folder
        self.columns = FOUND if config.audit.columns == FOUND else config.audit.columns
        self.turns = AssistantTurns(prompts)
        self.detokenizer = Detokenizer(prompts)
        self.spelled = sorted({t[:2].encode() for t in prompts.added})  # how control tokens begin
        self.overhead = self._overhead()
        self._lengths: dict[str, int] = {}
        self._short: dict[str, tuple[str | None, str | None]] = {}

    def _overhead(self) -> int:
        """Tokens that the template adds to a question: what is around it and the opener."""
        whole, bare = self.prompts.encode([self.prompts.render([{**PROBE}]), PROBE["content"]])
        return len(whole) - len(bare)

    def read(self, part: Part) -> tuple[Path, Tally]:
        """Read one part; returns the file with its rows and what was counted."""
        path = self.folder / f"{digest(part.path)}-{part.number:06d}.arrow"
        found = Tally()
        rejected: list[bytes] = []
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, PART) as writer:
            batch: list[_Row] = []
            for line in read_part(part, found.lines):
                try:
                    batch.append(self._row(line, found))
                except Reject as reject:
                    rejected.append(_rejected(line, reject, found))
                if len(batch) >= BATCH:
                    writer.write(self._finished(batch))
                    batch = []
            if batch:
                writer.write(self._finished(batch))
        found.rejected = b"".join(rejected)
        return path, found

    def _row(self, line: Line, found: Tally) -> _Row:
        record = line.record
        if record is None:
            reason, message = line.reject or ("invalid_json", "")
            raise Reject(reason, message)
        found.shapes[tuple(record), tuple(map(type, record.values()))] += 1
        audit, response_ids = self.config.audit, None
        if is_tokenized(record, audit.columns):
            told = self.detokenizer.conversation(record, audit.columns)
            turns = [as_turn(message) for message in told.messages]
            conversation = Conversation(turns)
            response_ids = told.response_ids
            found.tokenized["same prompt" if told.same_prompt else "other prompt"] += 1
        else:
            conversation = read_conversation(record, audit.rules, self.columns)
        if conversation.used:
            found.rules.update(set(conversation.used))
        messages = [turn.as_dict() for turn in conversation.turns]
        responses = conversation.responses()
        last = responses[-1]
        asked = [turn.content or "" for turn in conversation.turns[:-1]]
        question = asked[-1] if asked else ""
        classes = [response_class(turn) for turn in responses]
        text = last.content or ""
        if text and _starts_alike(text, question) and folded(text) == folded(question):
            classes.append("echo")
        own_id, prompt = user_id(record, audit.columns.id), prompt_hash(messages)
        short = 0 < len(text) <= audit.repeated_max_chars
        short_text, numbers = self._shortened(text) if short else (None, None)
        row = {
            "row_id": line.row_id,
            "content_hash": digest(line.content),
            "source": line.source,
            "line": line.line,
            "id": own_id,
            "messages": orjson.dumps(messages).decode(),
            "prompt_hash": prompt,
            "turns": len(responses),
            "response_chars": len(text),
            "response_class": min(classes, key=RANKS.__getitem__) if classes[1:] else classes[0],
            "rules": sorted(set(conversation.used)) if conversation.used else [],
            "flagged": False,
            "response_key": key64(f"{last.reasoning}\n{text}" if last.reasoning else text),
            "short_text": short_text,
            "pattern": numbers,
            "script": script(question),
        }
        self._scan(line, conversation.turns, found)
        if response_ids is not None:
            row["response_tokens"] = len(response_ids)
        response = self.turns.text(last) if response_ids is None else None
        return _Row(row, response, "\n".join(asked).replace(MASK, ""))

    def _shortened(self, text: str) -> tuple[str | None, str | None]:
        """A short response as `repeated` compares it, and with its numbers as 0."""
        known = self._short.get(text)
        if known is None:
            known = (folded(text) or None, pattern(text))
            if len(self._short) < REMEMBERED:
                self._short[text] = known
        return known

    def _scan(self, line: Line, turns: list[Turn], found: Tally) -> None:
        raw = line.content
        given = [turn.content for turn in turns if turn.role != "assistant" and turn.content]
        if not raw.isascii() or b"\\u00" in raw:
            kinds = damage(raw, [turn.content for turn in turns if turn.content])
            if kinds:
                found.damage.update({"", *kinds})
                found.note("damage", f"{line.source}:{line.line}")
        if kinds := personal(given):  # whose row it is is nobody's business
            found.personal.update({"", *kinds})
        if any(beginning in raw for beginning in self.spelled) and (
            spelled := self.prompts.spelled(given)
        ):
            found.control.update({"", *spelled})
            found.note("control", f"{line.source}:{line.line}")

    def _finished(self, batch: list[_Row]) -> pa.RecordBatch:
        """The batch's rows with their lengths in tokens."""
        most = EXACT if self.large else 0
        estimated = [row for at, row in enumerate(batch) if at % 16 and len(row.prompt) < most]
        few = {id(row) for row in estimated}
        exact = [row for row in batch if id(row) not in few]
        for row, tokens in zip(exact, self._counted([row.prompt for row in exact]), strict=True):
            row.columns["prompt_tokens"] = tokens + self.overhead
        chars = sum(len(row.prompt) for row in exact)
        counted = sum(row.columns["prompt_tokens"] - self.overhead for row in exact)
        for row in estimated:
            tokens = round(len(row.prompt) * counted / max(chars, 1))
            row.columns["prompt_tokens"] = tokens + self.overhead
        rendered = [row for row in batch if isinstance(row.response, str)]
        texts = [str(row.response) for row in rendered]
        for row, tokens in zip(rendered, self._counted(texts), strict=True):
            row.columns["response_tokens"] = tokens
        return pa.RecordBatch.from_pylist([row.columns for row in batch], PART)

    def _counted(self, texts: list[str]) -> list[int]:
        """Tokens of rendered texts; short ones are remembered."""
        known = self._lengths
        unknown = list({t: None for t in texts if t not in known})
        fresh = dict(zip(unknown, map(len, self.prompts.encode(unknown)), strict=True))
        if len(known) < REMEMBERED:
            known.update((t, n) for t, n in fresh.items() if len(t) <= SHORT_CHARS)
        return [fresh[t] if t in fresh else known[t] for t in texts]


def _starts_alike(one: str, other: str) -> bool:
    return one.lstrip()[:8].casefold() == other.lstrip()[:8].casefold()


def user_id(record: dict[str, Any], column: str | None = None) -> str | None:
    """The user's own id as JSON text, so that 7 and "7" stay apart."""
    for key in (column,) if column else ("id", "uuid", "question_id"):
        if record.get(key) is not None:
            return orjson.dumps(record[key], default=str).decode()
    return None


def _rejected(line: Line, reject: Reject, found: Tally) -> bytes:
    found.rejects[reject.reason] += 1
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

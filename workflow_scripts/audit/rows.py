"""The audit's reading: input lines become rows, in as many processes as there are cores.

Each part of an input file is read by one process, which writes the part's rows to a file of its own
and returns what it counted. Parts are taken in the input's order, so nothing depends on who was
first.
"""

from pathlib import Path

import orjson
import pyarrow as pa

from workflow_scripts.audit.conversations import Conversations
from workflow_scripts.audit.lengths import RowLengths, UncountedRow
from workflow_scripts.audit.tally import Tally
from workflow_scripts.audit.turns import REMEMBERED, AssistantTurns
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import digest, key64
from workflow_scripts.input.conversation import prompt_hash
from workflow_scripts.input.ids import user_id
from workflow_scripts.input.lines import Line, read_part
from workflow_scripts.input.parts import Part
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.turn import Turn
from workflow_scripts.model.folder import context_limit
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.model.spellings import MASK
from workflow_scripts.tables.columns import AUDIT
from workflow_scripts.texts.classes import TRIVIAL, folded, pattern, response_class
from workflow_scripts.texts.hints import damage, personal
from workflow_scripts.texts.scripts import script

BATCH = 1024  # rows encoded at a time
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


class PartReader:
    """Reads parts of the input.

    Args:
        config: the run's configuration.
        prompts: the model's template and tokenizer.
        folder: where the rows of the parts go.
        large: whether the input is a large one, whose prompts' lengths may be estimated.
    """

    def __init__(self, config: Config, prompts: Prompts, folder: Path, large: bool = False):
        self.config = config
        self.prompts = prompts
        self.folder = folder
        self.conversations = Conversations(config.audit, prompts)
        self.turns = AssistantTurns(prompts)
        self.spelled = sorted({t[:2].encode() for t in prompts.added})  # how control tokens begin
        self.lengths = RowLengths(prompts, large, context_limit(config))
        self._short: dict[str, tuple[str | None, str | None]] = {}

    def read(self, part: Part) -> tuple[Path, Tally]:
        """Read one part; returns the file with its rows and what was counted."""
        path = self.folder / f"{digest(part.path)}-{part.number:06d}.arrow"
        found = Tally()
        rejected: list[bytes] = []
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, PART) as writer:
            batch: list[UncountedRow] = []
            for line in read_part(part, found.lines):
                try:
                    batch.append(self._row(line, found))
                except Reject as reject:
                    rejected.append(_rejected(line, reject, found, self.config.audit.columns.id))
                if len(batch) >= BATCH:
                    writer.write(self._finished(batch))
                    batch = []
            if batch:
                writer.write(self._finished(batch))
        found.rejected = b"".join(rejected)
        return path, found

    def _row(self, line: Line, found: Tally) -> UncountedRow:
        record = line.record
        if record is None:
            reason, message = line.reject or ("invalid_json", "")
            raise Reject(reason, message)
        audit = self.config.audit
        conversation, response_ids = self.conversations.read(line, record, found)
        given = conversation.given.columns()
        messages = [turn.as_dict() for turn in conversation.turns]
        responses = conversation.responses()
        last = responses[-1]
        asked = [turn.content or "" for turn in conversation.turns[:-1]]
        question = asked[-1] if asked else ""
        classes = [response_class(turn) for turn in responses]
        text = last.content or ""
        if text and _starts_alike(text, question) and folded(text) == folded(question):
            classes.append("echo")
        short = 0 < len(text) <= audit.repeated_max_chars and not last.tool_calls
        short_text, numbers = self._shortened(text) if short else (None, None)
        row = {
            "row_id": line.row_id,
            "content_hash": digest(line.content),
            "source": line.source,
            "line": line.line,
            "id": user_id(record, audit.columns.id),
            "messages": orjson.dumps(messages).decode(),
            **given,
            "prompt_hash": prompt_hash(messages, conversation.given),
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
        texts = [text for text in given.values() if text] + asked
        return UncountedRow(row, response, "\n".join(texts).replace(MASK, ""))

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
            spelled := self.prompts.spellings.found(given)
        ):
            found.control.update({"", *spelled})
            found.note("control", f"{line.source}:{line.line}")

    def _finished(self, batch: list[UncountedRow]) -> pa.RecordBatch:
        """The batch's rows with their lengths in tokens."""
        self.lengths.fill(batch)
        return pa.RecordBatch.from_pylist([row.columns for row in batch], PART)


def _starts_alike(one: str, other: str) -> bool:
    return one.lstrip()[:8].casefold() == other.lstrip()[:8].casefold()


def _rejected(line: Line, reject: Reject, found: Tally, column: str | None) -> bytes:
    found.rejects[reject.reason] += 1
    found.reject_examples.setdefault(reject.reason, f"{line.source}:{line.line}: {reject.message}")
    entry = {
        "row_id": line.row_id,
        "source": line.source,
        "line": line.line,
        "id": user_id(line.record, column) if line.record else None,
        "reason": reject.reason,
        "message": reject.message,
    }
    return orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)

"""The turns of a record in any of the forms that datasets use, before any rule is applied.

Another name for a column is an entry in one of the tuples of names. Another form is a function that
finds it and a line in `FORMS`. Another column that belongs to turns which stand elsewhere is a
function that adds it and a line in `BESIDE`. Roles, and how one list becomes turns, are in
`messages.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workflow_scripts.config.audit import Columns, Rules
from workflow_scripts.input.contents import kind_of, reasoning_of, text_of
from workflow_scripts.input.messages import (
    MessageReader,
    are_messages,
    are_pairs,
    are_texts,
    assistant_turn,
)
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.turn import Turn

LISTS = ("messages", "conversations", "conversation")
# Lists that are conversations only where nothing else is: the names are common.
OTHER_LISTS = ("items", "dialogue", "dialog", "turns", "data")
PROMPT_COLUMNS = ("prompt", "question", "query")
RESPONSE_COLUMNS = ("response", "completion", "answer", "output", "chosen")
SYSTEM_COLUMNS = ("system", "system_prompt")


@dataclass(slots=True)
class Record:
    """A record while its turns are looked for.

    Args:
        values: by column.
        columns: those that the configuration names.
        reader: reads a list of it.
        used: names of the declared rules that were applied.
    """

    values: dict[str, Any]
    columns: Columns
    reader: MessageReader
    used: list[str]

    def at(self, name: str) -> Any:
        """A column's value, None where there is none; a dotted name reaches into objects."""
        if name in self.values:
            return self.values[name]
        value: Any = self.values
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def first(self, names: Sequence[str]) -> tuple[str, Any]:
        """The first of the columns that is not null, with its value; else the first name."""
        found = ((name, self.at(name)) for name in names)
        return next((pair for pair in found if pair[1] is not None), (names[0], None))

    def forced(self, name: str) -> Any:
        """The value of a column that the configuration names.

        Raises:
            Reject: there is none, or a null.
        """
        value = self.at(name)
        if value is None:
            names = _some_names(self.values)
            raise Reject("missing_column", f"no column `{name}`, or null; columns: {names}")
        return value


@dataclass(slots=True)
class Found:
    """Turns, and the column `key` that they were found in. `asks`: they are a prompt, so that the
    response stands in a column beside it."""

    turns: list[Turn]
    key: str
    asks: bool = False


def read_turns(
    values: dict[str, Any], rules: Rules, columns: Columns, used: list[str]
) -> list[Turn]:
    """The turns of a record, as they are.

    Args:
        values: the record.
        rules: whether tool turns are kept.
        columns: columns that the configuration names, they count before any other.
        used: gets the names of the declared rules that were applied.

    Raises:
        Reject: there is no conversation, or one that cannot be read.
    """
    record = Record(values, columns, MessageReader(rules, used), used)
    found = next(filter(None, (form(record) for form in FORMS)), None)
    if found is None:
        raise _nothing(values)
    for add in BESIDE:
        found.turns = add(record, found)
    return found.turns


def _nothing(values: dict[str, Any]) -> Reject:
    for key in LISTS:
        if key in values:
            return Reject("null_conversation", f"`{key}` is null")
    for key in PROMPT_COLUMNS:
        if key in values:
            return Reject("bad_content", f"`{key}` is a null, not text")
    names = _some_names(values)
    return Reject("no_conversation", f"no known conversation or prompt column; columns: {names}")


def _some_names(values: dict[str, Any]) -> str:
    return ", ".join(sorted(values)[:8]) or "none"


# ---- forms: where the turns are -----------------------------------------------------------------


def _forced_messages(record: Record) -> Found | None:
    name = record.columns.messages
    return Found(record.reader.turns(record.forced(name), name), name) if name else None


def _forced_prompt(record: Record) -> Found | None:
    name = record.columns.prompt
    return Found(_asked(record, record.forced(name), name), name, asks=True) if name else None


def _messages(record: Record) -> Found | None:
    for key in LISTS:
        if (value := record.values.get(key)) is not None:
            return Found(record.reader.turns(value, key), key)
    return None


def _instruction(record: Record) -> Found | None:
    """Alpaca's form: an instruction, its input, and what was said before as pairs."""
    instruction = record.values.get("instruction")
    if not isinstance(instruction, str):
        return None
    if isinstance(given := record.values.get("instances"), list) and given:
        _take_instance(record, given)
    extra = record.values.get("input") or ""
    if not isinstance(extra, str):
        raise Reject("bad_content", f"`input` is a {type(extra).__name__}, not text")
    prompt = instruction + (f"\n\n{extra}" if extra else "")
    history = record.values.get("history")
    turns = record.reader.turns(history, "history") if are_pairs(history) else []
    turns = [*turns, Turn("user", text_of(prompt, "instruction"))]
    return Found(turns, "instruction", asks=True)


def _take_instance(record: Record, given: list[Any]) -> None:
    """Self-Instruct lists inputs with their outputs beside an instruction: the first counts."""
    first = given[0]
    if isinstance(first, dict) and not any(k in record.values for k in ("input", "output")):
        known = {key: first[key] for key in ("input", "output") if key in first}
        record.values = {**record.values, **known}
        if len(given) > 1:
            record.used.append("first_instance_taken")


def _prompt(record: Record) -> Found | None:
    for key in PROMPT_COLUMNS:
        if (value := record.values.get(key)) is not None:
            return Found(_asked(record, value, key), key, asks=True)
    return None


def _preferred(record: Record) -> Found | None:
    """Preference data without a prompt of its own: it is in `chosen`."""
    chosen = record.values.get("chosen")
    return Found(record.reader.turns(chosen, "chosen"), "chosen") if are_messages(chosen) else None


def _other_list(record: Record) -> Found | None:
    for key in OTHER_LISTS:
        value = record.values.get(key)
        if any(are(value) for are in (are_messages, are_pairs, are_texts)):
            return Found(record.reader.turns(value, key), key)
    return None


def _asked(record: Record, value: Any, key: str) -> list[Turn]:
    """A prompt: a text, or the messages before the response."""
    if are_messages(value):
        return record.reader.turns(value, key)
    if not isinstance(value, str):
        raise Reject("bad_content", f"`{key}` is a {kind_of(value)}, not text")
    return [Turn("user", text_of(value, key))]


# The first that finds turns counts.
FORMS: tuple[Callable[[Record], Found | None], ...] = (
    _forced_messages,
    _forced_prompt,
    _messages,
    _instruction,
    _prompt,
    _preferred,
    _other_list,
)

# ---- beside: what other columns add to the turns ------------------------------------------------


def _with_response(record: Record, found: Found) -> list[Turn]:
    """The response beside a prompt; one that the configuration names, beside any form."""
    forced = record.columns.response
    if not (forced or found.asks):
        return found.turns
    names = [forced] if forced else [name for name in RESPONSE_COLUMNS if name != found.key]
    name, value = record.first(names)
    if are_messages(value):
        answer = record.reader.turns(value, name)
        # `chosen` of preference data often repeats the prompt
        repeated = any(turn.role == "user" for turn in answer)
        return answer if repeated else found.turns + answer
    reasoning = reasoning_of(record.values)
    if column := record.columns.reasoning:
        thought = record.at(column)
        reasoning = None if thought is None else text_of(thought, column)
    if value is None and reasoning is None:
        return found.turns
    return [*found.turns, assistant_turn(value, name, reasoning)]


def _with_system(record: Record, found: Found) -> list[Turn]:
    """The system prompt beside any form; a system turn among the turns wins."""
    forced = record.columns.system
    name, value = record.first([forced] if forced else SYSTEM_COLUMNS)
    if not value:
        return found.turns
    text = text_of(value, name)
    if all(turn.role != "system" for turn in found.turns):
        return [Turn("system", text), *found.turns]
    if all(turn.content != text for turn in found.turns):
        record.used.append("system_column_ignored")
    return found.turns


# All of them, in this order.
BESIDE: tuple[Callable[[Record, Found], list[Turn]], ...] = (_with_response, _with_system)

"""The turns of a record in any of the forms that datasets use, before any rule is applied.

Another name for a column is an entry in one of the tuples of names. Another form is a function that
finds it and a line in `FORMS`. `read_turns` adds what stands beside the turns: what belongs to the
question (`question.py`), the response (`responses.py`), a system prompt. Roles, and how one list
becomes turns, are in `messages.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workflow_scripts.input.contents import text_of
from workflow_scripts.input.messages import are_messages, are_pairs, are_texts
from workflow_scripts.input.question import forced_prompt, join_choices, join_context
from workflow_scripts.input.record import Record, some_names
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.responses import with_response
from workflow_scripts.input.turn import Turn
from workflow_scripts.input.values import from_json, kind_of

LISTS = ("messages", "conversations", "conversation")
# Lists that are conversations only where nothing else is: the names are common.
OTHER_LISTS = ("items", "dialogue", "dialog", "turns", "data")
PROMPT_COLUMNS = ("prompt", "question", "query")
SYSTEM_COLUMNS = ("system", "system_prompt")


@dataclass(slots=True)
class Found:
    """Turns, and the column `key` that they were found in.

    Args:
        asks: they are a prompt, so that the response stands in a column beside it.
        joins: where contexts join the question, `before` or `after` it; choices do as well. Empty
            where nothing joins it.
    """

    turns: list[Turn]
    key: str
    asks: bool = False
    joins: str = ""


def read_turns(record: Record) -> list[Turn]:
    """The turns of a record, as they are.

    Raises:
        Reject: there is no conversation, or one that cannot be read.
    """
    found = next(filter(None, (form(record) for form in FORMS)), None)
    if found is None:
        raise _nothing(record.values)
    turns = found.turns
    joins = found.joins if turns and turns[-1].role == "user" else ""
    join_context(record, turns, joins)
    choices = join_choices(record, turns, joins)
    if record.columns.response or found.asks:
        turns = with_response(record, turns, found.key, choices)
    if "instances" in record.taken and "output" not in record.taken:  # another response won
        record.told.ignore(record.values, record.values.keys() - {"output"}, "instances[]")
    return _with_system(record, turns)


def _nothing(values: dict[str, Any]) -> Reject:
    for key in LISTS:
        if key in values:
            return Reject("null_conversation", f"`{key}` is null")
    for key in PROMPT_COLUMNS:
        if key in values:
            return Reject("bad_content", f"`{key}` is a null, not text")
    names = some_names(values)
    return Reject("no_conversation", f"no known conversation or prompt column; columns: {names}")


# ---- forms: where the turns are -----------------------------------------------------------------


def _forced_messages(record: Record) -> Found | None:
    name = record.columns.messages
    if not name:
        return None
    return Found(record.reader.turns(record.decoded(record.forced(name)), name), name)


def _forced_prompt(record: Record) -> Found | None:
    names = record.columns.prompts
    if not names:
        return None
    if len(names) > 1 or record.columns.prompt_template is not None:
        return Found([Turn("user", forced_prompt(record))], names[0], asks=True)
    return Found(_asked(record, record.forced(names[0]), names[0]), names[0], asks=True)


def _messages(record: Record) -> Found | None:
    for key in LISTS:
        if (value := record.take(key)) is not None:
            return Found(record.reader.turns(record.decoded(value), key), key)
    return None


def _instruction(record: Record) -> Found | None:
    """Alpaca's form: an instruction, its input, and what was said before as pairs."""
    instruction = record.values.get("instruction")
    if not isinstance(instruction, str):
        return None
    record.take("instruction")
    if isinstance(given := record.values.get("instances"), list) and given:
        _take_instance(record, given)
    extra = record.take("input") or ""
    if not isinstance(extra, str):
        raise Reject("bad_content", f"`input` is a {type(extra).__name__}, not text")
    prompt = instruction + (f"\n\n{extra}" if extra else "")
    turns = [*_history(record), Turn("user", text_of(prompt, "instruction"))]
    return Found(turns, "instruction", asks=True, joins="after")


def _take_instance(record: Record, given: list[Any]) -> None:
    """Self-Instruct lists inputs with their outputs beside an instruction: the first counts."""
    first = given[0]
    if isinstance(first, dict) and not any(k in record.values for k in ("input", "output")):
        known = {key: first[key] for key in ("input", "output") if key in first}
        record.values = {**record.values, **known}
        record.take("instances")
        for item in given:
            if isinstance(item, dict):
                record.told.ignore(item, known if item is first else (), "instances[]")
        if len(given) > 1:
            record.told.used.append("first_instance_taken")


def _prompt(record: Record) -> Found | None:
    for key in PROMPT_COLUMNS:
        if (value := record.take(key)) is not None:
            turns = _asked(record, value, key)
            before = _history(record) if len(turns) == 1 else []
            return Found([*before, *turns], key, asks=True, joins="before")
    return None


def _history(record: Record) -> list[Turn]:
    """What was said before a question, as pairs or messages."""
    value = from_json(record.values.get("history"))
    if not are_pairs(value) and not are_messages(value):
        return []
    return record.reader.turns(record.decoded(record.take("history")), "history")


def _preferred(record: Record) -> Found | None:
    """Preference data without a prompt of its own: it is in `chosen`."""
    if not are_messages(from_json(record.values.get("chosen"))):
        return None
    return Found(record.reader.turns(record.decoded(record.take("chosen")), "chosen"), "chosen")


def _other_list(record: Record) -> Found | None:
    for key in OTHER_LISTS:
        value = from_json(record.values.get(key))
        if any(are(value) for are in (are_messages, are_pairs, are_texts)):
            return Found(record.reader.turns(record.decoded(record.take(key)), key), key)
    return None


def _asked(record: Record, value: Any, key: str) -> list[Turn]:
    """A prompt: a text, or the messages before the response."""
    value = record.messages(value)
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

# ---- a system prompt beside any form ------------------------------------------------------------


def _with_system(record: Record, turns: list[Turn]) -> list[Turn]:
    """A system turn among the turns wins over a column."""
    forced = record.columns.system
    name, value = record.first([forced] if forced else SYSTEM_COLUMNS)
    if not value:
        return turns
    text = text_of(value, name, record.told)
    if all(turn.role != "system" for turn in turns):
        return [Turn("system", text), *turns]
    if all(turn.content != text for turn in turns):
        record.told.used.append("system_column_ignored")
    return turns

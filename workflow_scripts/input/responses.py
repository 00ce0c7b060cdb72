"""The old response beside a prompt: which column, and what its value says."""

from typing import Any

from workflow_scripts.input.contents import text_of
from workflow_scripts.input.messages import are_messages, are_texts, assistant_turn
from workflow_scripts.input.question import Choices, choice_named
from workflow_scripts.input.reasoning import reasoning_of, trace
from workflow_scripts.input.record import Record
from workflow_scripts.input.tool_calls import checked_calls, told_calls
from workflow_scripts.input.turn import Turn
from workflow_scripts.input.values import from_json, is_nothing, without_nulls

RESPONSE_COLUMNS = ("response", "completion", "answer", "output", "chosen", "answers")
CHOICE_RESPONSES = ("answerKey", "answer_key", "answer_idx", "answer_index")  # beside choices
ANSWERS = ("text", "value")  # where an object holds the texts of its answers


def with_response(record: Record, turns: list[Turn], key: str, choices: Choices) -> list[Turn]:
    """The turns with the response that a column holds; `key` is the prompt's own.

    Raises:
        Reject: the response cannot be read.
    """
    forced = record.columns.response
    names = [forced] if forced else [name for name in RESPONSE_COLUMNS if name != key]
    if choices and not forced:
        names += CHOICE_RESPONSES
    name, value = record.first(names)
    value = record.messages(value)
    if are_messages(value):
        answer = record.reader.turns(value, name)
        # `chosen` of preference data often repeats the prompt
        repeated = any(turn.role == "user" for turn in answer)
        return answer if repeated else turns + answer
    reasoning = _reasoning(record)
    if calls := _calls(record, value):
        if record.reader.rules.tool_turns != "regenerate":
            record.told.used.append("call_response_left_out")
            return turns
        record.told.used.append("tool_turns")
        return [*turns, Turn("assistant", None, reasoning, checked_calls(calls, name))]
    value = _answer(record, value, name)
    if choices and (text := choice_named(choices, value)) is not None:
        record.told.used.append("choice_as_answer")
        value = text
    if value is None and reasoning is None:
        return turns
    return [*turns, assistant_turn(value, name, reasoning, record.told)]


def _reasoning(record: Record) -> str | None:
    if column := record.columns.reasoning:
        return trace(record.take(column), column, record.told)
    reasoning, read = reasoning_of(record.values, "", record.told)
    record.taken |= read
    return reasoning


def _calls(record: Record, value: Any) -> list[Any] | None:
    """The calls that a response holds: as objects, or beside tools as JSON text."""
    found = from_json(value) if record.has_tools else value
    if not told_calls(found):
        return None
    calls = found if isinstance(found, list) else [found]
    return without_nulls(calls) if found is value else calls


def _answer(record: Record, value: Any, name: str) -> Any:
    """A response's text or parts; of several answers the first."""
    if name.rsplit(".", 1)[-1] == "answers":
        value = record.decoded(value)
    elif not isinstance(value, dict):
        return value
    if isinstance(value, dict):
        key = next((key for key in ANSWERS if key in value), None)
        if key is None:
            return value
        record.told.ignore(value, {key}, name)
        value = value[key]
    if are_texts(value):
        if len(value) > 1:
            record.told.used.append("first_answer_taken")
        return text_of(value[0], name)
    return None if is_nothing(value) else value

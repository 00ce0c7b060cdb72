"""Sets that training must not see, read once."""

from typing import Any

from workflow_scripts.config.audit import Audit, Rules
from workflow_scripts.input.conversation import read_conversation
from workflow_scripts.input.files import input_files
from workflow_scripts.input.lines import read_lines
from workflow_scripts.input.reject import Reject
from workflow_scripts.texts.contamination import HeldOut


def held_out_sets(settings: Audit) -> HeldOut:
    """The sets of `audit.held_out`, read.

    Raises:
        ConfigError: a pattern of it matches nothing.
    """
    held_out = HeldOut(settings.contamination_ngram)
    for path in input_files(settings.held_out):
        for line in read_lines(path):
            if line.record is not None:
                held_out.add(path, whole_text(line.record))
    return held_out


def whole_text(record: dict[str, Any]) -> str:
    """A held-out row's texts: its conversation, or all its strings where it has none."""
    try:
        turns = read_conversation(record, Rules()).turns
    except Reject:
        return "\n".join(value for value in record.values() if isinstance(value, str))
    return "\n".join(turn.content for turn in turns if turn.content)

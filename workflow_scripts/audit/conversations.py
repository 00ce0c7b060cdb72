"""The audit's first look at a record: its conversation, and what shows only while it is read."""

from typing import Any

from workflow_scripts.audit.patterns import Patterns
from workflow_scripts.audit.tally import Tally
from workflow_scripts.audit.turns import as_turn
from workflow_scripts.config.audit import Audit
from workflow_scripts.input.conversation import FOUND, Conversation, read_conversation
from workflow_scripts.input.lines import Line
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.tokenized import Detokenizer, is_tokenized, tokenized_columns
from workflow_scripts.input.values import value_at
from workflow_scripts.model.prompts import REFUSED, Prompts


class Conversations:
    """Brings records to conversations that the chat template takes.

    Args:
        settings: the configuration's `audit`.
        prompts: the model's template and tokenizer.
    """

    def __init__(self, settings: Audit, prompts: Prompts):
        self.rules = settings.rules
        self.forced = settings.columns
        self.columns = FOUND if settings.columns == FOUND else settings.columns
        self.named = settings.columns.named
        self.tokenized = tokenized_columns(settings.columns)
        self.patterns = Patterns(prompts)
        self.detokenizer = Detokenizer(prompts)

    def read(
        self, line: Line, record: dict[str, Any], found: Tally
    ) -> tuple[Conversation, list[int] | None]:
        """A record's conversation, and its response's ids where it has them; what is counted of
        both goes to `found`.

        Raises:
            Reject: there is none, or the chat template refuses it.
        """
        names, response_ids = tuple(record), None
        found.shapes[names, tuple(map(type, record.values()))] += 1
        for path in self.named:
            found.keys.named[path] += value_at(record, path) is not None
        if is_tokenized(record, self.forced):
            told = self.detokenizer.conversation(record, self.forced)
            turns = [as_turn(message) for message in told.messages]
            conversation = Conversation(turns, taken=self.tokenized)
            response_ids = told.response_ids
            found.tokenized["same prompt" if told.same_prompt else "other prompt"] += 1
        else:
            conversation = read_conversation(record, self.rules, self.columns)
        if conversation.used:
            found.rules.update(set(conversation.used))
        where = f"{line.source}:{line.line}"
        found.keys.see(record, names, conversation.taken, conversation.ignored, where)
        try:
            left_out = self.patterns.check(conversation)
        except Reject as reject:
            found.refused[reject.message.removeprefix(REFUSED)] += 1
            raise
        for kind in left_out:
            found.left_out[kind] += 1
            found.note(f"left out: {kind}", where)
        return conversation, response_ids

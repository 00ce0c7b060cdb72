"""One conversation out of any of the forms that datasets use, or the reason why not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workflow_scripts.config.audit import Columns, Rules
from workflow_scripts.identity import digest
from workflow_scripts.input.dialects import SYSTEM_COLUMNS, read_turns
from workflow_scripts.input.ids import ID_COLUMNS
from workflow_scripts.input.media import MEDIA_COLUMNS, check_columns, is_file, mark_in
from workflow_scripts.input.messages import MessageReader
from workflow_scripts.input.question import CHOICE_COLUMNS, CONTEXT_COLUMNS
from workflow_scripts.input.reasoning import split_marked, take
from workflow_scripts.input.record import Record
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.tool_calls import unfolded
from workflow_scripts.input.tools import DOCUMENT_COLUMNS, TOOL_COLUMNS, documents_of, tools_of
from workflow_scripts.input.turn import Turn
from workflow_scripts.input.values import Told
from workflow_scripts.model.given import NOTHING, Given

FOUND = Columns()  # no column is forced
# Columns that a plain row does not have: something stands beside its messages.
BESIDE = MEDIA_COLUMNS.union(
    TOOL_COLUMNS, DOCUMENT_COLUMNS, SYSTEM_COLUMNS, CONTEXT_COLUMNS, CHOICE_COLUMNS
)
PLAIN = frozenset({"messages", *ID_COLUMNS})  # the columns that a plain row is made of
NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class Conversation:
    """An optional system turn, then user and assistant turns in strict alternation, ending with
    an assistant turn (content None where the input has no response). Before an assistant turn
    there can be assistant turns that call tools, each with its tool turns.

    Args:
        used: names of the declared rules that were applied.
        given: tools and documents.
        taken: columns of the record that a rule used, or that are known to belong to it, as an id.
        ignored: keys below them that none used, as `messages[].weight`.
        asks_calls: whether turns that call tools are asked as well.
    """

    turns: list[Turn]
    used: list[str] = field(default_factory=list)
    given: Given = NOTHING
    taken: frozenset[str] = NONE
    ignored: frozenset[str] = NONE
    asks_calls: bool = False

    def responses(self) -> list[Turn]:
        """The assistant turns that are asked."""
        turns = (turn for turn in self.turns if turn.role == "assistant")
        return [turn for turn in turns if self.asks_calls or not turn.tool_calls]


def read_conversation(
    record: dict[str, Any], rules: Rules, columns: Columns = FOUND
) -> Conversation:
    """Bring a record to the one internal form. A null counts as an absent key.

    Raises:
        Reject: with the reason class that the audit counts.
    """
    told = Told()
    if columns is FOUND and (turns := _plain(record)):
        text = turns[1].content or ""
        if "think>" in text or text.lstrip()[:1] in ("<", "["):
            _split_reasoning(turns[1], rules, told)
        return Conversation(turns, told.used, NOTHING, PLAIN)
    check_columns(record)
    row = Record(record, columns, MessageReader(rules, told), told)
    tools = _given(row, columns.tools, TOOL_COLUMNS, tools_of)
    documents = _given(row, columns.documents, DOCUMENT_COLUMNS, documents_of)
    row.has_tools = tools is not None
    turns = read_turns(row)
    for place, value in row.reader.tools:
        if tools is None:
            tools = tools_of(value, place, told)
        else:
            where, _, key = place.rpartition(".")
            told.ignore({key: value}, (), where)
    for path in (columns.id,) if columns.id else ID_COLUMNS:
        row.take(path)
    turns = _ordered(unfolded(turns, told), rules, told)
    given = Given(tools, documents) if tools or documents else NOTHING
    taken = frozenset(row.tops() & record.keys())
    asks_calls = rules.tool_turns == "regenerate"
    return Conversation(turns, told.used, given, taken, frozenset(told.ignored), asks_calls)


def _given(
    row: Record,
    forced: str | None,
    names: Sequence[str],
    read: Callable[[Any, str, Told], list[Any] | None],
) -> list[Any] | None:
    """What a column gives the template: the forced one, or the first that holds something."""
    found = row.filled([forced] if forced else names)
    return read(found[1], found[0], row.told) if found else None


def _plain(record: dict[str, Any]) -> list[Turn] | None:
    """The form that nearly all rows have, in a tenth of the time: one question and one answer in
    `messages`, nothing to decide. None for any other row."""
    turns = record.get("messages")
    if not (isinstance(turns, list) and len(turns) == 2):
        return None
    if not BESIDE.isdisjoint(record) and any(record.get(key) is not None for key in BESIDE):
        return None
    one, two = turns
    if not (isinstance(one, dict) and isinstance(two, dict) and len(one) == len(two) == 2):
        return None
    asked, answer = one.get("content"), two.get("content")
    if one.get("role") != "user" or two.get("role") != "assistant":
        return None
    if not (isinstance(asked, str) and isinstance(answer, str) and asked.strip()):
        return None
    if not (_is_unicode(asked) and _is_unicode(answer)):
        return None
    if mark_in(asked) or (len(record) > 1 and any(map(is_file, record.values()))):
        return None
    return [Turn("user", asked), Turn("assistant", answer)]


def _is_unicode(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _ordered(turns: list[Turn], rules: Rules, told: Told) -> list[Turn]:
    """Apply the declared rules until the turns alternate."""
    used = told.used
    head: list[Turn] = []
    rest = list(turns)
    while rest and rest[0].role == "system":
        turn = rest.pop(0)
        if head:
            _declared(rules.second_system, "second_system", "a second system turn", used)
            head[0].content = f"{head[0].content}\n\n{turn.content}"
        else:
            head.append(Turn(turn.role, turn.content))
    out: list[Turn] = []
    for turn in rest:
        if turn.role == "user" and (mark := mark_in(turn.content or "")):
            what = f"user turn {sum(t.role == 'user' for t in out) + 1} has the mark {mark}"
            raise Reject("not_text", f"{what}, where an image or the like stood")
        _place(turn, out, rules, used)
    users = [turn for turn in out if turn.role == "user"]
    if not users:
        raise Reject("no_user_turn", "the conversation has no user turn")
    for turn in users:
        if not (turn.content or "").strip():
            raise Reject("empty_prompt", "a user turn is empty or only white space")
    if out[-1].role != "assistant":
        out.append(Turn("assistant", None))
    if out[-1].tool_calls and rules.tool_turns != "regenerate":
        used.append("trailing_call_dropped")
        while out and (out[-1].role != "assistant" or out[-1].tool_calls):
            out.pop()
        if not out:
            raise Reject("only_tool_calls", "every assistant turn is a call, none is to answer")
    for turn in out:
        if turn.role == "assistant":
            _split_reasoning(turn, rules, told)
    if head and not (head[0].content or "").strip():
        head = []
        used.append("empty_system_dropped")
    return head + out


def _place(turn: Turn, out: list[Turn], rules: Rules, used: list[str]) -> None:
    """Add a turn to those before it."""
    last = out[-1] if out else None
    previous = last.role if last else None
    called = bool(last and last.tool_calls)
    if turn.role == "system":
        raise Reject("system_in_the_middle", "a system turn after the first other turn")
    if turn.role == "assistant" and last is None:
        what = "the first turn is an assistant's"
        _declared(rules.leading_assistant, "leading_assistant", what, used)
    elif turn.role == "tool":
        if not called and previous != "tool":
            what = "a tool turn without a call before it"
            if previous == "assistant":
                what += ", or one in its text in a form that is not known (docs/inputs.md)"
            raise Reject("tool_order", what)
        out.append(turn)
    elif called and not turn.tool_calls:
        raise Reject("tool_order", f"a call, then no tool turn but one of the {turn.role}")
    elif turn.role == "user" and previous == "tool":
        raise Reject("tool_order", "a tool turn, then no assistant turn but one of the user")
    elif last and turn.role == previous == "user":
        _declared(rules.repeated_user, "repeated_user", "two user turns in a row", used)
        last.content = f"{last.content}\n\n{turn.content}"
    elif last and turn.role == previous == "assistant":
        if called:
            used.append("parallel_calls_joined")
        else:
            what = "two assistant turns in a row"
            _declared(rules.repeated_assistant, "repeated_assistant", what, used)
        if rules.repeated_assistant == "last" and not called:
            out[-1] = turn
        else:
            out[-1] = _joined(last, turn)
    else:
        out.append(turn)


def _joined(one: Turn, two: Turn) -> Turn:
    texts = [t for t in (one.content, two.content) if t]
    content = "\n\n".join(texts) if texts else two.content
    reasons = [t for t in (one.reasoning, two.reasoning) if t]
    calls = [*(one.tool_calls or []), *(two.tool_calls or [])]
    return Turn("assistant", content, "\n\n".join(reasons) or None, calls or None)


def _declared(choice: str, name: str, what: str, used: list[str]) -> None:
    if choice == "reject":
        raise Reject(name, f"{what}; audit.rules.{name} is `reject`")
    used.append(name)


def _split_reasoning(turn: Turn, rules: Rules, told: Told) -> None:
    """Reasoning between a model's marks goes to its own field. Only a leading mark counts: marks
    inside an answer are the answer's text."""
    text = turn.content
    if text is None or turn.reasoning is not None or split_marked(turn, told):
        return
    if text.count("</think>") == 1 and "<think>" not in text:
        what = "an old response closes a reasoning that it never opened"
        _declared(rules.reasoning_closer_only, "reasoning_closer_only", what, told.used)
        before, _, after = text.partition("</think>")
        take(turn, before, after, told)


def asked(messages: list[dict[str, Any]]) -> str:
    """The user's texts of a conversation."""
    return "\n".join(m["content"] for m in messages if m["role"] == "user" and m["content"])


def prompt_hash(messages: list[dict[str, Any]], given: Given = NOTHING) -> str:
    """Hash of the system and user texts, tools and documents: equal for conversations that ask
    the same."""
    parts = [f"{m['role']}\n{m['content']}" for m in messages if m["role"] != "assistant"]
    beside = [f"{name}\n{text}" for name, text in given.columns().items() if text]
    return digest(*parts, *beside)

"""Whatever key is deleted from a row, something that is told of the row changes."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.made.conversations import ALL, KEEP, RULES
from workflow_scripts.config.audit import Columns, Rules
from workflow_scripts.input.conversation import FOUND, Conversation, read_conversation
from workflow_scripts.input.ids import user_id
from workflow_scripts.input.reject import Reject

Path = tuple[str | int, ...]

WORD = st.sampled_from(["cold", "a b", "Ten.", "x" * 30])
VALUE = WORD | st.integers(0, 3) | st.just({"k": 1})
EXTRA = st.dictionaries(
    st.sampled_from(["weight", "source", "cache_control", "name", "label", "title", "score"]),
    VALUE,
    max_size=2,
)


def made(*parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of all the keys of several, those of the first winning."""
    return st.tuples(EXTRA, *reversed(parts)).map(merged)


def merged(parts: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def optional(**columns: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=columns)


PART = made(st.fixed_dictionaries({"type": st.just("text"), "text": WORD}))
CONTENT = WORD | st.lists(PART | WORD, min_size=1, max_size=2)


def reasonings(word: str) -> st.SearchStrategy[Any]:
    """Reasonings of a text of their own: of two that are equal, either could be deleted."""
    return (
        st.sampled_from([word, [word, "so"], "on", True, 3])
        | made(st.just({"content": word}))
        | st.lists(made(st.just({"type": "reasoning.text", "text": word})), min_size=1, max_size=2)
    )


DETAILS = st.lists(
    made(st.just({"type": "reasoning.text", "text": "c"}))
    | made(st.fixed_dictionaries({"type": st.just("reasoning.encrypted"), "data": WORD})),
    min_size=1,
    max_size=2,
)
FUNCTION = made(
    st.fixed_dictionaries({"name": st.just("f"), "parameters": st.just({"enum": [None, "a"]})})
)
TOOL = FUNCTION | made(st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTION}))
TOOLS: st.SearchStrategy[Any] = TOOL | st.lists(TOOL, min_size=1, max_size=2)
TOOLS |= TOOLS.map(json.dumps)
DOCUMENTS = st.lists(WORD | made(st.fixed_dictionaries({"text": WORD})), min_size=1, max_size=2)
USER = made(st.fixed_dictionaries({"role": st.just("user"), "content": CONTENT}))
SYSTEM = made(
    st.fixed_dictionaries({"role": st.just("system"), "content": CONTENT}),
    optional(tools=TOOLS),
)
ANSWER = made(
    st.fixed_dictionaries({"role": st.just("assistant"), "content": CONTENT}),
    optional(
        reasoning_content=reasonings("a"), reasoning=reasonings("b"), reasoning_details=DETAILS
    ),
)
CALL = made(
    st.fixed_dictionaries({"function": st.just({"name": "f", "arguments": {"a": 1}})}),
    optional(id=st.just("c1")),
)
CALLS = made(
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "tool_calls": st.lists(CALL, min_size=1, max_size=2)}
    ),
    optional(content=WORD, reasoning_content=reasonings("a")),
)
RESULT = made(
    st.fixed_dictionaries({"role": st.just("tool"), "content": WORD | st.just({"k": 1})}),
    optional(name=st.just("f"), tool_call_id=st.just("c1")),
)
TURNS = st.sampled_from(["ua", "sua", "uaua", "u", "uctau", "sucttaua"]).flatmap(
    lambda roles: st.tuples(
        *[{"u": USER, "a": ANSWER, "s": SYSTEM, "c": CALLS, "t": RESULT}[role] for role in roles]
    ).map(list)
)
CONTEXT = (
    WORD
    | st.lists(WORD, min_size=1, max_size=2)
    | made(st.fixed_dictionaries({"contexts": st.lists(WORD, min_size=1)}))
    | st.just({"title": ["T"], "sentences": [["One.", "Two."]]})
)
CHOICES = (
    st.just(["red", "blue"])
    | made(st.just({"text": ["red", "blue"], "label": ["1", "2"]}))
    | st.just({"A": "red", "B": "blue"})
    | st.just([{"key": "P", "value": "red"}, {"key": "Q", "value": "blue", "note": "n"}])
)
ANSWERS = (
    st.just({"text": ["Ten.", "Ten"], "answer_start": [3, 4]})
    | st.just(["Ten."])
    | st.just([{"name": "f", "arguments": {"a": 1}}])
)
BESIDE = optional(
    id=st.integers(0, 9),
    tools=TOOLS,
    functions=TOOLS,
    documents=DOCUMENTS,
    context=CONTEXT,
    passage=CONTEXT,
    choices=CHOICES,
    system=WORD,
    reasoning=reasonings("b"),
    answers=ANSWERS,
    response=WORD,
    answer=st.sampled_from(["A", 1, "red"]),
    history=st.just([["hi", "hello"]]),
    meta=st.just({"id": 3, "url": "u"}),
    examples=WORD,
)
QUESTION = (
    st.fixed_dictionaries({"prompt": WORD})
    | st.fixed_dictionaries({"question": WORD})
    | st.fixed_dictionaries({"instruction": WORD}, optional={"input": WORD})
    | st.just({"instruction": "Add.", "instances": [{"input": "1", "output": "2"}, {"input": "3"}]})
    | st.fixed_dictionaries({"messages": TURNS})
    | st.fixed_dictionaries({"conversations": TURNS})
    | st.fixed_dictionaries({"chosen": TURNS})
)
RECORD = made(QUESTION, BESIDE)
COLUMNS = st.sampled_from([FOUND, Columns(id="meta.id"), Columns(system="meta.url")])
# Rules that leave a whole column or turn out say so by their name.
LEFT_OUT = {"call_response_left_out", "trailing_call_dropped", "leading_assistant"}


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The keys of all objects in a value that hold something."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(value, dict) and item not in (None, "", [], {}):
            yield (*path, key)
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))


def without(record: dict[str, Any], path: Path) -> dict[str, Any]:
    changed = copy.deepcopy(record)
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


def told(record: dict[str, Any], rules: Rules, columns: Columns) -> Any:
    """All that is told of a row: its prompt and response, or its reject, and what was used."""
    try:
        found = read_conversation(record, rules, columns)
    except Reject as reject:
        return reject.reason, reject.message
    turns = [turn.as_dict() for turn in found.turns]
    unused = record.keys() - found.taken
    own_id = user_id(record, columns.id)
    return (
        turns,
        found.given,
        found.used,
        found.ignored,
        found.taken & record.keys(),
        unused,
        own_id,
    )


def is_listed(path: Path, found: Conversation) -> bool:
    """Whether a key is told as unused or ignored, by itself or with what it stands in."""
    names = [str(path[0])]
    for key in path[1:]:
        names.append(names[-1] + ("[]" if isinstance(key, int) else f".{key}"))
    return path[0] not in found.taken or not found.ignored.isdisjoint(names)


@given(RECORD, st.sampled_from([RULES, KEEP, ALL]), COLUMNS)
def test_every_key_counts_or_is_listed(
    record: dict[str, Any], rules: Rules, columns: Columns
) -> None:
    try:
        found = read_conversation(copy.deepcopy(record), rules, columns)
    except Reject:
        assume(False)
        raise
    assume(LEFT_OUT.isdisjoint(found.used))
    before = told(record, rules, columns)
    for path in places(record):
        if path[-1] == "type":  # tells the shape of what stands beside it
            continue
        if not is_listed(path, found):
            assert told(without(record, path), rules, columns) != before, path

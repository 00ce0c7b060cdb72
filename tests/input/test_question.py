"""What belongs to a question and stands in columns beside it."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tests.made.conversations import RULES, assistant, reason, rejected, user
from workflow_scripts.config.audit import Columns
from workflow_scripts.input.conversation import Conversation, read_conversation

Q, A = "What holds the bridge?", "Four ropes"
TEXT = "Four ropes hold it."


def read(record: dict[str, Any], **columns: Any) -> Conversation:
    return read_conversation(record, RULES, Columns(**columns))


def asked(record: dict[str, Any], **columns: Any) -> str | None:
    return read(record, **columns).turns[0].content


def answer(record: dict[str, Any], **columns: Any) -> str | None:
    return read(record, **columns).turns[-1].content


# ---- contexts ----


@pytest.mark.parametrize(
    "column", ["context", "passage", "paragraph", "article", "background", "passages", "contexts"]
)
def test_a_context_stands_before_the_question(column: str) -> None:
    for name in ("prompt", "question", "query"):
        record = {name: Q, column: TEXT, "answer": A}
        found = read(record)
        assert found.turns[0].content == f"{TEXT}\n\n{Q}"
        assert found.used == ["context_joined"] and found.taken == set(record)


def test_beside_an_instruction_it_follows() -> None:
    record = {"instruction": Q, "context": TEXT, "response": A}  # Dolly
    assert asked(record) == f"{Q}\n\n{TEXT}"
    assert asked({**record, "input": "Briefly."}) == f"{Q}\n\nBriefly.\n\n{TEXT}"
    empty = read({**record, "context": ""})
    assert empty.turns[0].content == Q and empty.used == [] and "context" in empty.taken


CONTEXTS: dict[str, tuple[Any, str]] = {
    "texts": (["One.", "Two."], "One.\n\nTwo."),
    "titles and sentences": (
        {"title": ["A", "B"], "sentences": [["One.", " Two."], ["Three."]]},
        "A\nOne. Two.\n\nB\nThree.",
    ),
    "objects": ([{"title": "A", "text": "One."}, {"text": "Two."}], "A\nOne.\n\nTwo."),
    "an object": ({"text": "One."}, "One."),
    "an object of texts": ({"contexts": ["One.", "Two."]}, "One.\n\nTwo."),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_shapes_of_a_context(name: str) -> None:
    value, text = CONTEXTS[name]
    assert asked({"question": Q, "context": value, "answer": A}) == f"{text}\n\n{Q}"


@pytest.mark.parametrize(
    "value", [3, [[1]], {"a": "b"}, {"title": ["A"], "sentences": []}, [{"title": "A"}], ["x", 1]]
)
def test_other_shapes_are_left_and_reported(value: Any) -> None:
    found = read({"question": Q, "context": value, "answer": A})
    assert found.turns[0].content == Q and found.taken == {"question", "answer"}


def test_keys_beside_a_contexts_text_are_listed() -> None:
    found = read({"question": Q, "context": {"contexts": ["One."], "labels": ["X"]}})
    assert found.ignored == {"context.labels"}


def test_a_context_that_the_prompt_holds() -> None:
    record = {"prompt": f"Read this: {TEXT} {Q}", "context": TEXT, "answer": A}
    found = read(record)
    assert found.turns[0].content == record["prompt"] and found.used == ["context_in_prompt"]
    chat = {"messages": [user(f"{TEXT}\n{Q}"), assistant(A)], "context": TEXT}
    assert read(chat).used == ["context_in_prompt"] and read(chat).taken == set(chat)


def test_a_context_beside_messages_is_not_joined() -> None:
    chat = {"messages": [user(Q), assistant(A)], "context": TEXT}
    found = read(chat)
    assert found.turns[0].content == Q and found.taken == {"messages"}


def test_a_prompt_of_messages_gets_its_context_in_the_last_question() -> None:
    turns = [user("hi"), assistant("hello"), user(Q)]
    found = read({"prompt": turns, "context": TEXT, "answer": A})
    assert [turn.content for turn in found.turns] == ["hi", "hello", f"{TEXT}\n\n{Q}", A]


def test_examples_are_not_joined() -> None:
    found = read({"question": Q, "examples": ["Q: a? A: b"], "answer": A})
    assert found.turns[0].content == Q and "examples" not in found.taken


# ---- choices ----

PLANETS = "Which planet is largest?\n\nA. Mars\nB. Jupiter"


@pytest.mark.parametrize(
    "choices",
    [
        ["Mars", "Jupiter"],
        {"text": ["Mars", "Jupiter"], "label": ["A", "B"]},
        {"A": "Mars", "B": "Jupiter"},
        [{"key": "A", "value": "Mars"}, {"key": "B", "value": "Jupiter"}],
        [{"label": "A", "text": "Mars"}, {"label": "B", "text": "Jupiter"}],
        json.dumps(["Mars", "Jupiter"]),
    ],
)
def test_choices_are_lettered_lines(choices: Any) -> None:
    for column in ("choices", "options"):
        for old in ("Jupiter", "B", "b", "(B)", "B.", 1, "1"):
            record = {"question": "Which planet is largest?", column: choices, "answer": old}
            found = read(record)
            assert [turn.content for turn in found.turns] == [PLANETS, "Jupiter"]
            assert "choices_joined" in found.used and found.taken == set(record)
            assert ("choice_as_answer" in found.used) == (old != "Jupiter")


def test_choices_follow_the_context_and_the_question() -> None:
    record = {"question": "Which?", "choices": ["a", "b"], "passage": "Text.", "answer": 0}
    assert asked(record) == "Text.\n\nWhich?\n\nA. a\nB. b"
    assert answer(record) == "a"


def test_own_labels_stay() -> None:
    choices = {"text": ["Mars", "Jupiter"], "label": ["1", "2"]}
    record = {"question": "Which?", "choices": choices, "answerKey": "2"}
    assert asked(record) == "Which?\n\n1. Mars\n2. Jupiter" and answer(record) == "Jupiter"


def test_an_answer_that_is_a_choice_is_no_index() -> None:
    record = {"question": "1+1?", "choices": ["1", "2", "0"], "answer": "2"}
    assert answer(record) == "2" and answer({**record, "answer": 2}) == "0"
    assert reason({**record, "answer": 7}) == "bad_content"
    assert answer({**record, "answer": "None of them."}) == "None of them."


@pytest.mark.parametrize(
    "question",
    [
        "Which?\nA. Mars\nB. Jupiter",
        "Which? (A) Mars (B) Jupiter",
        "Which?\n- Mars\n- Jupiter\nThink.",
        "Which?\nA) Mars\nB) Jupiter\nAnswer:",
    ],
)
def test_choices_that_the_question_holds(question: str) -> None:
    record = {"question": question, "choices": ["Mars", "Jupiter"], "answer": 1}
    found = read(record)
    assert found.turns[0].content == question and found.turns[1].content == "Jupiter"
    assert found.used == ["choices_in_prompt", "choice_as_answer"]
    chat = {"messages": [user(question), assistant("B")], "choices": ["Mars", "Jupiter"]}
    assert read(chat).used == ["choices_in_prompt"] and read(chat).turns[1].content == "B"


def test_a_question_that_names_its_choices_still_gets_them() -> None:
    record = {"question": "Which is larger, Mars or Jupiter?", "choices": ["Mars", "Jupiter"]}
    assert read(record).used == ["choices_joined"]


@pytest.mark.parametrize(
    "value", [3, "a ) 38 , b ) 27", [1, 2], {"text": ["a"], "label": []}, {"AB": "x"}]
)
def test_other_shapes_of_choices_are_left_and_reported(value: Any) -> None:
    found = read({"question": Q, "options": value, "answer": A})
    assert found.turns[0].content == Q and found.taken == {"question", "answer"}


# ---- answers ----


@pytest.mark.parametrize(
    ("answers", "used"),
    [
        ({"text": [A], "answer_start": [0]}, []),
        ({"text": [A, "ropes"]}, ["first_answer_taken"]),
        ([A], []),
        ([A, "ropes"], ["first_answer_taken"]),
        (A, []),
        (json.dumps([A]), ["json_text_decoded"]),
    ],
)
def test_the_first_of_the_answers_counts(answers: Any, used: list[str]) -> None:
    found = read({"question": Q, "answers": answers})
    assert found.turns[1].content == A and found.used == used
    assert read({"question": Q, "answers": answers, "answer": "x"}).turns[1].content == "x"


def test_no_answers() -> None:
    nothing: list[Any] = [{"text": [], "answer_start": []}, [], None]
    for answers in nothing:
        assert answer({"question": Q, "answers": answers}) is None


# ---- columns that the configuration names ----


def test_a_prompt_of_several_columns() -> None:
    record = {"meta": {"story": TEXT}, "q": Q, "hints": ["One.", "Two."], "answer": A}
    assert asked(record, prompt=["meta.story", "q"]) == f"{TEXT}\n\n{Q}"
    assert asked(record, prompt=["q", "hints"]) == f"{Q}\n\nOne.\n\nTwo."
    assert read(record, prompt=["meta.story", "q"]).taken == {"meta", "q", "answer"}
    why, message = rejected(record, columns=Columns(prompt=["q", "no"]))
    assert why == "missing_column" and message.startswith("no column `no`")
    assert reason({**record, "q": 3}, columns=Columns(prompt=["meta.story", "q"])) == "bad_content"


def test_a_prompt_template() -> None:
    record = {"meta": {"story": "{q}"}, "q": Q, "answer": A}
    template = "Story: {meta.story} {{as told}}\nQ: {q}\n{q}"
    assert asked(record, prompt=["q", "meta.story"], prompt_template=template) == (
        f"Story: {{q}} {{as told}}\nQ: {Q}\n{Q}"
    )
    assert asked(record, prompt="q", prompt_template="{q} Briefly.") == f"{Q} Briefly."


def test_with_a_forced_prompt_nothing_else_is_joined() -> None:
    record = {"question": Q, "context": TEXT, "choices": ["a", "b"], "answer": A}
    found = read(record, prompt="question")
    assert found.turns[0].content == Q and found.taken == {"question", "answer"}


@pytest.mark.parametrize(
    ("prompt", "template", "told"),
    [
        (["a", "b"], "{a}", "does not place `b` of `prompt`"),
        (["a"], "{a} {c}", "places `c`, which `prompt` does not name"),
        ("a", "{a} {", "single brace"),
        ("a", "}{a}", "single brace"),
        (None, "{a}", "needs `prompt`"),
        ([], None, "at least 1 item"),
    ],
)
def test_templates_that_do_not_fit(prompt: Any, template: str | None, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Columns(prompt=prompt, prompt_template=template)


# ---- lists as JSON text ----

CHAT = [user("hi"), assistant("hello")]
SHAREGPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": json.dumps(CHAT)},
        {"conversations": json.dumps(SHAREGPT)},
        {"conversation": json.dumps([["hi", "hello"]])},
        {"chosen": json.dumps(CHAT)},
        {"turns": json.dumps(CHAT)},
        {"prompt": json.dumps(CHAT[:1]), "completion": json.dumps(CHAT[1:])},
        {"prompt": "hi", "chosen": json.dumps(CHAT)},
        {"messages": [json.dumps(turn) for turn in CHAT]},
    ],
    ids=str,
)
def test_lists_as_text(record: dict[str, Any]) -> None:
    found = read(record)
    assert [turn.content for turn in found.turns] == ["hi", "hello"]
    assert set(found.used) == {"json_text_decoded"} and found.taken == set(record)


def test_a_history_beside_a_question() -> None:
    for history in ([["a", "b"]], json.dumps([["a", "b"]]), [user("a"), assistant("b")]):
        for name in ("instruction", "query"):
            found = read({name: "hi", "response": "hello", "history": history})
            assert [turn.content for turn in found.turns] == ["a", "b", "hi", "hello"]
            assert "history" in found.taken


def test_text_that_is_no_list() -> None:
    told = ("bad_content", "`messages` is a str, not a list")
    assert rejected({"messages": "[broken"}) == told
    question = json.dumps({"task": "Fix this JSON."})
    assert asked({"prompt": question, "response": "[1]"}) == question

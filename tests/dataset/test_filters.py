"""Each filter on rows it drops, rows it keeps, and rows at its edge."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from tests.made.families import FAMILIES
from tests.made.merged_rows import Built, Turn, config, reply, row
from tests.made.model import IM_END, THINK, THINK_CLOSE
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.dataset import FilterChoice
from workflow_scripts.config.dataset import Filters as FilterSettings
from workflow_scripts.dataset.samples import Sample
from workflow_scripts.dataset.single_filters import FILTERS, Context
from workflow_scripts.dataset.survey import whole
from workflow_scripts.dataset.user_filters import check
from workflow_scripts.texts.loops import THRESHOLD

KEEP_ALL = {"repeated": "keep", "duplicates": "keep", "echo": "keep", "control_tokens": "keep"}


def filtered(
    folder: Path, *talks: tuple[str, Turn], audit: Any = None, **filters: Any
) -> dict[int, str]:
    """Reasons by line, lines counted from 1; a line that is not there was kept."""
    rows = [row(n, question, answer) for n, (question, answer) in enumerate(talks, 1)]
    built = Built(folder, rows, filters=filters, audit=audit or {})
    dropped = built.dropped()
    assert sorted([*dropped, *built.lines()]) == list(range(1, len(rows) + 1))
    assert sum(built.stats["drop_reasons"].values()) == len(dropped)
    return dropped


def test_every_choice_of_the_configuration_is_a_filter() -> None:
    fields = FilterSettings.model_fields.items()
    options = get_args(FilterChoice)
    choices = {name for name, field in fields if get_args(field.annotation) == options}
    assert choices == {*FILTERS, "no_answer", "unclosed_thinking"}  # those two go by class


def test_classes(tmp_path: Path) -> None:
    kinds = ["complete", "truncated_in_answer", "truncated_in_thinking", "no_answer"]
    kinds.append("unclosed_thinking")
    talks = [(f"q{n}", reply(f"a{n}", **{"class": kind})) for n, kind in enumerate(kinds)]
    assert filtered(tmp_path / "1", *talks) == dict(enumerate(kinds[1:], 2))
    kept = dict.fromkeys(kinds[1:], "keep")
    assert filtered(tmp_path / "2", *talks, **kept) == {}


def test_lengths(tmp_path: Path) -> None:
    """A completion of n characters and "so" as reasoning has n + 7 ids."""
    talks = [(f"q{n}", reply("x" * n)) for n in (3, 4, 13, 14)]
    bounds = {"min_completion_tokens": 11, "max_completion_tokens": 20}
    assert filtered(tmp_path, *talks, **bounds) == {1: "too_short", 4: "too_long"}


def test_whole_length(tmp_path: Path) -> None:
    """The prompt has 22 ids, control tokens and newlines among them; the completion at least 8."""
    rows = [row(1, "q", reply("x")), row(2, "q", reply("xx"))]
    built = Built(tmp_path, rows, max_length=22 + 8)
    assert built.rows()["length"].to_list() == [30] and built.dropped() == {2: "too_long"}


def ids(*parts: str | int) -> list[int]:
    return [i for part in parts for i in ([part] if isinstance(part, int) else part.encode())]


def test_control_tokens(tmp_path: Path) -> None:
    def made(*parts: str | int, **changes: Any) -> Turn:
        return reply("a", output_ids=ids(*parts), **changes)

    good = [
        made("so\n", THINK_CLOSE, "\n\na", IM_END),
        made("so\n", THINK_CLOSE, "\n\nspelled <think> and <|im_start|>", IM_END),
        made("so\n", THINK_CLOSE, "\n\nno end, cut"),
    ]
    bad = [
        made("so\n", THINK_CLOSE, "\n\na", IM_END, "\n", IM_END),
        made("so\n", THINK_CLOSE, "\n\na", THINK_CLOSE, "b", IM_END),
        made("so", THINK, "\n", THINK_CLOSE, "\n\na", IM_END),
        made("so\n", THINK_CLOSE, "\n\n", 256, "user\nanother question", IM_END),
    ]
    talks = [(f"q{n}", answer) for n, answer in enumerate(good + bad)]
    assert filtered(tmp_path, *talks) == dict.fromkeys((4, 5, 6, 7), "control_tokens")


def test_control_tokens_around_calls_are_no_leak(tmp_path: Path) -> None:
    """Many forms mark calls with control tokens. What a text holds of them is one all the same."""

    def made(calls: str | None, *parts: str | int) -> Turn:
        return reply("I look.", output_ids=ids("so\n", THINK_CLOSE, *parts, IM_END), calls=calls)

    marked = ("I look.", 256, "f{}", 256)
    call = '[{"function": {"name": "%s", "arguments": {}}}]'
    plain, spelling = call % "f", call % "f<|im_start|>"
    leak = ids(256, "so\n", THINK_CLOSE, *marked, IM_END)
    talks = [
        ("q1", made(plain, *marked)),
        ("q2", made(None, *marked)),
        ("q3", made(spelling, *marked)),
        ("q4", reply("I look.", output_ids=leak, calls=plain)),
    ]
    assert filtered(tmp_path, *talks) == dict.fromkeys((2, 3, 4), "control_tokens")


def test_what_is_said_before_calls_is_no_repeated_answer(tmp_path: Path) -> None:
    calls = '[{"function": {"name": "f", "arguments": {"a": %d}}}]'
    talks = [(f"q{n}", reply("I look.", None, calls=calls % n)) for n in range(9)]
    assert filtered(tmp_path / "1", *talks) == {}
    answers = [(question, reply("I look.", None)) for question, _ in talks]
    assert filtered(tmp_path / "2", *answers) == dict.fromkeys(range(1, 10), "repeated")


def test_conversations_whose_calls_differ_are_not_nearly_the_same() -> None:
    def talk(city: str) -> str:
        call = {"function": {"name": "weather", "arguments": {"city": city}}}
        return whole([{"role": "assistant", "content": None, "tool_calls": [call]}])

    assert talk("Bonn") == talk("Bonn") != talk("Rome")


def test_loops(tmp_path: Path) -> None:
    """Case: a sentence over and over is a loop, a long list is not."""
    again = "Wait, let me check the numbers once more before I answer. " * 60
    listed = "".join(f"{n}. {n * n} is the square of {n}\n" for n in range(1, 60))
    talks = [("q1", reply("fine", again)), ("q2", reply(listed)), ("q3", reply(again[:120]))]
    assert filtered(tmp_path / "1", *talks) == {1: "loop"}
    assert filtered(tmp_path / "2", *talks, loop_threshold=1e9) == {}
    assert filtered(tmp_path / "3", *talks, loop="keep") == {}
    assert FilterSettings().loop_threshold == THRESHOLD


def test_trivial_again(tmp_path: Path) -> None:
    """The same short answer to five different prompts, unless there was a reasoning before it."""
    sorry = [(f"question {n}", reply("Okay" + "." * (n % 3), None)) for n in range(5)]
    paris = [(f"capital {n}", reply("Paris", f"because {n}")) for n in range(6)]
    assert filtered(tmp_path / "1", *sorry, *paris) == dict.fromkeys(range(1, 6), "repeated")
    assert filtered(tmp_path / "2", *sorry[:4], *paris) == {}  # only four prompts
    one_prompt = [("the same", reply(f"Yes{'!' * n}", None)) for n in range(6)]
    assert filtered(tmp_path / "3", *one_prompt) == {}


def test_echo_and_refusal(tmp_path: Path) -> None:
    talks = [
        ("What is it?", reply("what is it")),
        ("What is it?", reply("It is what it is")),
        ("Help me", reply("I'm sorry, but I can't help with that.")),
        ("Help me", reply("I can't help but admire the view.")),
    ]
    assert filtered(tmp_path / "1", *talks) == {1: "echo"}
    assert filtered(tmp_path / "2", *talks, echo="keep", refusal="drop") == {3: "refusal"}


ENGLISH = "Please tell me in a few sentences how the water of the rivers comes back to the clouds "
ENGLISH += "and why the sea does not run dry when so much of it rises into the air every day."
FRENCH = "L'eau des rivières retourne à la mer, puis le soleil la réchauffe et elle s'évapore dans "
FRENCH += "l'air, où elle forme des nuages qui reviennent vers la terre sous forme de pluie."
RUSSIAN = "Вода рек возвращается в море, солнце нагревает её, и она поднимается в воздух."


def test_wrong_language(tmp_path: Path) -> None:
    talks = [
        (ENGLISH, reply(FRENCH)),
        (ENGLISH, reply(RUSSIAN)),
        (ENGLISH, reply(ENGLISH[30:])),
        (ENGLISH, reply("Évaporation, condensation.")),  # too short to be sure
        (ENGLISH, reply("```python\nprint('bonjour le monde')\n```")),
        (ENGLISH, reply("42")),
        (FRENCH, reply(FRENCH[20:])),
        (ENGLISH + " Translate this to French:", reply(FRENCH)),
        ("翻译: " + ENGLISH, reply("河水流回大海")),
    ]
    wrong = {1: "wrong_language", 2: "wrong_language"}
    assert filtered(tmp_path, *talks, wrong_language="drop") == wrong


def test_contamination(tmp_path: Path) -> None:
    """Thirteen words in a row of a held-out set, in the question or in the answer."""
    counted = "one two three four five six seven eight nine ten eleven twelve thirteen"
    words = counted.split()
    held_out = tmp_path / "gsm.jsonl"
    held_out.write_text(json.dumps({"prompt": " ".join(words), "response": "x"}) + "\n")
    talks = [
        ("Say " + " ".join(words), reply("a")),
        ("Count", reply("Well: " + ", ".join(words).upper() + "!")),
        ("Say " + " ".join(words[:12]), reply("a")),
        ("Say " + " ".join(words[::-1]), reply("a")),
    ]
    audit = {"held_out": [str(held_out)]}
    assert filtered(tmp_path / "1", *talks, audit=audit) == {1: "contaminated", 2: "contaminated"}
    assert filtered(tmp_path / "2", *talks, audit=audit, contaminated="keep") == {}


def test_retractions(tmp_path: Path) -> None:
    talks = [("q1", reply("a", retractions=1)), ("q2", reply("b", retractions=0))]
    assert filtered(tmp_path, *talks, retracted="drop") == {1: "retracted"}


LONG = "The committee met on Tuesday to talk about the bridge that is to be built across the river "
LONG += "next year, and after three hours of talk they agreed to ask the engineers once again."


def test_duplicates(tmp_path: Path) -> None:
    talks = [
        (LONG, reply("yes")),
        (LONG, reply("yes")),
        (LONG, reply("no")),
        (LONG + " Please.", reply("yes")),
        ("Something else altogether", reply("yes")),
    ]
    exact = filtered(tmp_path / "1", *talks)
    assert exact == {2: "duplicate"}
    near = filtered(tmp_path / "2", *talks, duplicates="near")
    assert near == dict.fromkeys((2, 3, 4), "duplicate")
    prompts = filtered(tmp_path / "3", *talks, duplicate_prompts="exact")
    assert prompts == {2: "duplicate", 3: "duplicate_prompt"}
    prompts = filtered(tmp_path / "4", *talks, duplicate_prompts="near", duplicates="keep")
    assert prompts == dict.fromkeys((2, 3, 4), "duplicate_prompt")


def test_the_first_that_passes_everything_else_stays(tmp_path: Path) -> None:
    """A dropped row must not take its duplicates with it."""
    cut = reply("x", **{"class": "truncated_in_answer"})
    dropped = filtered(
        tmp_path, (LONG, cut), (LONG, reply("y")), (LONG, reply("z")), duplicate_prompts="exact"
    )
    assert dropped == {1: "truncated_in_answer", 3: "duplicate_prompt"}


def test_turns_of_one_row_are_no_duplicates(tmp_path: Path) -> None:
    rows = [row(1, "a", reply("b"), "a", reply("b"))]
    built = Built(tmp_path, rows, filters={"duplicates": "near", "duplicate_prompts": "near"})
    assert built.lines() == [1, 1]


# ---- the user's own ----


def test_expressions(tmp_path: Path) -> None:
    talks = [("q1", reply("short")), ("q2", reply("long " * 20)), ("q3", reply("x", "y" * 50))]
    wanted = {
        "much_thought": "reasoning_length > 40",
        "wordy": "completion_length - reasoning_length > 60 AND source LIKE '%.jsonl'",
        "no_id": "id = 'null'",  # null: neither true nor false, so it stays
    }
    assert filtered(tmp_path, *talks, expressions=wanted) == {2: "wordy", 3: "much_thought"}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("lenght > 3", r"expressions\.x: 'lenght > 3' cannot be used: .*lenght.*prompt_length"),
        ("length >", r"expressions\.x: 'length >' cannot be used"),
        ("TRUE", "does not judge each row by itself"),
        ("MAX(length) > 3", "does not judge each row by itself"),
        ("length = MAX(length)", "does not judge each row by itself"),
        ("COUNT(*) > 1", "does not judge each row by itself"),
        ("length > 1 AND COUNT(*) > 1", "does not judge each row by itself"),
        ("SUM(length) OVER (PARTITION BY class) > 3", "does not judge each row by itself"),
        ("LAG(length) OVER (ORDER BY length) > 2", "does not judge each row by itself"),
        ("length + 1", r"is Int\d+, not true or false"),
    ],
)
def test_wrong_expressions_are_refused_before_a_run(tmp_path: Path, wanted: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(config(tmp_path, filters={"expressions": {"x": wanted}}).dataset.filters)


@pytest.mark.parametrize(
    "wanted",
    [
        "length IN (1, 2)", "source LIKE 'a%'", "finish_reason IS NULL", "length BETWEEN 1 AND 3",
        "CASE WHEN length > 2 THEN TRUE ELSE FALSE END", "COALESCE(finish_reason, 'x') = 'x'",
        "REGEXP_LIKE(messages, 'x') AND NOT on_policy", "LENGTH(messages) > 2 OR ABS(length) < 3",
        "SUBSTR(source, 1, 2) = 'a.'", "completion_length * 2 > length",
    ],
)  # fmt: skip
def test_expressions_over_a_row_alone_are_taken(tmp_path: Path, wanted: str) -> None:
    check(config(tmp_path, filters={"expressions": {"x": wanted}}).dataset.filters)


FILTER = """
def judge(row):
    if row["messages"][-1]["content"].startswith("bad"):
        return "bad_start"
    return "many_ids" if len(row["input_ids"]) > 100 else None

def broken(row):
    return row["nothing"]

def yes(row):
    return True
"""


def test_python(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILTER)
    talks = [("q1", reply("bad idea")), ("q2", reply("good " * 30)), ("q3", reply("good"))]
    dropped = filtered(tmp_path / "1", *talks, python=f"{file}:judge")
    assert dropped == {1: "bad_start", 2: "many_ids"}
    with pytest.raises(ConfigError, match=r"a\.jsonl:1, turn 0: KeyError: 'nothing'"):
        filtered(tmp_path / "2", *talks, python=f"{file}:broken")
    with pytest.raises(ConfigError, match=r"returned True for a\.jsonl:1; return None to keep"):
        filtered(tmp_path / "3", *talks, python=f"{file}:yes")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("nowhere.py:judge", r"'nowhere\.py' is no file"),
        ("mine.py", r"'mine\.py' is no file"),
        ("mine.py:judges", r"mine\.py has no function 'judges'"),
    ],
)
def test_wrong_python_is_refused_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILTER)
    with pytest.raises(ConfigError, match=said):
        check(config(tmp_path, filters={"python": wanted}).dataset.filters)


def test_the_marks_of_another_family_are_its_own(tmp_path: Path) -> None:
    """gpt-oss: messages of the analysis channel and the final one; anything else is a leak."""
    family = FAMILIES["gpt_oss"]
    prompts = family.prompts()
    asked = prompts.encode(["<|start|>user<|message|>q<|end|><|start|>assistant"])[0]
    context = Context(config(tmp_path), prompts, None)  # type: ignore[arg-type]
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>hi"

    def found(text: str) -> str | None:
        output = np.array(prompts.encode([text])[0], dtype=np.int32)
        fields = {"calls": None, "reasoning_length": 0}
        sample = Sample(fields, 0, [], np.array(asked, dtype=np.int32), output)
        return FILTERS["control_tokens"](sample, context)

    for good in (final, thought + final, thought + thought + final):
        assert found(good) is None and found(f"{good}<|return|>") is None
    assert found(f"{thought}{final}<|end|>") == "<|end|> at id 32 of the completion"
    assert str(found(f"{final}{final}")).startswith("<|channel|> at id 9 ")
    assert found(f"{thought}<|channel|>commentary<|message|>so<|return|>") is not None

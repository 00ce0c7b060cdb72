"""What a chat template refuses and leaves out, with templates whose doing can be read off."""

from pathlib import Path
from typing import Any

import pytest

from tests.made.audit_case import Case, chat
from tests.made.prompts import tiny_prompts
from workflow_scripts.audit.patterns import Patterns
from workflow_scripts.input.conversation import Conversation
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.turn import Turn
from workflow_scripts.model.given import NOTHING, Given
from workflow_scripts.model.prompts import TemplateRunsOver

BARE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
)
NO_TOOLS = "{% if tools %}{{ raise_exception('no ' + tools[0].function.name) }}{% endif %}"
TEXTS_ONLY = "{% for m in messages if m.role in ('user', 'assistant') %}{{ m.content }}{% endfor %}"
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


def talk(roles: str, given: Given = NOTHING) -> Conversation:
    """By the first letters of roles; `c` is an assistant's turn that calls a tool."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    turns = [
        Turn("assistant", None, tool_calls=[CALL]) if role == "c" else Turn(names[role], "text")
        for role in roles
    ]
    return Conversation(turns, given=given)


@pytest.mark.parametrize(
    ("template", "conversation", "left_out"),
    [
        (BARE, talk("sua"), ()),
        (BARE, talk("sua", Given(tools=[TOOL])), ("tools",)),
        (BARE, talk("ua", Given(documents=[{"title": "t", "text": "x"}])), ("documents",)),
        (BARE, talk("ucta"), ("calls of tools", "arguments of calls")),
        (TEXTS_ONLY, talk("suaua"), ("system prompts",)),
        (
            TEXTS_ONLY,
            talk("sucta", Given(tools=[TOOL])),
            (
                "system prompts",
                "calls of tools",
                "arguments of calls",
                "results of tools",
                "tools",
            ),
        ),
        ("{{ messages[-1].content }}", talk("uaua"), ("earlier answers",)),
        (
            BARE + "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
            "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{{ tools | tojson }}",
            talk("sucta", Given(tools=[TOOL])),
            (),
        ),
    ],
)
def test_what_a_template_leaves_out(
    template: str, conversation: Conversation, left_out: tuple[str, ...]
) -> None:
    patterns = Patterns(tiny_prompts(template=template))
    assert patterns.check(conversation) == left_out
    assert patterns.check(conversation) == left_out


def test_refusals_by_row_where_a_template_looks_into_them() -> None:
    """Of a pattern that was taken, a row with another tool is still refused."""
    some = NO_TOOLS.replace("if tools", "if tools and tools[0].function.name == 'sub'")
    patterns = Patterns(tiny_prompts(template=some + BARE))
    patterns.check(talk("ua", Given(tools=[TOOL])))
    other = {"type": "function", "function": {"name": "sub"}}
    with pytest.raises(Reject, match="no sub") as caught:
        patterns.check(talk("ua", Given(tools=[other])))
    assert caught.value.reason == "template_refused"
    patterns.check(talk("ua", Given(tools=[TOOL])))


def test_a_template_without_an_end_costs_its_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once a row: a million rows would take a year."""
    prompts = tiny_prompts(template=BARE, thinking=False)
    patterns = Patterns(prompts)
    assert patterns.check(talk("ua")) == ()
    rendered: list[int] = []

    def endless(messages: Any, **more: Any) -> str:
        rendered.append(len(messages))
        raise TemplateRunsOver("the chat template took longer than 30 seconds")

    monkeypatch.setattr(prompts, "render", endless)
    for _ in range(3):
        with pytest.raises(Reject, match="took longer than 30 seconds"):
            patterns.check(talk("uaua"))
    assert rendered == [1]


def test_a_refused_first_row_does_not_refuse_the_others() -> None:
    template = "{% if 'bad' in messages[0].content %}{{ raise_exception('bad') }}{% endif %}" + BARE
    patterns = Patterns(tiny_prompts(template=template))
    bad = talk("ua")
    bad.turns[0].content = "a bad word"
    for _ in range(2):
        with pytest.raises(Reject, match="bad"):
            patterns.check(bad)
        assert patterns.check(talk("ua")) == ()


def test_the_audit_tells_refused_rows_before_a_server_starts(case: Case, tmp_path: Path) -> None:
    template = tmp_path / "no_system.jinja"
    template.write_text(NO_SYSTEM + BARE)
    system = {"role": "system", "content": "Be brief."}
    rows: list[Any] = [
        chat(f"Town {i}?", f"Town {i} has a river and {i} bridges.") for i in range(5)
    ]
    for row in rows[1:]:
        row["messages"].insert(0, system)
    rows[4]["colour"] = "red"
    case.write("a.jsonl", rows)
    found = case.audit(model={"chat_template": str(template)})
    assert found["accepted"] == 1 and found["reject_reasons"] == {"template_refused": 4}
    told = {f["name"]: f for f in found["findings"]}["template_refused"]
    assert told["rows"] == 4 and told["examples"] == [case.where("a.jsonl:2")]
    assert "no system turn" in told["text"]
    assert list(found["template"]["refused"].values()) == [4]

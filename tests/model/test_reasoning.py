"""What a template writes around a reasoning is found out, and must be what is asked of it."""

import json

import pytest

from tests.made.families import FAMILIES, QWEN3, Family
from tests.made.model import IM_END, byte_tokenizer
from tests.made.prompts import tiny_prompts
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.model.reasoning import NO_REASONING, Reasoning

USER = [{"role": "user", "content": "Hi"}]
HEAD = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
BARE = byte_tokenizer(["<|im_start|>", "<|im_end|>"]).to_str()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("thinking", [True, False])
def test_marks_and_switch(name: str, thinking: bool) -> None:
    family = FAMILIES[name]
    if not thinking and not family.both:
        with pytest.raises(ConfigError, match="model.thinking: false, .* an open reasoning"):
            family.prompts(thinking)
        return
    prompts = family.prompts(thinking)
    assert prompts.reasoning == Reasoning(*family.marks)
    assert prompts.switches == family.switches


@pytest.mark.parametrize(
    ("name", "thinking", "end"),
    [
        ("qwen3", True, "<|im_start|>assistant\n"),
        ("qwen3", False, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ("qwen35", True, "<|im_start|>assistant\n<think>\n"),
        ("qwen35", False, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ("deepseek", True, "<|Assistant|><think>"),
        ("deepseek", False, "<|Assistant|></think>"),
        ("gpt_oss", True, "<|start|>assistant"),
        ("gemma4", True, "<|turn>model\n"),
        ("gemma4", False, "<|turn>model\n<|channel>thought\n<channel|>"),
        ("cohere", True, "<|assistant|><|START_THINKING|>"),
        ("nemotron", False, "<think>\n\n</think>\n\n"),
    ],
)
def test_the_switch_reaches_the_template(name: str, thinking: bool, end: str) -> None:
    """Whatever its name: case 21 is one of these."""
    prompts = FAMILIES[name].prompts(thinking)
    assert prompts.render(USER).endswith(end)
    opened = end.endswith(("<think>", "<think>\n", "<|START_THINKING|>"))
    assert prompts.opens_thinking(prompts.prompt_ids(USER)) == opened


def tail(text: str, tokenizer: str = BARE, **settings: object) -> Prompts:
    template = HEAD + "{% if add_generation_prompt %}<|im_start|>" + text + "{% endif %}"
    return Prompts(tokenizer, template, {}, **{"thinking": True, "end_ids": [], **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    [
        ("<think>\n\n</think>\n\n", True, r"true, .*\|im_start\|><think>.*that is over"),
        ("</think>{# <think> #}", True, "true, .*that is over"),
        ("<think>\n", False, "false, .*an open reasoning; set model.thinking to true$"),
        ("[THINK]{% if effort_level %}[/THINK]{% endif %}", False,
         r"or what turns it off in model.template_variables \(it reads effort_level\)"),
        ("{{ '<think>' }}{% if not reasoning_effort %}{{ '</think>' }}{% endif %}", True,
         r"or what turns it on in model.template_variables \(it reads reasoning_effort\)"),
        ("", True, "neither the chat template nor the tokenizer has marks"),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused(text: str, thinking: bool, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        tail(text, thinking=thinking)


def test_what_the_template_reads_turns_it_on() -> None:
    text = "{{ '<think>' }}{% if not reasoning_effort %}{{ '</think>' }}{% endif %}"
    prompts = tail(text, variables={"reasoning_effort": "high"})
    assert prompts.render(USER).endswith("<|im_start|><think>")


def test_marks_of_the_tokenizer_alone_are_enough() -> None:
    prompts = tail("", byte_tokenizer(["<|im_end|>", "<think>", "</think>"]).to_str())
    assert prompts.reasoning == Reasoning("<think>", "</think>")
    assert tail("", thinking=False).reasoning is None


def test_the_configuration_names_the_marks() -> None:
    """No template says them: the model's own words."""
    own = Reasoning("Here is my plan:", "Now the answer:")
    assert tail("", reasoning=own).reasoning == own
    with pytest.raises(ConfigError, match="model.thinking: false"):
        tail("Here is my plan:\n", reasoning=own, thinking=False)


def test_marks_named_as_the_template_writes_them() -> None:
    """Up to where the answer begins: what answers without a reasoning begin with is found out."""
    family = FAMILIES["gpt_oss"]
    opens, closes, final, _ = family.marks
    own = Reasoning(opens, closes + final)
    prompts = Prompts(family.tokenizer(), family.template, {}, True, [260], reasoning=own)
    assert prompts.reasoning == Reasoning(*family.marks)


def test_user_text_is_not_taken_for_the_templates() -> None:
    """A template that says how to reason, in its own system prompt, closes nothing."""
    prompts = tiny_prompts(template="Reason in <think></think>.\n" + QWEN3)
    assert prompts.reasoning == Reasoning("<think>", "</think>")
    assert not prompts.opens_thinking(prompts.prompt_ids(USER))


def test_a_template_that_refuses_plain_questions() -> None:
    """It wants tools, say: nothing contradicts, and the marks come from its text."""
    template = "{% if not tools %}{{ raise_exception('tools') }}{% endif %}<think></think>"
    raw = json.loads(BARE)
    assert Prompts(json.dumps(raw), template, {}, True, [IM_END]).reasoning
    with pytest.raises(ConfigError, match=NO_REASONING[:40]):
        Prompts(BARE, template[: -len("<think></think>")], {}, True, [IM_END])


def test_an_adaptive_model_closes_what_it_does_not_open() -> None:
    template = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% if m.reasoning_content %}<x:think>{{ m.reasoning_content }}
{%- endif %}{{ '</x:think>' }}{% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
    family = Family(template, ("<|im_start|>", "<|im_end|>"), "<|im_end|>", ("", "", "", ""))
    assert family.prompts().reasoning == Reasoning("<x:think>", "</x:think>", "</x:think>")

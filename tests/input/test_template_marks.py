"""Chat templates whose turns are found again: headers of several tokens, no roles, no end token."""

import pytest

from tests.made.model import END_OF_TEXT, IM_END, IM_START, TEMPLATE
from tests.made.tokenized_rows import (
    OPEN,
    TINY,
    USER,
    answer,
    detokenizer,
    detokenizer_with,
    masked,
    read,
)
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.tokenized import Tokenized


def test_marks_by_hand() -> None:
    """Each control token is one character of the text that no decoded text holds."""
    marks = TINY.marks
    ids = [IM_START, *b"user\n<|im_end|>", IM_END, 10]
    row = marks.read(ids)
    assert (row.text[1:-2], row.text[-1]) == ("user\n<|im_end|>", "\n")
    assert marks.spelled(row.text) == "<|im_start|>user\n<|im_end|><|im_end|>\n"
    assert (row.first[:4], row.at[:4]) == ([0, 1, 16, 17], [0, 1, 16, 17])
    opened = marks.start(row.text)
    assert opened and str(opened.lastgroup)[0] == "u" and opened.end() == 6
    border = marks.border.search(row.text, 6)  # not where the text spells one
    assert border and border.start() == 16
    assert not any(map(marks.is_foreign, [*ids, END_OF_TEXT]))


LLAMA = """\
{{- '<|begin|>' }}
{%- for m in messages %}
{{- '<|header|>' + m.role + '<|/header|>\\n\\n' + m.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|/header|>\\n\\n' }}{%- endif %}
"""
MISTRAL = """\
{{- '<s>' }}
{%- if messages[0].role == 'system' %}{% set s = messages[0].content + '\\n\\n' %}
{%- set messages = messages[1:] %}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}
{%- if m.role == 'user' %}{{- '[INST] ' + (s or '') + m.content + ' [/INST]' }}
{%- else %}{{- ' ' + m.content + '</s>' }}{% endif %}
{%- endfor %}
"""


def test_two_other_control_tokens_may_stand_before_a_conversation() -> None:
    """By hand: one that the template never writes is 9 characters of the text, one that it writes
    is one; what opens a user's turn is 9."""
    control = ("<|begin|>", "<|header|>", "<|/header|>", "<|eot|>", "<|other", "<|other|>")
    marks = detokenizer_with(control, "<|eot|>", LLAMA).marks
    opening = [256, 257, *b"user", 258, 10, 10]
    for others, end in (([], 9), ([261], 18), ([259, 261], 19), ([261, 260], 25), ([261] * 3, 0)):
        found = marks.start(marks.read([*others, *opening]).text)
        assert (found.end() if found else 0) == end, others


def test_headers_of_several_control_tokens() -> None:
    control = ("<|begin|>", "<|header|>", "<|/header|>", "<|eot|>")
    by = detokenizer_with(control, "<|eot|>", LLAMA)
    head = [257, *b"user", 258, *b"\n\nHi", 259, 257, *b"assistant", 258, 10, 10]
    output = [*b"ok", 259]
    for start, same in (([256], True), ([], False), ([256, 256], False)):
        found = read(masked((start + head, 0), (output, 1)), by)
        assert found == Tokenized([USER, answer("ok")], output, 1, same)
    system = [256, 257, *b"system", 258, *b"\n\nS", 259]
    found = read(masked((system + head + output + head, 0), (output, 1)), by)
    messages = [{"role": "system", "content": "S"}, USER, answer("ok"), USER, answer("ok")]
    assert found == Tokenized(messages, output, 1, True)
    # a second begin in the middle: two conversations in one row
    with pytest.raises(Reject, match=r"never writes '<\|eot\|><\|begin\|>"):
        read(masked(([256, *head, *output, 256, *head], 0), (output, 1)), by)


def test_a_template_without_roles() -> None:
    by = detokenizer_with(("<s>", "</s>", "[INST]", "[/INST]"), "</s>", MISTRAL)
    asked = [258, *b" Hi ", 259]
    found = read(masked(([256, *asked, *b" a", 257, *asked], 0), ([*b"b", 257], 1)), by)
    assert found.messages == [USER, answer(" a"), USER, answer("b")]
    found = read(masked(([256, 258, *b" S\n\nHi ", 259], 0), ([*b"b", 257], 1)), by)
    assert found.messages == [{"role": "user", "content": "S\n\nHi"}, answer("b")]
    assert found.same_prompt


GLM = """\
{{- '<sop>' }}
{%- for m in messages %}
{{- '<|' + m.role + '|>\\n' }}
{%- if m.role == 'assistant' %}{{- '<think></think>\\n' + m.content }}
{%- else %}{{- m.content + ('' if enable_thinking else '/nothink') }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}
"""


@pytest.mark.parametrize("thinking", [True, False])
def test_turns_without_an_end_token(thinking: bool) -> None:
    control = ("<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<think>", "</think>")
    by = detokenizer_with(control, "<|user|>", GLM, thinking)
    asked = [258, *b"\nHi", *(b"" if thinking else b"/nothink"), 259]
    first = [10, 260, 261, *b"\none"]
    output = [10, 260, *b"hm", 261, *b"\ntwo", 258]
    found = read(masked(([256, *asked, *first, *asked], 0), (output, 1)), by)
    messages = [USER, answer("one", ""), USER, answer("two", "hm")]
    assert found == Tokenized(messages, output, 1, True)


def test_the_templates_own_system_turn_is_left_out() -> None:
    own = "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nOwn<|im_end|>\\n' }}"
    by = detokenizer(template=own + "{%- endif %}\n" + TEMPLATE)
    for text, expected, same in (
        (b"Own", [], True),
        (b"Other", [{"role": "system", "content": "Other"}], True),
        (b"Own Other", [{"role": "system", "content": "Own Other"}], True),
        (None, [], False),
    ):
        system = [] if text is None else [IM_START, *b"system\n", *text, IM_END, 10]
        found = read(masked((system + OPEN, 0), ([*b"ok"], 1)), by)
        assert found == Tokenized([*expected, USER, answer("ok")], [*b"ok"], 1, same)


def test_a_template_without_control_tokens_rejects() -> None:
    by = detokenizer(template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    with pytest.raises(Reject) as caught:
        read({"input_ids": [*b"user: Hi\nassistant: ok"], "prompt_length": 20}, by)
    assert caught.value.reason == "not_this_template"

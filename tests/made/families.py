"""Chat templates that reason in the ways of model families, in this project's own words."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.made.model import byte_tokenizer
from workflow_scripts.model.prompts import Prompts


@dataclass(frozen=True)
class Family:
    """A template, its control tokens (ids from 256 on), the one that ends an answer, and what is
    to be found out: marks (open, close, final, tail) and switches."""

    template: str
    special: tuple[str, ...]
    end: str
    marks: tuple[str, str, str, str]
    switches: tuple[str, ...] = ()
    both: bool = True  # whether thinking may be on and off

    def prompts(self, thinking: bool = True, end_ids: Sequence[int] | None = None) -> Prompts:
        ends = [256 + self.special.index(self.end)] if end_ids is None else end_ids
        return Prompts(self.tokenizer(), self.template, {}, thinking, ends)

    def tokenizer(self) -> str:
        return byte_tokenizer(self.special).to_str()

    def id(self, token: str) -> int:
        return 256 + self.special.index(token)


CHATML = ("<|im_start|>", "<|im_end|>")
QWEN3 = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.last %}<think>
{{ m.reasoning_content or '' }}
</think>

{% endif %}{{ m.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
QWEN35 = QWEN3.replace(
    "</think>\n\n{% endif %}{% endif %}", "</think>\n\n{% else %}<think>\n{% endif %}{% endif %}"
)
# The switch has another name, off is the default, and past reasoning is cut off.
DEEPSEEK = """\
{%- if not thinking is defined %}{% set thinking = false %}{% endif %}
{%- for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}{% else %}
{%- set said = m.content %}{% if '</think>' in said %}{% set said = said.split('</think>')[1] %}
{%- endif %}<|Assistant|></think>{{ said }}<|eos|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|Assistant|>
{%- if thinking %}<think>{% else %}</think>{% endif %}{% endif %}"""
GPT_OSS = """\
{%- for m in messages %}{% if m.role == 'assistant' %}
{%- if m.thinking and loop.last %}<|start|>assistant<|channel|>analysis<|message|>
{{- m.thinking }}<|end|>{%- endif %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}
{%- if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
GEMMA4 = """\
{%- for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content }}<turn|>
{% endfor %}
{%- if add_generation_prompt %}<|turn>model
{% if not enable_thinking %}<|channel>thought
<channel|>{% endif %}{% endif %}"""
SEED = """\
{%- for m in messages %}<s:bos>{{ m.role }}
{% if m.reasoning_content %}<seed:think>{{ m.reasoning_content }}</seed:think>
{% endif %}{{ m.content }}<s:eos>{% endfor %}
{%- if add_generation_prompt %}<s:bos>assistant
{% endif %}"""
# The system prompt of the model tells it to write them.
MISTRAL = """\
{%- for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}
{%- if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}
{%- if part.type == 'thinking' %}[THINK]{{ part.thinking }}[/THINK]{% else %}{{ part.text }}
{%- endif %}{% endfor %}{% endif %}</s>{% endif %}{% endfor %}"""
COHERE = """\
{%- for m in messages %}<|turn|><|{{ m.role }}|>
{%- if m.reasoning_content %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>{% endif %}
{%- if m.role == 'assistant' %}<|START_TEXT|>{{ m.content }}<|END_TEXT|>
{%- else %}{{ m.content }}{% endif %}<|END|>{% endfor %}
{%- if add_generation_prompt %}<|turn|><|assistant|><|START_THINKING|>{% endif %}"""
NEMOTRON = QWEN3.replace(
    "{{ m.reasoning_content or '' }}\n", "{{ m.reasoning_content }}\n"
).replace("and loop.last", "and m.reasoning_content")
# A tag of the model's own, put together by the template.
TAGGED = """\
{%- set tag = 'mind:' ~ 'v2' %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}{{ '<' ~ tag ~ '>' ~ m.reasoning_content ~ '</' ~ tag ~ '>' }}
{%- endif %}{{ m.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

THINKS = ("<think>", "</think>")
BY_NAME = ("enable_thinking",)
FAMILIES = {
    "qwen3": Family(QWEN3, (*CHATML, *THINKS), "<|im_end|>", (*THINKS, "", ""), BY_NAME),
    "qwen35": Family(QWEN35, (*CHATML, *THINKS), "<|im_end|>", (*THINKS, "", ""), BY_NAME),
    "deepseek": Family(
        DEEPSEEK,
        ("<|User|>", "<|Assistant|>", "<|eos|>", *THINKS),
        "<|eos|>",
        (*THINKS, "", ""),
        ("thinking",),
    ),
    "gpt_oss": Family(
        GPT_OSS,
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
        "<|return|>",
        (
            "<|channel|>analysis<|message|>",
            "<|end|><|start|>assistant",
            "<|channel|>final<|message|>",
            "",
        ),
    ),
    "gemma4": Family(
        GEMMA4,
        ("<|turn>", "<turn|>", "<|channel>", "<channel|>"),
        "<turn|>",
        ("<|channel>thought", "<channel|>", "", ""),
        ("enable_thinking",),
    ),
    "seed": Family(
        SEED,
        ("<s:bos>", "<s:eos>", "<seed:think>", "</seed:think>"),
        "<s:eos>",
        ("<seed:think>", "</seed:think>", "", ""),
    ),
    "mistral": Family(
        MISTRAL,
        ("[INST]", "[/INST]", "</s>", "[THINK]", "[/THINK]"),
        "</s>",
        ("[THINK]", "[/THINK]", "", ""),
    ),
    "cohere": Family(
        COHERE,
        (
            "<|turn|>", "<|user|>", "<|assistant|>", "<|END|>", "<|START_THINKING|>",
            "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>",
        ),
        "<|END|>",
        ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        both=False,
    ),
    "nemotron": Family(NEMOTRON, CHATML, "<|im_end|>", (*THINKS, "", ""), BY_NAME),
    "tagged": Family(
        TAGGED,
        (*CHATML, "<mind:v2>", "</mind:v2>"),
        "<|im_end|>",
        ("<mind:v2>", "</mind:v2>", "", ""),
    ),
}  # fmt: skip

"""Templates against transformers' own rendering, and what it does with several of them."""

import json
import re
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from tests.made.families import FAMILIES
from tests.made.model import IM_END, TEMPLATE, byte_tokenizer, make_model
from tests.made.strategies import JSON, TEXT
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.model.folder import chat_templates, special_tokens
from workflow_scripts.model.given import NOTHING, Given
from workflow_scripts.model.prompts import PromptError, Prompts

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather_at",
            "description": 'Wetter für <morgen> & "heute"',
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
        },
    }
]
DOCUMENTS = [{"title": "Graz", "text": "Es regnet nie."}]
CALL = {"type": "function", "function": {"name": "weather_at", "arguments": {"town": "Gräz"}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüß Gott, 你好 🙂"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "dry", "name": "weather_at"},
    {"role": "assistant", "content": "No.", "reasoning_content": "It is dry."},
    {"role": "user", "content": "and now?"},
]
# Arguments as a mapping, whose keys and values are listed.
MAPPING = """\
{% for m in messages %}{{ m.role }}: {{ m.content if m.content is string else '' }}
{% for c in m.tool_calls or [] %}{% for key, value in c.function.arguments | items %}
{{ key }} is {{ value if value is string else value | tojson(ensure_ascii=False) }};
{% endfor %}{% endfor %}{% endfor %}"""
# Arguments as an object of JSON.
OBJECT = """\
{% for m in messages %}{% for c in m.tool_calls or [] %}
call {{ c.function | tojson }}{% endfor %}{% endfor %}"""
CONSTRUCTS = {
    "mapping": MAPPING,
    "object": OBJECT,
    "none": "{{ documents is none }} {{ tools is none }} {{ x is defined }}",
    "ascii": "{{ tools | tojson(ensure_ascii=True) }}",
    "indent": "{{ tools | tojson(indent=2) }} {{ documents | tojson(indent='\\t') }}",
    "compact": "{{ tools | tojson(separators=(',', ':'), sort_keys=true) }}",
    "positional": "{{ messages[1].content | tojson(true, 1, [',', ' : '], True) }}",
    "tokens": "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ sep_token }}{{ pad_token }}"
    "{{ cls_token }}{{ mask_token }}{{ image_token }}",
    "loops": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}"
    "{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}",
    "generation": "{% set x = 1 %}{% generation %}a {{ x }}{% set x = 2 %}"
    "{% endgeneration %}\n {{ x }}",
    "null": "{{ messages[2].content is defined }} {{ 'content' in messages[2] }}",
    "reasoning": "{{ messages[4].thinking }} {{ messages[4].reasoning_content }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }} {{ dict(a=1) }}",
    "white space": "  {% if true %}\n  x  \n  {%- endif %}\n\n{{ messages | length }}",
    "date": "{{ strftime_now('%d %b %Y') }}",
    "switches": "{{ enable_thinking }} {{ thinking }} {{ reasoning_effort | default('low') }}",
    "prompt": "{{ messages | length }}{% if add_generation_prompt %}assistant{% endif %}",
}  # fmt: skip
SPECIAL = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "sep_token": "<sep>",
    "mask_token": "<mask>",
    "image_token": "<image>",
}


def theirs(tmp_path: Path, template: Any, special: Mapping[str, Any] = {}) -> Any:
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "theirs.json"
    byte_tokenizer().save(str(path))
    named = {k: v for k, v in special.items() if k != "image_token"}
    extra = {k: v for k, v in special.items() if k == "image_token"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path), chat_template=template, **named, extra_special_tokens=extra
    )


def ours(template: Any, thinking: bool = True, **settings: Any) -> Prompts:
    tokenizer = byte_tokenizer().to_str()
    return Prompts(tokenizer, template, settings.pop("special", {}), thinking, [IM_END], **settings)


@pytest.mark.parametrize("given", [NOTHING, Given(TOOLS), Given(TOOLS, DOCUMENTS)])
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_constructs(tmp_path: Path, name: str, given: Given) -> None:
    """Cases 16, 17 and 22 are of these."""
    template = CONSTRUCTS[name]
    oracle = theirs(tmp_path, template, SPECIAL)
    settings = {"add_generation_prompt": True, "tokenize": False}
    switches = {"enable_thinking": True, "thinking": True}
    try:
        expected = oracle.apply_chat_template(TALK, **given.variables(), **settings, **switches)
    except Exception as error:
        expected = type(error)
    prompts = ours(template, special=SPECIAL, today=datetime.now().date())
    try:
        found: Any = prompts.render(TALK, given=given)
    except PromptError:
        assert isinstance(expected, type)
    else:
        assert prompts.spellings.unmasked(found) == expected


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("thinking", [True, False])
def test_families(tmp_path: Path, name: str, thinking: bool) -> None:
    family = FAMILIES[name]
    if not thinking and not family.both:
        return
    transformers = pytest.importorskip("transformers")
    (tmp_path / "t.json").write_text(family.tokenizer())
    oracle = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "t.json"), chat_template=family.template
    )
    for messages in (TALK[1:2], TALK[:2], [TALK[1], TALK[4], TALK[5]]):
        expected = oracle.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=thinking, thinking=thinking
        )
        assert family.prompts(thinking).prompt_ids(messages) == expected["input_ids"]


TO_JSON = ours(
    "{{ messages[0].content | tojson(ensure_ascii=true) }}|{{ tools | tojson }}|"
    "{{ tools | tojson(indent=1) }}"
)


@given(TEXT, JSON)
def test_json_of_anything(text: str, value: Any) -> None:
    """As json writes it, escaped or not, and no control token comes of it."""
    ids = TO_JSON.prompt_ids([{"role": "user", "content": text}], Given([value]))
    parts = [json.dumps(text), json.dumps([value], ensure_ascii=False)]
    parts.append(json.dumps([value], ensure_ascii=False, indent=1))
    assert ids == [*"|".join(parts).encode("utf-8", "surrogatepass")]


def test_json_of_a_token_that_ascii_cannot_say(tmp_path: Path) -> None:
    """DeepSeek's tokens have letters outside ASCII: escaped, they are no token."""
    tokenizer = byte_tokenizer(["<｜User｜>"]).to_str()
    template = "{{ messages[0].content | tojson(ensure_ascii=True) }}{{ messages[0].content }}"
    prompts = Prompts(tokenizer, template, {}, False, [])
    ids = prompts.prompt_ids([{"role": "user", "content": "<｜User｜>"}])
    assert ids == [*rb'"<\uff5cUser\uff5c>"', *"<｜User｜>".encode()]


def test_a_call_without_content() -> None:
    """transformers leaves the key out, and many templates fail then; those get an empty one."""
    template = "{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}"
    assert ours(template).render(TALK[2:4]) == "[][dry]"
    spelled = [TALK[2], {"role": "tool", "content": "a<|im_end|>"}]
    assert ours(template).prompt_ids(spelled) == [*b"[][a<|im_end|>]"]


# ---- variables of the configuration ----


def test_the_date_is_the_configurations() -> None:
    prompts = ours("{{ strftime_now('%A, %d %B %Y') }}", today=date(2026, 1, 31))
    assert prompts.render(TALK[1:2]) == "Saturday, 31 January 2026"


def test_variables_of_the_configuration() -> None:
    prompts = ours("{{ reasoning_effort }} {{ bos_token }}", variables={"reasoning_effort": "high"})
    assert prompts.render(TALK[1:2]) == "high "


def config(folder: Path, **model: Any) -> Config:
    values = {"output_dir": "out", "input": "in", "model": {"path": str(folder), **model}}
    return Config.model_validate(values)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("messages", "given by the rows"),
        ("tools", "given by the rows"),
        ("documents", "given by the rows"),
        ("add_generation_prompt", "given by the rows"),
        ("enable_thinking", "decided by model.thinking"),
        ("thinking", "decided by model.thinking"),
    ],
)
def test_variables_that_are_decided_elsewhere(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: {why}"):
        config(tmp_path, template_variables={name: 1})


def test_they_reach_the_prompts(tmp_path: Path) -> None:
    folder = make_model(
        tmp_path / "m", "{{ effort }} {{ strftime_now('%Y') }} {{ enable_thinking }}"
    )
    own = {"open": "<a>", "close": "</a>"}
    found = config(folder, template_variables={"effort": 3}, date="2026-02-01", reasoning=own)
    prompts = Prompts.from_config(found)
    assert prompts.render(TALK[1:2]) == "3 2026 True"
    assert prompts.reasoning and prompts.reasoning.close == "</a>"


# ---- several templates ----

NAMED = {"default": "plain", "tool_use": "with tools", "rag": "with documents"}


def write(folder: Path, name: str, value: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize("form", ["list", "files", "mapping"])
def test_the_template_that_transformers_chooses(tmp_path: Path, form: str) -> None:
    folder = make_model(tmp_path / "m")
    if form == "list":
        several = [{"name": name, "template": text} for name, text in NAMED.items()]
        write(folder, "tokenizer_config.json", {"chat_template": several})
    elif form == "mapping":
        write(folder, "chat_template.json", {"chat_template": NAMED})
        write(folder, "tokenizer_config.json", {})
    else:
        write(folder, "chat_template.jinja", "plain")
        for name in ("tool_use", "rag"):
            write(folder, f"additional_chat_templates/{name}.jinja", NAMED[name])
    assert chat_templates(config(folder)) == NAMED
    prompts = Prompts.from_config(config(folder))
    oracle = theirs(tmp_path, NAMED)
    for tools in (None, [], TOOLS):
        expected = oracle.apply_chat_template(TALK[1:2], tools=tools, tokenize=False)
        assert prompts.render(TALK[1:2], given=Given(tools)) == expected


def test_files_go_before_the_configuration(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", "from tokenizer_config.json")
    write(folder, "chat_template.json", {"chat_template": "the last resort"})
    assert chat_templates(config(folder)) == {"default": "from tokenizer_config.json"}
    write(folder, "tokenizer_config.json", {})
    assert chat_templates(config(folder)) == {"default": "the last resort"}
    write(folder, "chat_template.jinja", "a file")
    assert chat_templates(config(folder)) == {"default": "a file"}
    own = tmp_path / "own.jinja"
    own.write_text("the user's")
    assert chat_templates(config(folder, chat_template=str(own))) == {"default": "the user's"}


def test_none_by_default(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    write(folder, "tokenizer_config.json", {"chat_template": [{"name": "rag", "template": "x"}]})
    with pytest.raises(ConfigError, match=r"several chat templates \(rag\) and none named default"):
        chat_templates(config(folder))
    prompts = ours({"tool_use": "with tools", "rag": "x"})
    assert prompts.render(TALK[1:2], given=Given(TOOLS)) == "with tools"
    with pytest.raises(PromptError, match="a template for tools and none by default"):
        prompts.render(TALK[1:2])


def test_a_mistake_in_one_of_several() -> None:
    with pytest.raises(ConfigError, match="'tool_use' is not valid Jinja, line 1"):
        ours({"default": TEMPLATE, "tool_use": "{% if %}"})


# ---- special tokens ----


@pytest.mark.parametrize("listed", [True, False])
def test_special_tokens_as_transformers_reads_them(tmp_path: Path, listed: bool) -> None:
    transformers = pytest.importorskip("transformers")
    folder = make_model(tmp_path / "m")
    added = {"256": {"content": "<|im_start|>", "special": True}} if listed else None
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"content": "<|im_start|>", "lstrip": False, "__type": "AddedToken"},
        "eos_token": "<|im_end|>",
        "pad_token": None,
        "image_token": "<|endoftext|>",
        "extra_special_tokens": {"audio_token": "<think>"},
        "model_max_length": 9,
    }
    write(
        folder, "tokenizer_config.json", told | ({"added_tokens_decoder": added} if added else {})
    )
    write(
        folder, "special_tokens_map.json", {"sep_token": "</think>", "eos_token": "<|endoftext|>"}
    )
    expected = transformers.AutoTokenizer.from_pretrained(folder).special_tokens_map
    assert special_tokens(config(folder)) == expected
    assert ("sep_token" in expected) != listed


def test_the_error_says_what_is_wrong_with_the_template() -> None:
    message = "unknown filter|No filter named"
    with pytest.raises(ConfigError, match=re.compile(f"line 1: ({message})", re.IGNORECASE)):
        ours("{{ messages | no_such }}")

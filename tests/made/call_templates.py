"""Chat templates that write calls of tools, one a form, each a few lines in the form's wording."""

FRAME = """\
{%%- macro text(v) %%}{{ v if v is string else v | tojson }}{%% endmacro %%}
{%%- macro gemma(v) %%}
{%%- if v is string %%}{{- '<|"|>' + v + '<|"|>' }}
{%%- elif v is mapping %%}{{- '{' }}
{%%- for key, inner in v | dictsort %%}{{- key + ':' + gemma(inner) + ('' if loop.last else ',') }}
{%%- endfor %%}{{- '}' }}
{%%- elif v is sequence %%}{{- '[' }}
{%%- for inner in v %%}{{- gemma(inner) + ('' if loop.last else ',') }}{%%- endfor %%}{{- ']' }}
{%%- else %%}{{- v | tojson }}
{%%- endif %%}
{%%- endmacro %%}
{%%- macro nested(v) %%}
{%%- if v is mapping %%}{%%- for key, inner in v.items() %%}
{{- ']<]minimax[>[<' + key + '>' + nested(inner) + ']<]minimax[>[</' + key + '>' }}
{%%- endfor %%}
{%%- elif v is sequence and v is not string %%}{%%- for inner in v %%}
{{- ']<]minimax[>[<item>' + nested(inner) + ']<]minimax[>[</item>' }}
{%%- endfor %%}
{%%- else %%}{{- text(v) }}
{%%- endif %%}
{%%- endmacro %%}
{%%- for m in messages %%}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%%- if m.tool_calls %%}{%% set calls = m.tool_calls %%}%s{%% endif %%}
{{- '<|im_end|>\\n' }}
{%%- endfor %%}
{%%- if add_generation_prompt %%}{{- '<|im_start|>assistant\\n' }}{%%- endif %%}
"""
JSON = "{{- f.arguments | tojson }}"
AS_OBJECT = "{{- {'name': f.name, 'arguments': f.arguments} | tojson }}"


def each(one: str, before: str = "", between: str = "", after: str = "") -> str:
    """What is written of one call, for each call; the rest around and between them."""
    parted = f"{{%- if not loop.last %}}{say(between)}{{%- endif %}}"
    loop = f"{{%- for call in calls %}}{{%- set f = call.function %}}{one}{parted}{{%- endfor %}}"
    return say(before) + loop + say(after)


def say(text: str) -> str:
    return f"{{{{- {text!r} }}}}" if text else ""


def named(before: str, between: str, after: str) -> str:
    """A name, then the arguments as JSON."""
    return say(before) + "{{- f.name }}" + say(between) + JSON + say(after)


def tagged(head: str, middle: str, opener: str, between: str, closer: str, tail: str) -> str:
    """A name, then each argument between marks of its own."""
    argument = say(opener) + "{{- k }}" + say(between) + "{{- text(v) }}" + say(closer)
    loop = f"{{%- for k, v in f.arguments.items() %}}{argument}{{%- endfor %}}"
    return say(head) + "{{- f.name }}" + say(middle) + loop + say(tail)


def typed(opener: str, between: str, after: str, closer: str, words: str) -> str:
    """Each argument between marks that say its type."""
    argument = say(opener) + "{{- k }}" + say(between) + "{{- " + words + " }}" + say(after)
    argument += "{{- text(v) }}" + say(closer)
    return f"{{%- for k, v in f.arguments.items() %}}{argument}{{%- endfor %}}"


PYTHON = (
    "{{- f.name + '(' }}{%- for k, v in f.arguments.items() %}"
    "{{- k + '=' + (v | tojson) + ('' if loop.last else ', ') }}{%- endfor %}{{- ')' }}"
)
DSML = (
    say('<｜DSML｜invoke name="')
    + "{{- f.name }}"
    + say('">\n')
    + typed(
        '<｜DSML｜parameter name="', '" string="', '">', "</｜DSML｜parameter>\n",
        "'true' if v is string else 'false'",
    )
    + say("</｜DSML｜invoke>\n")
)  # fmt: skip
KIMI_K3 = (
    say('<|open|>call tool="')
    + "{{- f.name }}"
    + say('"<|sep|>')
    + typed(
        '<|open|>argument key="', '" type="', '"<|sep|>', "<|close|>argument<|sep|>",
        "'string' if v is string else 'other'",
    )
    + say("<|close|>call<|sep|>")
)  # fmt: skip
QWEN3_CODER = tagged(
    "<tool_call>\n<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n",
    "</function>\n</tool_call>",
)  # fmt: skip
SEED = tagged(
    "<seed:tool_call>\n<function=", ">\n", "<parameter=", ">", "</parameter>\n",
    "</function>\n</seed:tool_call>",
)  # fmt: skip
GLM = tagged(
    "<tool_call>", "\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>"
)
HUNYUAN = tagged(
    "<tool_call:x>", "<tool_sep:x>\n", "<arg_key:x>", "</arg_key:x>\n<arg_value:x>",
    "</arg_value:x>\n", "</tool_call:x>\n",
)  # fmt: skip
MINIMAX = tagged(
    '<invoke name="', '">\n', '<parameter name="', '">', "</parameter>\n", "</invoke>\n"
)
STEP3 = tagged(
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="', '">',
    '<steptml:parameter name="', '">', "</steptml:parameter>",
    "</steptml:invoke><｜tool_call_end｜>",
)  # fmt: skip
MINICPM = tagged('<function name="', '">', '<param name="', '">', "</param>", "</function>")
M3 = (
    say(']<]minimax[>[<invoke name="')
    + "{{- f.name }}"
    + say('">')
    + "{{- nested(f.arguments) }}"
    + say("]<]minimax[>[</invoke>\n")
)
GPT_OSS = named(
    "<|start|>assistant<|channel|>commentary to=functions.", " <|constrain|>json<|message|>",
    "<|call|>",
)  # fmt: skip
KIMI = (
    say("<|tool_call_begin|>functions.")
    + "{{- f.name + ':' ~ loop.index0 }}"
    + say("<|tool_call_argument_begin|>")
    + JSON
    + say("<|tool_call_end|>")
)
SOLAR = (
    say("<|tool_call:begin|>")
    + "{{- call.id }}"
    + named("<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>")
)
KEYED = "{{- {f.name: f.arguments} | tojson }}"
COHERE = "{{- {'tool_call_id': '0', 'tool_name': f.name, 'parameters': f.arguments} | tojson }}"
LLAMA = "{{- {'name': f.name, 'parameters': f.arguments} | tojson }}"
R1 = ("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>")
WRITTEN = {
    "qwen": each(say("<tool_call>\n") + AS_OBJECT + say("\n</tool_call>"), between="\n"),
    "qwen3_coder": each(QWEN3_CODER, between="\n"),
    "seed_oss": each(SEED, between="\n"),
    "glm45": each(GLM, between="\n"),
    "hunyuan": each(HUNYUAN, "<tool_calls:x>\n", "", "</tool_calls:x>"),
    "llama3": each(LLAMA, between="; "),
    "pythonic": each(PYTHON, "[", ", ", "]"),
    "lfm2": each(PYTHON, "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
    "mistral": each(named("[TOOL_CALLS]", "[ARGS]", "")),
    "deepseekv3": each(
        named(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"
        ),
        *R1,
    ),
    "deepseekv31": each(
        named("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"), *R1
    ),
    "deepseekv32": each(DSML, "<｜DSML｜function_calls>\n", "", "</｜DSML｜function_calls>"),
    "deepseekv4": each(DSML, "<｜DSML｜tool_calls>\n", "", "</｜DSML｜tool_calls>"),
    "kimi_k2": each(
        KIMI, "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"
    ),
    "kimi_k3": each(KIMI_K3, "<|open|>tools<|sep|>", "", "<|close|>tools<|sep|>"),
    "gpt-oss": each(GPT_OSS),
    "minimax-m2": each(MINIMAX, "<minimax:tool_call>\n", "", "</minimax:tool_call>"),
    "minimax-m3": each(M3, "]<]minimax[>[<tool_call>\n", "", "]<]minimax[>[</tool_call>"),
    "minimax": each(AS_OBJECT, "<tool_calls>[", ", ", "]</tool_calls>"),
    "step3": each(STEP3, "<｜tool_calls_begin｜>\n", "\n", "\n<｜tool_calls_end｜>"),
    "minicpm5": each(MINICPM, between="\n"),
    "gemma4": each(
        say("<|tool_call>call:") + "{{- f.name + gemma(f.arguments) }}" + say("<tool_call|>")
    ),
    "functionary": each(named("<function=", ">", "</function>")),
    "nemotron": each(AS_OBJECT, "<TOOLCALL>[", ", ", "]</TOOLCALL>"),
    "cohere_command4": each(COHERE, "<|START_ACTION|>[\n", ",\n", "\n]<|END_ACTION|>"),
    "command-r": each(COHERE, "Action:\n```json\n[", ",\n", "]\n```"),
    "apertus2509": each(KEYED, "<|tools_prefix|>[", ", ", "]<|tools_suffix|>"),
    "gigachat3": each(say("<|function_call|>") + AS_OBJECT),
    "phi4": each(AS_OBJECT, "<|tool_call|>[", ", ", "]<|/tool_call|>"),
    "interns1": each(
        say("<|action_start|><|plugin|>\n") + AS_OBJECT + say("<|action_end|>"), between="\n"
    ),
    "solar": each(SOLAR, "<|tool_calls|>", "", "<|calls|>"),
    "longcat": each(say("<longcat_tool_call>") + AS_OBJECT + say("</longcat_tool_call>")),
}  # fmt: skip


def template(calls: str) -> str:
    """A whole template around what it writes of calls."""
    return FRAME % calls

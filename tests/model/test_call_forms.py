"""Calls in a model's text: read as the forms' makers describe them, and never taken for other
ones."""

import keyword
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.made.call_templates import WRITTEN, template
from workflow_scripts.model.call_forms import FORMS, Calls, Unparsed
from workflow_scripts.model.calls import same_calls
from workflow_scripts.model.spellings import Spellings
from workflow_scripts.model.template import Templates

BY_NAME = {form.name: form for form in FORMS}


def tool(name: str, **kinds: Any) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("get_weather", city="string", days="integer", exact="boolean", tags="array", at="object"),
    tool("add", x="number", y="number"),
]
WEATHER = ("get_weather", {"city": "Bonn", "days": 2})
ADD = ("add", {"x": 1, "y": 2.5})


def found(form: str, text: str, tools: Any = TOOLS) -> Any:
    """Content and calls as pairs of name and arguments; `unparsed`; None."""
    read = BY_NAME[form].read(text, tools)
    if not isinstance(read, Calls):
        return "unparsed" if isinstance(read, Unparsed) else read
    functions = [call["function"] for call in read.calls]
    return read.content, [(f["name"], f["arguments"]) for f in functions]


# ---- as models write them -----------------------------------------------------------------------

READ = [
    ("qwen", 'Sure.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn", "days": 2}}'
     "\n</tool_call>", ("Sure.", [WEATHER])),
    ("qwen", '<tool_call>{"name": "add", "arguments": "{\\"x\\": 1, \\"y\\": 2.5}"}</tool_call>'
     '<tool_call>{"arguments": {"city": "Bonn", "days": 2}, "name": "get_weather"}</tool_call>',
     ("", [ADD, WEATHER])),
    ("qwen", '<tool_call>[{"name": "add", "arguments": {"x": 1, "y": 2.5}}]</tool_call>',
     ("", [ADD])),  # Granite 3.1 writes a list
    ("qwen", '<tool_call>{"name": "add", "arguments": {"x": "</tool_call>"}}</tool_call>',
     ("", [("add", {"x": "</tool_call>"})])),
    ("qwen3_coder", "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBonn\n"
     "</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
     ("I look.", [WEATHER])),
    ("qwen3_coder", "<function=add>\n<parameter=x>1</parameter><parameter=y>2.5</parameter>"
     "</function>", ("", [ADD])),
    ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\n\n2\n\n</parameter>\n"
     "<parameter=exact>\nTrue\n</parameter>\n<parameter=tags>\n['a', \"b\"]\n</parameter>\n"
     "<parameter=at>\n{\"x\": null}\n</parameter>\n</function>\n</tool_call>",
     ("", [("get_weather", {"city": "\n2\n", "exact": True, "tags": ["a", "b"],
                            "at": {"x": None}})])),
    ("qwen3_coder", "<tool_call>\n<function=add>\n</function>\n</tool_call>", ("", [("add", {})])),
    ("seed_oss", "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Bonn</parameter>\n"
     "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>", ("", [WEATHER])),
    ("glm45", "\nOK\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n"
     "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>", ("OK", [WEATHER])),
    ("glm45", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bonn</arg_value><arg_key>"
     "days</arg_key><arg_value>2</arg_value></tool_call><tool_call>add</tool_call>",
     ("", [WEATHER, ("add", {})])),
    ("hunyuan", "<tool_calls>\n<tool_call>add<tool_sep>\n<arg_key>x</arg_key>\n<arg_value>1"
     "</arg_value>\n<arg_key>y</arg_key>\n<arg_value>2.5</arg_value>\n</tool_call>\n</tool_calls>",
     ("", [ADD])),
    ("llama3", ' {"name": "get_weather", "parameters": {"city": "Bonn", "days": 2}}',
     ("", [WEATHER])),
    ("llama3", '<|python_tag|>{"name": "add", "parameters": {"x": 1, "y": 2.5}}; '
     '{"name": "get_weather", "parameters": {"city": "Bonn", "days": 2}}', ("", [ADD, WEATHER])),
    ("llama3", '{"type": "function", "name": "add", "parameters": {"x": 1, "y": 2.5}}',
     ("", [ADD])),
    ("pythonic", "[get_weather(city='Bonn', days=2), add(x=1, y=2.5)]", ("", [WEATHER, ADD])),
    ("pythonic", '<|python_start|>[add(x=-1, y={"a": [True, None]})]<|python_end|>',
     ("", [("add", {"x": -1, "y": {"a": [True, None]}})])),
    ("lfm2", 'Hm <|tool_call_start|>[get_weather(city="Bonn", days=2)]<|tool_call_end|>',
     ("Hm", [WEATHER])),
    ("lfm2", "<|tool_call_start|>[add(x='<|tool_call_end|>')]<|tool_call_end|>",
     ("", [("add", {"x": "<|tool_call_end|>"})])),
    ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"x": 1, "y": 2.5}}]', ("", [ADD])),
    ("mistral", 'Well[TOOL_CALLS]add[ARGS]{"x": 1, "y": 2.5}[TOOL_CALLS]get_weather[CALL_ID]abc'
     '[ARGS]{"city": "Bonn", "days": 2}', ("Well", [ADD, WEATHER])),
    ("deepseekv3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
     '{"x": 1, "y": 2.5}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', ("", [ADD])),
    ("deepseekv31", "So:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>"
     '{"x": 1, "y": 2.5}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', ("So:", [ADD])),
    ("deepseekv32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
     '<｜DSML｜parameter name="city" string="true">Bonn</｜DSML｜parameter>\n'
     '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
     "</｜DSML｜invoke>\n</｜DSML｜function_calls>", ("", [WEATHER])),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0"
     '<|tool_call_argument_begin|>{"x": 1, "y": 2.5}<|tool_call_end|>', ("", [ADD])),
    ("gpt-oss", "<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
     '{"x": 1, "y": 2.5}<|call|>', ("", [ADD])),
    ("gpt-oss", '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"x": 1, '
     '"y": 2.5}', ("", [ADD])),
    ("gpt-oss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary"
     "<|message|>I add.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
     '<|constrain|>json<|message|>{"x": 1, "y": 2.5}', ("I add.", [ADD])),
    ("gpt-oss", ' to=functions.add<|channel|>commentary <|constrain|>json<|message|>{"x": 1, "y": '
     "2.5}", ("", [ADD])),
    ("minimax-m2", '<minimax:tool_call>\n<invoke name="add">\n<parameter name="x">1</parameter>\n'
     '<parameter name="y">2.5</parameter>\n</invoke>\n</minimax:tool_call>', ("", [ADD])),
    ("minimax", '<tool_calls>\n{"name": "add", "arguments": {"x": 1, "y": 2.5}}\n{"name": '
     '"get_weather", "arguments": {"city": "Bonn", "days": 2}}\n</tool_calls>',
     ("", [ADD, WEATHER])),
    ("minicpm5", '<function name="get_weather"><param name="city"><![CDATA[a <b>\n]]></param>'
     '<param name="exact">True</param></function>',
     ("", [("get_weather", {"city": "a <b>\n", "exact": True})])),
    ("gemma4", '<|tool_call>call:get_weather{city:<|"|>a "b",{}\n<|"|>,exact:true,tags:[1,-2.5]}'
     "<tool_call|>", ("", [("get_weather", {"city": 'a "b",{}\n', "exact": True,
                                            "tags": [1, -2.5]})])),
    ("functionary", '<function=add>{"x": 1, "y": 2.5}</function>', ("", [ADD])),
    ("nemotron", '<TOOLCALL>[{"name": "add", "arguments": {"x": 1, "y": 2.5}}]</TOOLCALL>',
     ("", [ADD])),
    ("cohere_command4", '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "add", '
     '"parameters": {"x": 1, "y": 2.5}}\n]<|END_ACTION|>', ("", [ADD])),
    ("command-r", 'Action: ```json\n[{"tool_name": "add", "parameters": {"x": 1, "y": 2.5}}]```',
     ("", [ADD])),
    ("phi4", '<|tool_call|>[{"type": "function", "function": {"name": "add", "arguments": {"x": 1, '
     '"y": 2.5}}}]<|/tool_call|>', ("", [ADD])),
    ("interns1", '<|action_start|><|plugin|>\n{"name": "add", "parameters": {"x": 1, "y": 2.5}}'
     "<|action_end|>", ("", [ADD])),
    ("minimax-m3", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">'
     "]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[<item>5]<]minimax[>[</item>]<]minimax[>["
     "</tags>]<]minimax[>[<at>]<]minimax[>[<x>1.5]<]minimax[>[</x>]<]minimax[>[</at>]<]minimax[>["
     "</invoke>\n]<]minimax[>[</tool_call>",
     ("", [("get_weather", {"tags": ["a", 5], "at": {"x": 1.5}})])),
    ("muse", ' to=add<|message|><atem:function_calls>\n<atem:invoke name="add">\n<atem:parameter '
     'name="x">1</atem:parameter>\n<atem:parameter name="y">2.5</atem:parameter>\n</atem:invoke>\n'
     "</atem:function_calls>", ("", [ADD])),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "expected"), READ)
def test_a_call_is_read(form: str, text: str, expected: Any) -> None:
    assert found(form, text) == expected


def test_the_models_own_ids_are_told() -> None:
    text = '[TOOL_CALLS][{"name": "add", "arguments": {}, "id": "abc123def"}]'
    read = BY_NAME["mistral"].read(text, TOOLS)
    assert isinstance(read, Calls) and read.calls == [
        {"id": "abc123def", "type": "function", "function": {"name": "add", "arguments": {}}}
    ]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qwen", '<tool_call>\n{"name": "add", "arguments": {"x": 1'),  # cut
        ("qwen", '<tool_call>\n{"name": "add", "arguments": {"x": 1}}'),  # without its end
        ("qwen", '<tool_call>\n{"name": "add", "arguments": [1]}\n</tool_call>'),
        ("qwen", '<tool_call>\n{"name": "add", "arguments": {"x": NaN}}\n</tool_call>'),
        ("qwen", '<tool_call>\n{"name": "add", "arguments": {"x": 1e999}}\n</tool_call>'),
        ("qwen", f'<tool_call>{{"name": "add", "arguments": {{"x": {2**80}}}}}</tool_call>'),
        ("qwen", '<tool_call>{"name": "add", "arguments": {"x": "\\ud800"}}</tool_call>'),
        ("qwen", '<tool_call>{"name": "add", "arguments": {"x": 1, "x": 2}}</tool_call>'),
        ("qwen", '<tool_call>{"name": "add", "arguments": {"x": %s}}</tool_call>' % ("[" * 9999)),
        ("qwen", '<tool_call>{"name": "add", "arguments": {}}</tool_call> and then some'),
        ("qwen", "You write it between <tool_call> and </tool_call>."),
        ("qwen", "<tool_call>\nadd(x=1)\n</tool_call>"),
        ("qwen3_coder", "<tool_call>\n<function=add>\n<parameter=x>\n1\n</function>\n</tool_call>"),
        ("qwen3_coder", "<function=add><parameter=x>1<parameter=y>2</parameter></function>"),
        ("qwen3_coder", "<function=add><parameter=x>1</parameter><parameter=x>2</parameter>"
         "</function>"),
        ("glm45", "<tool_call>add\n<arg_key>x</arg_key>\n<arg_value>1"),
        ("llama3", '{"name": "add", "parameters": {"x": 1'),
        ("llama3", '{"name": "add", "parameters": {"x": 1}} is what I would call'),
        ("llama3", "<|python_tag|>print(1)"),
        ("pythonic", "[add(x=1"),
        ("pythonic", "[add(1, 2)]"),
        ("pythonic", "[add(x=other)]"),
        ("lfm2", "<|tool_call_start|>[add(**{'x': 1})]<|tool_call_end|>"),
        ("mistral", '[TOOL_CALLS]add{"x": 1}'),
        ("gpt-oss", "<|channel|>commentary to=python code<|message|>print(1)"),
        ("deepseekv32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">\n<｜DSML｜parameter '
         'name="x" string="false">one</｜DSML｜parameter>\n</｜DSML｜invoke>'),
        ("gemma4", "<|tool_call>call:add{x:one}<tool_call|>"),
        ("gemma4", '<|tool_call>call:add{x:<|"|>one'),
        ("minimax-m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="get_weather">'
         "]<]minimax[>[<tags>]<]minimax[>[</tags>]<]minimax[>[</invoke>"),  # [] or nothing?
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_read_is_unparsed(form: str, text: str) -> None:
    assert found(form, text) == "unparsed"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("llama3", '{"name": "Ada", "parameters": {"born": 1815}}'),  # no tool of the row
        ("llama3", '{"name": "add", "description": "adds two numbers"}'),
        ("llama3", 'Here it is: {"name": "add", "parameters": {"x": 1, "y": 2}}'),
        ("llama3", '```json\n{"name": "add", "parameters": {}}\n```'),
        ("llama3", "[1, 2]"),
        ("pythonic", "[print(x=1)]"),
        ("pythonic", "[add](https://example.org)"),
        ("pythonic", "I call [add(x=1)]"),
        ("gpt-oss", "<|channel|>final<|message|>Write to=functions.add there."),
        ("deepseekv31", "<tool_call>x</tool_call>"),
        *((form.name, "") for form in FORMS),
        *((form.name, "An answer, {\"a\": [1]} <b>(x=1)</b>") for form in FORMS),
    ],
)  # fmt: skip
def test_what_only_resembles_a_call_is_none(form: str, text: str) -> None:
    assert found(form, text) is None


def test_a_bare_call_is_one_only_of_a_tool_that_the_row_offers() -> None:
    text = '{"name": "add", "parameters": {"x": 1, "y": 2.5}}'
    assert found("llama3", text) == ("", [ADD])
    assert found("llama3", text, TOOLS[:1]) is None and found("llama3", text, []) is None


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, '"5"', '"5"'),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "five", "five"),  # not what the schema says: the text
        ({"type": ["string", "null"]}, "5", "5"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", 5),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"type": "str, optional"}, "1", "1"),  # as xLAM spells it
        ({"type": "List[int]"}, "[1]", [1]),
        ({"type": "dict"}, "{'a': None}", {"a": None}),
        ({}, "5", 5),
        ({}, "[1, 2]", [1, 2]),
        ({}, "(1, 2)", "(1, 2)"),
        ({}, "True", True),
        ({}, "five", "five"),
    ],
)
def test_bare_text_has_the_schemas_type(schema: Any, raw: str, value: Any) -> None:
    text = f"<function=f><parameter=a>\n{raw}\n</parameter></function>"
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}
    for tools in ([{"type": "function", "function": function}], [function]):
        assert found("qwen3_coder", text, tools) == ("", [("f", {"a": value})])
    unwrapped = [{"name": "f", "parameters": {"a": schema}}]
    assert found("qwen3_coder", text, unwrapped) == ("", [("f", {"a": value})])


# ---- any arguments ------------------------------------------------------------------------------

# What ends things in one form or the other. What begins an argument or a call is not among it: a
# text that spells both is, written bare, the other call.
PIECES = [
    "</parameter>", "</function>", "</tool_call>", "</arg_value>", "</invoke>", "]", "}", ")",
    "<b>", "<tool_call|>", "<|tool_call_end|>", "```", "[/", "<", ">", '"', "'", "\\", "\n", "\n\n",
    " ", "é", "日本", "😀", "\u2028",
    "0", "null", "True", "{", "[", ",", ":", "a=1", "]]>", "{{", "{%",
]  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TEXT |= st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
KEYWORDS = {*keyword.kwlist, "item"}
WORD = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(lambda w: w not in KEYWORDS)
NUMBER = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
INNER = st.recursive(
    st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORD, inner, max_size=3),
    max_leaves=6,
)
KINDS = {
    "string": TEXT,
    "integer": st.integers(-(2**63), 2**63 - 1),
    "number": NUMBER,
    "boolean": st.booleans(),
    "array": st.lists(INNER, max_size=3),
    "object": st.dictionaries(WORD, INNER, max_size=3),
}
ARGUMENT = st.sampled_from(sorted(KINDS)).flatmap(
    lambda kind: st.tuples(st.just(kind), KINDS[kind])
)
CALL = st.tuples(st.sampled_from(["f", "get_x"]), st.dictionaries(WORD, ARGUMENT, max_size=4))


@cache
def compiled(form: str) -> Templates:
    return Templates({"default": template(WRITTEN[form])}, Spellings([]))


def written(form: str, content: str, calls: list[Any]) -> str:
    """An assistant's turn by the form's template, without what frames it."""
    said = {"role": "assistant", "content": content, "tool_calls": calls}
    variables = {"messages": [said], "add_generation_prompt": False, "tools": None}
    text = compiled(form).render(variables)
    return text.removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")


@pytest.mark.parametrize("form", sorted(WRITTEN))
@settings(max_examples=40)
@given(drawn=st.lists(CALL, min_size=1, max_size=3), content=st.sampled_from(["", "I look."]))
def test_any_call_comes_back_or_is_unparsed(form: str, drawn: Any, content: str) -> None:
    calls, tools = [], []
    for number, (name, arguments) in enumerate(drawn):
        name = f"{name}{number}"
        if form == "minimax-m3":  # inside of lists and objects no schema here says what is text
            arguments = {k: v for k, v in arguments.items() if v[0] not in ("array", "object")}
        tools.append(tool(name, **{key: kind for key, (kind, _) in arguments.items()}))
        values = {key: value for key, (_, value) in arguments.items()}
        function = {"name": name, "arguments": values}
        calls.append({"id": f"call0000{number}", "type": "function", "function": function})
    bare = form in ("llama3", "pythonic")
    read = BY_NAME[form].read(written(form, "" if bare else content, calls), tools)
    assert read is not None
    if isinstance(read, Calls):
        assert same_calls(read.calls, calls)
        assert read.content == ("" if bare else content)
    else:  # only what is written bare can be in doubt, and that of JSON never is
        assert form not in AS_JSON


AS_JSON = {
    "qwen", "llama3", "mistral", "deepseekv3", "deepseekv31", "kimi_k2", "gpt-oss", "minimax",
    "functionary", "nemotron", "cohere_command4", "command-r", "apertus2509", "gigachat3", "phi4",
    "interns1", "solar", "longcat",
}  # fmt: skip


@pytest.mark.parametrize("form", sorted(BY_NAME))
@settings(max_examples=20)
@given(text=TEXT, start=st.booleans())
def test_any_text_is_read_without_an_error(form: str, text: str, start: bool) -> None:
    mark = re.sub(r"\(\?.*", "", BY_NAME[form].mark).replace("\\", "") if start else ""
    found(form, mark + text)

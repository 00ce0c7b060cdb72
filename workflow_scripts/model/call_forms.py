"""The forms in which models write calls of tools, named as SGLang's `--tool-call-parser` names them
where it knows them.

Another form is a line in `FORMS`. Most are of one of three kinds: a call as JSON between marks
(`as_json`), a name and then its arguments as JSON (`named`), a name and then each argument between
marks of its own (`tagged`).
"""

import re
from dataclasses import dataclass
from typing import Any

import orjson

from workflow_scripts.model.call_readers import (
    Call,
    Reader,
    Tools,
    as_json,
    first_of,
    gemma,
    keyed_call,
    minimax_m3,
    named,
    pythonic,
    tagged,
)
from workflow_scripts.model.call_values import Broken
from workflow_scripts.model.given import name_of


@dataclass(frozen=True, slots=True)
class Calls:
    """An answer that calls tools: the text before the calls, and the calls as messages hold them;
    `arguments` is an object, `id` is there only where the model wrote one."""

    content: str
    calls: list[Call]


@dataclass(frozen=True, slots=True)
class Unparsed:
    """An answer that begins a call which cannot be read, and what is wrong with it."""

    why: str


@dataclass(frozen=True, slots=True)
class Form:
    """How a family of models writes calls. Patterns are regular expressions.

    Args:
        mark: what begins the calls, wherever it stands; none matches nothing.
        reader: reads one call.
        begin, between, end: what can stand around the calls.
        bare: a whole answer that begins so, with the name of a tool of the row, calls without the
            mark.
        around: what is no text of the answer in what stands before the calls.
    """

    name: str
    mark: str
    reader: Reader
    begin: str = ""
    between: str = r"\s*"
    end: str = ""
    bare: str | None = None
    around: str | None = None

    def read(self, text: str, tools: Tools) -> Calls | Unparsed | None:
        """The calls of an answer, None where it makes none.

        Args:
            text: the answer as the model wrote it, without reasoning and end token.
            tools: those that the row offers; their schemas type what is written as bare text.
        """
        start = self.start(text, tools)
        if start is None:
            return None
        try:
            calls, end = self.calls_at(text, start, tools)
            if text[end:].strip():
                raise Broken("text after the calls")
        except Broken as error:
            return Unparsed(str(error))
        before = text[:start]
        if self.around:
            before = re.sub(self.around, "", before, flags=re.DOTALL)
        return Calls(before.strip(), calls)

    def start(self, text: str, tools: Tools) -> int | None:
        """Where the calls of an answer begin; None where it makes none."""
        if found := re.search(self.mark, text):
            return found.start()
        if self.bare and (found := re.match(r"\s*" + self.bare, text)):
            return 0 if found["name"] in map(name_of, tools or ()) else None
        return None

    def calls_at(self, text: str, start: int, tools: Tools) -> tuple[list[Call], int]:
        """The calls that begin at an index, and the index after what ends them.

        Raises:
            Broken: they cannot be read.
        """
        end = at = _past(r"\s*" + self.begin, text, start)
        calls: list[Call] = []
        try:
            while found := self.reader(text, at, tools):
                some, end = found
                calls += some
                at = _past(self.between, text, end)
            same = orjson.loads(orjson.dumps(calls)) == calls
        except RecursionError:
            raise Broken("nested too deep") from None
        except TypeError as error:  # half a surrogate pair, a number beyond 64 bits, deep nesting
            raise Broken(str(error)) from None
        if not calls:
            raise Broken("no call after the mark")
        if not same:
            raise Broken("a number that JSON does not have")
        return calls, _past(r"\s*" + self.end, text, end)


def _past(pattern: str, text: str, at: int) -> int:
    """The index after what can stand at another."""
    found = re.compile(pattern).match(text, at)
    return found.end() if found else at


# ---- the forms ----------------------------------------------------------------------------------

_OBJECT = r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<name>[^"]+)"\s*,\s*'
_OBJECT += r'"(?:parameters|arguments)"\s*:'
_NAME = r"(?P<name>[\w.:/-]+)"
_QUOTED = r'(?P<key>[^"]+)"'


def _glm(suffix: str, begin: str, end: str, name: str) -> Form:
    """GLM's: a name, then pairs of keys and values. Hunyuan adds a word to each mark."""

    def tag(word: str) -> str:
        return f"<{word}{suffix}>"

    head = tag("tool_call") + r"(?P<name>[^<\n]+)(?:\s*" + tag("tool_sep") + ")?"
    key = rf"(?P<key>[^<]+){tag('/arg_key')}\s*{tag('arg_value')}"
    reader = tagged(head, tag("arg_key"), key, tag("/arg_value"), tag("/tool_call"))
    return Form(name, begin or tag("tool_call"), reader, begin=begin, end=end)


def _invoked(
    name: str, mark: str, ns: str, end: str, key: str = _QUOTED + ">", **more: Any
) -> Form:
    """<invoke name="..."> with <parameter name="..."> in it, both under a prefix."""
    head = rf'<{ns}invoke name="(?P<name>[^"]+)">'
    argument = (rf'<{ns}parameter name="', key, rf"</{ns}parameter>")
    reader = tagged(
        more.pop("head", "") + head, *argument, rf"</{ns}invoke>" + more.pop("tail", "")
    )
    return Form(name, mark, reader, begin=mark, end=end, **more)


def _dsml(name: str, section: str) -> Form:
    """DeepSeek's, which says of each argument whether it is text."""
    key = _QUOTED + r' string="(?P<kind>true|false)">'
    return _invoked(name, rf"<｜DSML｜{section}>\s*", "｜DSML｜", f"</｜DSML｜{section}>", key)


_HARMONY = r"(?:<\|start\|>assistant)?"
_CHANNEL = r"(?:<\|channel\|>(?:commentary|analysis)\s*)"
FORMS = (
    Form("qwen", "<tool_call>", as_json("<tool_call>", "</tool_call>")),
    Form(
        "qwen3_coder",
        r"<tool_call>|<function=",
        tagged(
            r"(?:<tool_call>\s*)?<function=(?P<name>[^>\n]+)>",
            "<parameter=", r"(?P<key>[^>\n]+)>", "</parameter>",
            r"</function>(?:\s*</tool_call>)?", edge=r"\n?",
        ),
    ),
    Form(
        "seed_oss",
        "<seed:tool_call>",
        tagged(
            r"<seed:tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "<parameter=", r"(?P<key>[^>\n]+)>", "</parameter>", r"</function>\s*</seed:tool_call>",
        ),
    ),
    _glm("", "", "", "glm45"),
    _glm(r"(?::\w+)?", r"<tool_calls(?::\w+)?>\s*", r"</tool_calls(?::\w+)?>", "hunyuan"),
    Form(
        "llama3",
        r"<\|python_tag\|>",
        as_json(""),
        begin=r"(?:<\|python_tag\|>)?\s*",
        between=r"[\s;]*",
        bare=_OBJECT,
    ),
    Form(
        "pythonic",
        r"<\|python_start\|>",
        first_of(pythonic(r"<\|python_start\|>", r"<\|python_end\|>"), pythonic(r"(?=\[)", "")),
        bare=r"\[\s*(?P<name>[\w.]+)\(",
    ),
    Form(
        "lfm2",
        r"<\|tool_call_start\|>",
        pythonic(r"<\|tool_call_start\|>", r"<\|tool_call_end\|>"),
    ),
    Form(
        "mistral",
        r"\[TOOL_CALLS\]",
        first_of(
            as_json(r"\[TOOL_CALLS\]"),
            named(rf"\[TOOL_CALLS\]\s*{_NAME}\s*(?:\[CALL_ID\](?P<id>\w+))?\s*\[ARGS\]"),
        ),
    ),
    Form(
        "deepseekv3",
        "<｜tool▁calls▁begin｜>",
        named(
            r"<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^\n<]+)\n```json\n",
            "```<｜tool▁call▁end｜>",
        ),
        begin=r"<｜tool▁calls▁begin｜>\s*",
        end="<｜tool▁calls▁end｜>",
    ),
    Form(
        "deepseekv31",
        "<｜tool▁calls▁begin｜>",
        named("<｜tool▁call▁begin｜>(?P<name>[^<]+)<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        begin=r"<｜tool▁calls▁begin｜>\s*",
        end="<｜tool▁calls▁end｜>",
    ),
    _dsml("deepseekv32", "function_calls"),
    _dsml("deepseekv4", "tool_calls"),
    Form(
        "kimi_k2",
        r"<\|tool_calls_section_begin\|>",
        named(
            r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[\w.-]+):\d+)\s*"
            r"<\|tool_call_argument_begin\|>",
            r"<\|tool_call_end\|>",
        ),
        begin=r"<\|tool_calls_section_begin\|>\s*",
        end=r"<\|tool_calls_section_end\|>",
    ),
    Form(
        "kimi_k3",
        r"<\|open\|>tools<\|sep\|>",
        tagged(
            r'<\|open\|>call tool="(?P<name>[^"]+)"(?: index="\d+")?<\|sep\|>',
            r'<\|open\|>argument key="', _QUOTED + r' type="(?P<kind>\w+)"<\|sep\|>',
            r"<\|close\|>argument<\|sep\|>", r"<\|close\|>call<\|sep\|>",
        ),
        begin=r"<\|open\|>tools<\|sep\|>\s*",
        end=r"(?:<\|close\|>tools<\|sep\|>(?:<\|close\|>message<\|sep\|>)?)?",
        around=r"<\|open\|>response<\|sep\|>|<\|close\|>(?:response|think)<\|sep\|>",
    ),
    Form(
        "gpt-oss",
        rf"{_HARMONY}(?:{_CHANNEL}|(?<=<\|start\|>assistant)|\A)\s*to=\S",
        named(
            rf"{_HARMONY}{_CHANNEL}?\s*to=(?:functions\.)?(?P<name>[\w.-]+){_CHANNEL}?\s*"
            r"(?:<\|constrain\|>)?\s*(?:json|code)?\s*<\|message\|>",
            r"(?:<\|call\|>|<\|end\|>)?",
        ),
        around=rf"{_HARMONY}<\|channel\|>analysis<\|message\|>.*?<\|end\|>"
        rf"|{_HARMONY}<\|channel\|>\w+<\|message\|>|<\|end\|>|<\|start\|>assistant\Z",
    ),
    _invoked("minimax-m2", r"<minimax:tool_call>\s*", "", "</minimax:tool_call>"),
    Form(
        "minimax-m3",
        r"\]<\]minimax\[>\[<tool_call>",
        minimax_m3,
        begin=r"\]<\]minimax\[>\[<tool_call>\s*",
        end=r"\]<\]minimax\[>\[</tool_call>",
    ),
    Form("minimax", "<tool_calls>", as_json(""), begin=r"<tool_calls>\s*", end="</tool_calls>"),
    _invoked(
        "step3", r"<｜tool_calls_begin｜>\s*", "steptml:", "<｜tool_calls_end｜>",
        head=r"<｜tool_call_begin｜>function<｜tool_sep｜>\s*", tail=r"\s*<｜tool_call_end｜>",
    ),
    _invoked(
        "muse", r"(?: to=\S+<\|message\|>)?<atem:function_calls>\s*", "atem:",
        r"</atem:function_calls>",
        head=r"(?:</atem:function_calls><\|eom\|><\|start\|>assistant to=\S+<\|message\|>"
        r"<atem:function_calls>\s*)?",
    ),
    Form(
        "minicpm5",
        "<function name=",
        tagged(
            '<function name="(?P<name>[^"]+)">',
            '<param name="', _QUOTED + ">", "</param>", "</function>",
        ),
    ),
    Form("gemma4", r"<\|tool_call>", gemma),
    Form("functionary", "<function=", named("<function=(?P<name>[^>]+)>", "</function>")),
    Form("nemotron", "<TOOLCALL>", as_json("<TOOLCALL>", "</TOOLCALL>")),
    Form(
        "cohere_command4",
        r"<\|START_ACTION\|>",
        as_json(r"<\|START_ACTION\|>", r"(?:<\|END_ACTION\|>)?"),
        around=r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>",
    ),
    Form("command-r", r"Action:\s*```json", as_json(r"Action:\s*```json", "```")),
    Form(
        "apertus2509",
        r"<\|tools_prefix\|>",
        as_json(r"<\|tools_prefix\|>", r"<\|tools_suffix\|>", keyed_call),
    ),
    Form(
        "gigachat3",
        r"(?:<\|message_sep\|>\s*)?function call<\|role_sep\|>|<\|function_call\|>",
        as_json(r"(?:(?:<\|message_sep\|>\s*)?function call<\|role_sep\|>|<\|function_call\|>)"),
    ),
    Form("phi4", r"<\|tool_call\|>", as_json(r"<\|tool_call\|>", r"(?:<\|/tool_call\|>)?")),
    Form(
        "interns1",
        r"<\|action_start\|>\s*<\|plugin\|>",
        as_json(r"<\|action_start\|>\s*<\|plugin\|>", r"<\|action_end\|>"),
    ),
    Form(
        "solar",
        r"<\|tool_calls\|>",
        named(
            rf"<\|tool_call:begin\|>(?P<id>\w*)<\|tool_call:name\|>{_NAME}<\|tool_call:args\|>",
            r"<\|tool_call:end\|>",
        ),
        begin=r"<\|tool_calls\|>\s*",
        end=r"<\|calls\|>",
    ),
    Form("longcat", "<longcat_tool_call>", as_json("<longcat_tool_call>", "</longcat_tool_call>")),
)  # fmt: skip

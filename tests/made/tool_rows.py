"""Two hundred rows of a tool-calling set, in the shapes that such sets have, and what each of them
asks: the conversation before the last answer in OpenAI's form, and its tools."""

import json
import random
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
SHAPES = ("xlam", "hermes", "toolace", "openai")
TOWNS = ["Graz", "Linz", "Steyr", "Wels", "Zürich", "Łódź", "São Paulo", "O'Fallon"]
KINDS: dict[str, tuple[str, Json]] = {
    "town": ("string", {"description": "Name of the town."}),
    "days": ("integer", {"description": "Days from today.", "minimum": 0}),
    "metric": ("boolean", {"default": True}),
    "hours": ("array", {"items": {"type": "integer"}}),
    "limit": ("number", {}),
}
TOOLS = {
    "weather_at": ["town", "days"],
    "bridges_of": ["town", "limit", "metric"],
    "train_times": ["town", "hours"],
    "market_day": ["town"],
}
# A ChatML template of our own with tools, as Hermes and Qwen write them.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'system' %}{% if not tools %}<|im_start|>system
{{ m.content }}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ m.role }}
{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def schema(name: str) -> Json:
    properties = {key: {"type": KINDS[key][0], **KINDS[key][1]} for key in TOOLS[name]}
    parameters = {"type": "object", "properties": properties, "required": TOOLS[name][:1]}
    return {
        "name": name,
        "description": f"Tells {name.replace('_', ' ')}.",
        "parameters": parameters,
    }


class Talk:
    """One made talk: a question, the calls that its answer needs, their results and the answer."""

    def __init__(self, number: int):
        draw = random.Random(number)
        self.number = number
        self.town = draw.choice(TOWNS)
        self.question = f"What of {self.town} in {draw.randrange(2, 30)} days? ({number})"
        names = draw.sample(sorted(TOOLS), 2)
        values: Json = {
            "town": self.town,
            "days": draw.randrange(9),
            "metric": draw.random() < 0.5,
            "hours": [draw.randrange(24) for _ in range(draw.randrange(3))],
            "limit": draw.choice([1, 2.5]),
        }
        self.calls: list[Json] = [
            {"name": name, "arguments": {key: values[key] for key in TOOLS[name]}}
            for name in names[: 1 + (number % 3 == 0)]
        ]
        self.results = [json.dumps({"of": call["name"], "n": number}) for call in self.calls]
        self.answer = f"In {self.town} it is as the tools say, number {number}."
        self.tools = [schema(name) for name in sorted(names)]

    def asked(self, system: str | None) -> list[Json]:
        """What stands before the last answer, in OpenAI's form, arguments as objects."""
        calls = [{"type": "function", "function": call} for call in self.calls]
        found: list[Json] = [{"role": "system", "content": system}] if system else []
        found.append({"role": "user", "content": self.question})
        found.append({"role": "assistant", "content": "", "tool_calls": calls})
        return found + [{"role": "tool", "content": text} for text in self.results]

    def wrapped(self) -> list[Json]:
        return [{"type": "function", "function": tool} for tool in self.tools]


Made = tuple[Json, list[Json], list[Json] | None]


def xlam(talk: Talk) -> Made:
    """One question; its answer is the calls."""
    row = {
        "id": talk.number,
        "query": talk.question,
        "answers": json.dumps(talk.calls),
        "tools": json.dumps(talk.tools, ensure_ascii=False),
    }
    return row, [{"role": "user", "content": talk.question}], talk.wrapped()


def hermes(talk: Talk) -> Made:
    """Calls and results as texts between tags, the tools told in the system prompt too."""
    system = f"You may call: <tools>{json.dumps(talk.wrapped())}</tools>"
    calls = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in talk.calls)
    results = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in talk.results)
    said = [("system", system), ("human", talk.question), ("gpt", calls), ("tool", results)]
    said.append(("gpt", talk.answer))
    row = {"conversations": [{"from": role, "value": text} for role, text in said]}
    row["tools"] = json.dumps(talk.wrapped())  # type: ignore[assignment]
    return row, talk.asked(system), talk.wrapped()


def toolace(talk: Talk) -> Made:
    """Calls as a list in Python's words; the tools are told in the system prompt alone."""
    system = "Functions you may call, in JSON: " + json.dumps(talk.tools)
    calls = ", ".join(
        f"{call['name']}({', '.join(f'{k}={v!r}' for k, v in call['arguments'].items())})"
        for call in talk.calls
    )
    said = [("user", talk.question), ("assistant", f"[{calls}]")]
    said += [("tool", text) for text in talk.results]
    said.append(("assistant", talk.answer))
    turns = [{"from": role, "value": text} for role, text in said]
    return {"system": system, "conversations": turns}, talk.asked(system), None


def openai(talk: Talk) -> Made:
    """Calls with ids, their arguments as JSON text."""
    calls = [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for n, call in enumerate(talk.calls)
    ]
    results = [
        {"role": "tool", "tool_call_id": f"call_{n}", "content": text}
        for n, text in enumerate(talk.results)
    ]
    messages = [
        {"role": "user", "content": talk.question},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
        {"role": "assistant", "content": talk.answer},
    ]
    return {"messages": messages, "tools": talk.wrapped()}, talk.asked(None), talk.wrapped()


MAKERS: dict[str, Callable[[Talk], Made]] = {
    "xlam": xlam, "hermes": hermes, "toolace": toolace, "openai": openai,
}  # fmt: skip


def tool_rows(number: int = 200) -> list[Made]:
    """Rows of all shapes in turn."""
    return [MAKERS[SHAPES[n % len(SHAPES)]](Talk(n)) for n in range(number)]

"""gpt-oss' channels against what openai-harmony made of the same ids.

The library downloads its vocabulary, so what it said is recorded: texts of completions, their ids,
and the messages that it parsed from them.
"""

import json
from datetime import date
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from tests.made.paths import DATA
from workflow_scripts.model.answers import Answer, classify, texts
from workflow_scripts.model.calls import Calls, form_of
from workflow_scripts.model.prompts import Prompts

RECORDED: dict[str, Any] = json.loads((DATA / "model/harmony.json").read_text(encoding="utf-8"))
PIECES = {int(token): text for token, text in RECORDED["pieces"].items()}
ENDS = {"<|return|>": 200002, "<|call|>": 200012}
TEMPLATE = (DATA / "templates/gpt_oss.jinja").read_text(encoding="utf-8")
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    """gpt-oss' own ids for the pieces that the recorded completions are made of."""
    tokenizer = Tokenizer(models.WordLevel({t: i for i, t in PIECES.items()}, unk_token="\n"))
    tokenizer.decoder = decoders.Fuse()
    raw = json.loads(tokenizer.to_str())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    raw["added_tokens"] = [
        {"id": token, "content": text, "special": True, **flags}
        for token, text in PIECES.items()
        if text.startswith("<|")
    ]
    ends = sorted(ENDS.values())
    return Prompts(json.dumps(raw), TEMPLATE, {}, True, ends, today=date(2026, 1, 31))


@pytest.mark.parametrize("case", RECORDED["cases"], ids=[c["name"] for c in RECORDED["cases"]])
def test_channels(prompts: Prompts, case: dict[str, Any]) -> None:
    """Analysis is the reasoning, final the answer; a call comes out whole and is read back."""
    prompt: list[int] = prompts.encode(["<|start|>assistant"])[0]
    ids, told = case["ids"], case["messages"]
    ((reasoning, answer),) = texts(prompts, [(prompt, ids)])
    thoughts = [m["text"] for m in told if m["channel"] == "analysis"]
    assert reasoning == ("\n".join(thoughts) if thoughts else None)
    assert classify(prompts, prompt, Answer(ids, "stop", ids[-1])) == "complete"
    last = told[-1]
    if last["recipient"] is None:
        assert last["channel"] == "final" and answer == last["text"]
        return
    form = form_of(prompts)
    assert form is not None and form.name == "gpt-oss"
    found = form.read(answer, TOOLS)
    assert isinstance(found, Calls)
    (call,) = found.calls
    assert f"functions.{call['function']['name']}" == last["recipient"]
    assert call["function"]["arguments"] == json.loads(last["text"])

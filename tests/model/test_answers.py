"""What an engine's answer is worth: recorded and hand-made answers, ids of the Qwen3.6 vocabulary.

tests/data/model/server_answers.json holds the answers with the class each belongs to.
"""

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from tests.made.model import IM_END, TEMPLATE, THINK, THINK_CLOSE, byte_tokenizer
from tests.made.paths import DATA
from tests.made.prompts import tiny_prompts
from workflow_scripts.engine.protocol import Ask
from workflow_scripts.engine.sglang import _read_sglang
from workflow_scripts.model.answers import CLASSES, Answer, classify, fault, split, texts
from workflow_scripts.model.prompts import Prompts

CASES = json.loads((DATA / "model/server_answers.json").read_text())
# the pieces of the Qwen3.6 vocabulary that the cases use
PIECES = {
    198: "\n",
    271: "\n\n",
    13: ".",
    11: ",",
    19: "4",
    220: " ",
    11280: "Two",
    5346: " plus",
    1330: " two",
    369: " is",
    2943: " four",
    9764: "Let",
    728: " me",
    1436: " see",
    2064: "It",
    26108: "Four",
    760: "The",
    4087: " answer",
}


@pytest.fixture(scope="module")
def qwen() -> Prompts:
    tokenizer = Tokenizer(models.WordLevel({text: i for i, text in PIECES.items()}, unk_token="."))
    tokenizer.decoder = decoders.Fuse()
    raw = json.loads(tokenizer.to_str())
    for token, text in ((248046, "<|im_end|>"), (248068, "<think>"), (248069, "</think>")):
        added = AddedToken(text, special=True, normalized=False)
        raw["added_tokens"].append(
            {
                "id": token,
                "content": added.content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        )
        raw["model"]["vocab"][text] = token
    prompts = Prompts(json.dumps(raw), "{{ messages }}", {}, True, [248046])
    return prompts


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_class_and_retry(qwen: Prompts, case: dict[str, Any]) -> None:
    """Only what is no answer is asked again."""
    response = json.loads(json.dumps(case["response"]))
    response["meta_info"]["id"] = "r1"
    answer = _read_sglang(Ask("r1", case["prompt_ids"], 0), 64, [248046], response)
    why = fault(answer, vocab_size=248320)
    found = "engine_error" if why else classify(qwen, case["prompt_ids"], answer)
    assert found == case["class"] and found in {*CLASSES, "engine_error"}
    assert bool(why) == (case["retry"] == "yes")


def test_texts_of_the_complete_answer(qwen: Prompts) -> None:
    case = CASES[0]
    found = texts(qwen, [(case["prompt_ids"], case["response"]["output_ids"])])
    assert found == [("Two plus two is four.", "4")]


# ---- worked by hand: one token per byte ----


@pytest.fixture(scope="module")
def tiny() -> Prompts:
    return tiny_prompts()


def ids(text: str) -> list[int]:
    return list(text.encode())


def test_no_reasoning_opened(tiny: Prompts) -> None:
    closed = [THINK, *ids("\n\n"), THINK_CLOSE, *ids("\n\n")]
    output = [*ids("hi"), IM_END]
    parts = split(tiny, closed, output)
    assert (parts.reasoning_end, parts.answer_start, parts.answer_end) == (0, 0, 2)
    assert texts(tiny, [(closed, output)]) == [(None, "hi")]
    assert classify(tiny, closed, Answer(output, "stop", IM_END)) == "complete"


def test_the_model_opens_the_reasoning_itself(tiny: Prompts) -> None:
    output = [THINK, *ids("\nhm\n"), THINK_CLOSE, *ids("\n\nhi"), IM_END]
    assert texts(tiny, [(ids("x"), output)]) == [("hm", "hi")]
    assert classify(tiny, ids("x"), Answer(output[:4], "length")) == "truncated_in_thinking"


def test_a_model_without_think_tokens_just_answers() -> None:
    raw = json.loads(byte_tokenizer().to_str())
    raw["added_tokens"] = [t for t in raw["added_tokens"] if "think" not in t["content"]]
    plain = Prompts(json.dumps(raw), TEMPLATE, {}, False, [IM_END])
    assert classify(plain, ids("q"), Answer([*ids("hi"), IM_END], "stop", IM_END)) == "complete"
    assert classify(plain, ids("q"), Answer(ids("hi"), "length")) == "truncated_in_answer"
    assert classify(plain, ids("q"), Answer([*ids(" \n"), IM_END], "stop", IM_END)) == "no_answer"


@pytest.mark.parametrize("bad", [[-1], [400], [], [1.5], [None], [2**40]])
def test_ids_that_no_model_gives(bad: list[Any]) -> None:
    assert fault(Answer(bad, "stop", IM_END), vocab_size=400)
    assert fault(Answer([399], "stop", IM_END), vocab_size=400) is None

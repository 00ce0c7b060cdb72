"""What an engine's answer is worth: recorded and hand-made answers, ids of the Qwen3.6 vocabulary.

tests/data/model/server_answers.json holds the answers with the class each belongs to.
"""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from tests.made.families import FAMILIES
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


# ---- other families' marks, ids worked by hand ----


def told(prompts: Prompts, prompt: str, output: list[int], finish: str = "stop") -> Any:
    """Class, reasoning and answer of an output after a prompt that ends like this."""
    prompt_ids = prompts.encode([prompt])[0]
    answer = Answer(output, finish, output[-1])
    return classify(prompts, prompt_ids, answer), *texts(prompts, [(prompt_ids, output)])[0]


OSS = FAMILIES["gpt_oss"]
START, END, MESSAGE, CHANNEL, RETURN, CALL = map(OSS.id, OSS.special)
ANALYSIS = [CHANNEL, *b"analysis", MESSAGE]
FINAL = [CHANNEL, *b"final", MESSAGE]
NEXT = [END, START, *b"assistant"]
COMMENTARY = [CHANNEL, *b"commentary to=functions.f ", MESSAGE, *b'{"a": 1}', CALL]


@pytest.mark.parametrize(
    ("output", "finish", "expected"),
    [
        ([*ANALYSIS, *b"hm", *NEXT, *FINAL, *b"hi", RETURN], "stop", ("complete", "hm", "hi")),
        ([*FINAL, *b"hi", RETURN], "stop", ("complete", None, "hi")),
        ([*ANALYSIS, *b"a", *NEXT, *ANALYSIS, *b"b", *NEXT, *FINAL, *b"hi", RETURN], "stop",
         ("complete", "a\nb", "hi")),
        ([*ANALYSIS, *b"hm"], "length", ("truncated_in_thinking", "hm", "")),
        ([*ANALYSIS, *b"hm", RETURN], "stop", ("unclosed_thinking", "hm", "")),
        ([*ANALYSIS, *b"hm", *NEXT, *FINAL, *b"h"], "length", ("truncated_in_answer", "hm", "h")),
        ([*ANALYSIS, *b"hm", *NEXT, *FINAL, RETURN], "stop", ("no_answer", "hm", "")),
        ([*ANALYSIS, *b"hm", *NEXT, *COMMENTARY], "stop",
         ("complete", "hm", '<|channel|>commentary to=functions.f <|message|>{"a": 1}')),
        ([*COMMENTARY], "stop",
         ("complete", None, '<|channel|>commentary to=functions.f <|message|>{"a": 1}')),
    ],
)  # fmt: skip
def test_gpt_oss(output: list[int], finish: str, expected: tuple[str, ...]) -> None:
    prompts = OSS.prompts(end_ids=[RETURN, CALL])
    assert told(prompts, "<|start|>user<|message|>q<|end|><|start|>assistant", output, finish) == (
        expected
    )


def test_a_prompt_that_has_opened_the_analysis_channel() -> None:
    prompts = OSS.prompts(end_ids=[RETURN])
    opened = "<|start|>assistant<|channel|>analysis<|message|>"
    output = [*b"hm", *NEXT, *FINAL, *b"hi", RETURN]
    assert told(prompts, opened, output) == ("complete", "hm", "hi")
    over = f"{opened}hm<|end|><|start|>assistant<|channel|>final<|message|>hi<|end|><|start|>user"
    assert not prompts.opens_thinking(prompts.encode([over])[0])


@pytest.mark.parametrize(
    ("family", "prompt", "output", "expected"),
    [
        ("gemma4", "<|turn>model\n", "<|channel>thought\nhm\n<channel|>hi<turn|>", ("hm", "hi")),
        ("gemma4", "<|turn>model\n", "hi<turn|>", (None, "hi")),
        ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", "hi<turn|>", (None, "hi")),
        ("seed", "<s:bos>assistant\n", "<seed:think>hm</seed:think>\nhi<s:eos>", ("hm", "hi")),
        ("mistral", "q[/INST]", "[THINK]hm[/THINK]hi</s>", ("hm", "hi")),
        ("deepseek", "<|Assistant|><think>", "hm</think>hi<|eos|>", ("hm", "hi")),
        ("deepseek", "<|Assistant|></think>", "hi<|eos|>", (None, "hi")),
        ("cohere", "<|START_THINKING|>",
         "hm<|END_THINKING|><|START_TEXT|>hi<|END_TEXT|><|END|>", ("hm", "hi")),
        ("cohere", "<|assistant|>", "<|START_TEXT|>hi<|END_TEXT|><|END|>", (None, "hi")),
        # GLM-4.6 writes a line end first; some open again what the prompt has opened
        ("qwen3", "assistant\n", "\n<think>hm</think>\nhi<|im_end|>", ("hm", "hi")),
        ("qwen3", "assistant\n<think>\n", "<think>\nhm</think>hi<|im_end|>", ("hm", "hi")),
        ("qwen3", "assistant\n", "so <think>hm</think>hi<|im_end|>",
         (None, "so <think>hm</think>hi")),
        ("nemotron", "assistant\n<think>\n", "hm\n</think>\n\nhi<|im_end|>", ("hm", "hi")),
        ("nemotron", "assistant\n", "<think>\nhm\n</think>\n\nhi<|im_end|>", ("hm", "hi")),
        ("nemotron", "assistant\n<think>\n\n</think>\n\n", "hi<|im_end|>", (None, "hi")),
    ],
)  # fmt: skip
def test_families(family: str, prompt: str, output: str, expected: tuple[str, str]) -> None:
    prompts = FAMILIES[family].prompts()
    assert told(prompts, prompt, prompts.encode([output])[0]) == ("complete", *expected)


def merging() -> Prompts:
    """`</think>` in the vocabulary as `</`, `think` and, with line ends after it, `>\\n\\n`."""
    tokenizer = Tokenizer.from_str(byte_tokenizer([]).to_str())
    raw = json.loads(tokenizer.to_str())
    pieces = ["</", "th", "in", "thin", "think", "ĊĊ", ">ĊĊ"]
    raw["model"]["vocab"] |= {piece: 256 + n for n, piece in enumerate(pieces)}
    raw["model"]["merges"] = [
        ["<", "/"], ["t", "h"], ["i", "n"], ["th", "in"], ["thin", "k"], ["Ċ", "Ċ"], [">", "ĊĊ"],
    ]  # fmt: skip
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return Prompts(tokenizer.to_str(), FAMILIES["nemotron"].template, {}, True, [264])


def test_marks_in_plain_text_that_share_a_token_with_what_follows() -> None:
    prompts = merging()
    prompt, end = prompts.encode(["<|im_start|>assistant\n<think>\n"])[0], 264
    output = [*b"hm", 10, 256, 260, 262, *b"hi", end]
    assert prompts.encode(["hm\n</think>\n\nhi<|im_end|>"])[0] == output
    parts = split(prompts, prompt, output)
    found = (parts.reasoning_start, parts.reasoning_end, parts.answer_start, parts.answer_end)
    assert found == (0, 3, 6, 8)  # the line ends go with the mark
    assert texts(prompts, [(prompt, output)]) == [("hm", "hi")]
    assert classify(prompts, prompt, Answer(output[:4], "length")) == "truncated_in_thinking"
    assert classify(prompts, prompt, Answer([*output[:6], end], "stop", end)) == "no_answer"


def test_plain_marks_that_a_user_spells_open_nothing() -> None:
    prompts = FAMILIES["nemotron"].prompts(thinking=False)
    ids = prompts.prompt_ids([{"role": "user", "content": "what is <think>"}])
    assert not prompts.opens_thinking(ids)
    assert prompts.opens_thinking(ids + prompts.encode_text("<think>\n"))


@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from(["nemotron", "qwen3", "seed"]))
@example("", "", "nemotron")
@example("é\n", "東\n", "nemotron")
def test_any_reasoning_and_answer_come_back(reasoning: str, answer: str, name: str) -> None:
    """Whatever the texts are, as long as they spell no mark; line ends at the seam are dropped."""
    family = FAMILIES[name]
    prompts = PROMPTS[name]
    opens, closes = family.marks[:2]
    output = prompts.encode([f"{opens}\n"])[0] + prompts.encode_text(reasoning)
    output += prompts.encode([f"\n{closes}\n\n"])[0] + prompts.encode_text(answer)
    output.append(family.id(family.end))
    found = texts(prompts, [(ids("assistant\n"), output)])
    assert found == [(reasoning.strip("\n"), answer.lstrip("\n"))]
    parts = split(prompts, ids("assistant\n"), output)
    assert prompts.decode([output[parts.answer_start : parts.answer_end]])[0].lstrip("\n") == (
        answer.lstrip("\n")
    )


PROMPTS = {name: FAMILIES[name].prompts() for name in ("nemotron", "qwen3", "seed")}


@pytest.mark.parametrize("name", ["gpt_oss", "cohere", "qwen3", "seed", "nemotron"])
def test_what_the_template_writes_is_read_back(name: str) -> None:
    """The template's own rendering of a reasoned answer, as a completion of its own prompt; its
    marks are its own, and no control token is left over."""
    prompts = FAMILIES[name].prompts()
    user = {"role": "user", "content": "q"}
    message = {"role": "assistant", "content": "hi", "reasoning_content": "hm"}
    asked = prompts.render([user])
    whole = prompts.render([user, message], answer_next=False)
    assert whole.startswith(asked)
    prompt, output = prompts.encode([asked, whole[len(asked) :]])
    output = output[: 1 + next(n for n, i in enumerate(output) if i in prompts.end_ids)]
    assert texts(prompts, [(prompt, output)]) == [("hm", "hi")]
    assert prompts.marks is not None
    parts = split(prompts, prompt, output)
    left = {n for n, i in enumerate(output[:-1]) if i in prompts.control_ids}
    assert left <= prompts.marks.written(parts, output[:-1])

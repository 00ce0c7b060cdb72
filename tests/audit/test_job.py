"""The audit against sets whose findings were worked out by hand."""

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.made.audit_case import Case, chat, good
from tests.model.test_fast_bpe import trained
from workflow_scripts.audit.verdict import summary
from workflow_scripts.input.streams import COMPRESSIONS
from workflow_scripts.texts.classes import folded, pattern
from workflow_scripts.texts.hints import damage, luhn, personal
from workflow_scripts.texts.scripts import script


def mixed(kinds: list[Any], rows: int = 1000, trivial: int = 870) -> list[dict[str, Any]]:
    made = [chat(f"Question {i}: why?", kinds[i % len(kinds)]) for i in range(trivial)]
    made += [good(i) for i in range(trivial, rows)]
    random.Random(1).shuffle(made)
    return made


REFUSALS = [
    "I'm sorry, but I can't help with that.",
    "Sorry, I cannot assist with this request.",
    "As an assistant I am unable to answer that.",
    "I can't help with that one, sorry. Is there anything else?",
]


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ([""], "empty"),
        ([" \n"], "whitespace"),
        (["<think>\n\n</think>\n\n"], "empty_think"),
        (REFUSALS, "refusal"),
        (["OK."], "repeated"),
        ([None], "missing"),
    ],
)
def test_87_percent_trivial(case: Case, kinds: list[Any], name: str) -> None:
    case.write("a.jsonl", mixed(kinds))
    found = case.audit()
    assert found["verdict"] == "worthless" and found["trivial_share"] == 0.87
    assert found["response_classes"] == {name: 870, "normal": 130}
    assert "870 of 1,000 responses (87.0 %) are trivial" in found["reasons"][0]
    finding = found["findings"][0]
    assert (finding["name"], finding["level"], finding["rows"]) == (
        "trivial_responses", "worthless", 870,
    )  # fmt: skip
    flagged = case.rows().filter(pl.col("flagged"))
    assert len(flagged) == 870
    first = sorted(flagged["line"])[:5]
    assert finding["examples"] == [case.where(f"a.jsonl:{n}") for n in first]


def test_the_empty_turn_of_a_qwen_template_is_six_tokens(case: Case) -> None:
    """By hand: <think>, an empty line, </think>, an empty line, <|im_end|>, a line end."""
    case.write("a.jsonl", mixed(["", "<think>\n\n</think>\n\n"]))
    found = case.audit()
    ids = trained()
    six = [ids.token_to_id(t) for t in ("<think>", "ĊĊ", "</think>", "ĊĊ", "<|im_end|>", "Ċ")]
    text = "<think>\n\n</think>\n\n<|im_end|>\n"
    assert found["empty_turn"] == {"tokens": 6, "ids": six, "text": text}
    (spike,) = [s for s in found["spikes"] if s["tokens"] == 6]
    assert (spike["rows"], spike["share"], spike["ids"]) == (870, 0.87, six)
    assert found["response_token_counts"]["6"] == 870
    assert any("empty assistant turn" in f["text"] for f in found["findings"])


def test_tokenized_rows(case: Case) -> None:
    """87 % of the rows are the six ids of an empty turn; prompt and answer come out as text."""
    ids = trained()

    def row(i: int) -> dict[str, Any]:
        prompt = f"<|im_start|>user\nQuestion {i}: why?<|im_end|>\n<|im_start|>assistant\n"
        answer = "" if i % 100 < 87 else good(i)["messages"][1]["content"]
        response = f"<think>\n\n</think>\n\n{answer}<|im_end|>\n"
        before, after = ids.encode(prompt).ids, ids.encode(response).ids
        mask = [0] * len(before) + [1] * len(after)
        return {"input_ids": before + after, "loss_mask": mask}

    case.write("a.jsonl", [row(i) for i in range(400)])
    found = case.audit()
    assert found["accepted"] == 400 and found["verdict"] == "worthless"
    assert abs(found["trivial_share"] - 0.87) < 0.001
    (spike,) = [s for s in found["spikes"] if s["tokens"] == 6]
    assert spike["rows"] == 348 and spike["text"] == "<think>\n\n</think>\n\n<|im_end|>\n"
    assert [ids.id_to_token(i) for i in spike["ids"]] == [
        "<think>", "ĊĊ", "</think>", "ĊĊ", "<|im_end|>", "Ċ",
    ]  # fmt: skip
    first = case.rows().sort("line").row(0, named=True)
    assert json.loads(first["messages"])[0] == {"role": "user", "content": "Question 0: why?"}


def test_good_data_is_called_good(case: Case) -> None:
    """Nothing absurd: long answers, many different short ones, and a frequent one among many."""
    rows = [good(i) for i in range(3000)]
    cities = [f"{a}{b}" for a in ("Par", "Lon", "Ber", "Rom", "Os") for b in ("is", "don", "lo")]
    rows += [chat(f"Which city is number {i}?", cities[i % 15]) for i in range(40)]
    rows += [chat(f"How much is {i} + {i}?", str(2 * i)) for i in range(400)]
    case.write("a.jsonl", rows)
    found = case.audit()
    assert found["verdict"] == "ok" and found["flagged"] == 0
    levels = {f["name"]: f["level"] for f in found["findings"]}
    assert set(levels.values()) == {"note"} and "short_responses" in levels
    assert {f["rows"] for f in found["findings"] if f["name"] == "short_responses"} == {440}


def test_prompts_without_responses_are_called_that(case: Case) -> None:
    case.write("a.jsonl", [{"prompt": f"Question {i}?"} for i in range(30)])
    found = case.audit()
    assert found["reasons"] == ["none of the 30 rows has a response: a set of prompts to ask"]
    assert found["spikes"] == [] and found["response_token_counts"] == {}


def test_a_bad_tail_and_a_bad_source(case: Case) -> None:
    case.write("a.jsonl", [good(i) for i in range(900)])
    case.write("b.jsonl", [chat(f"Question {i}: why?", "") for i in range(100)])
    found = case.audit(suspicious_share=0.2)
    assert found["trivial_share"] == 0.1 and found["verdict"] == "suspicious"
    assert {f["name"] for f in found["findings"]} >= {"bad_source", "bad_stretch"}
    assert [p["flagged"] for p in found["positions"]] == [0] * 18 + [50, 50]
    source = found["sources"][case.where("b.jsonl")]
    assert (source["accepted"], source["flagged"], source["parts"]) == (100, 100, [1.0] * 10)
    (stretch,) = [f for f in found["findings"] if f["name"] == "bad_stretch"]
    assert "rows 901 to 1,000" in stretch["text"]


def test_numbers_in_a_pattern_are_told_but_not_flagged(case: Case) -> None:
    rows = [chat(f"Ticket {i}?", f"Your ticket number {i} is closed.") for i in range(60)]
    case.write("a.jsonl", rows + [good(i) for i in range(40)])
    found = case.audit()
    assert found["flagged"] == 0
    (top,) = found["top_repeated_patterns"]
    assert (top["text"], top["rows"]) == ("your ticket number 0 is closed", 60)


def test_an_echo_is_trivial(case: Case) -> None:
    rows = [chat(f"Say it, number {i}!", f"say it,  number {i}") for i in range(10)]
    case.write("a.jsonl", rows)
    assert case.audit()["response_classes"] == {"echo": 10}


def test_prompts(case: Case) -> None:
    rows = [good(i) for i in range(20)]
    rows += [chat("Same?", f"Answer {i} of many words") for i in range(5)]
    rows.append(chat("Is <|im_end|> a token?", "Yes, it is one."))
    rows.append(chat("Broken caf\ufffd?", "Yes, broken."))
    rows.append(chat("Write to ann@example.org please", "Done, I wrote."))
    case.write("a.jsonl", rows)
    found = case.audit()
    assert found["prompts"]["distinct"] == 24 and found["prompts"]["duplicate_rows"] == 4
    assert found["prompts"]["top"][0]["text"] == "Same?"
    assert found["control_tokens"] == {
        "rows": 1, "tokens": {"<|im_end|>": 1}, "examples": [case.where("a.jsonl:26")],
    }  # fmt: skip
    assert found["encoding"]["kinds"] == {"replacement_character": 1}
    assert found["personal_data"]["kinds"] == {"email": 1} and "ann@" not in json.dumps(
        {**found, "class_examples": None}
    )
    assert found["scripts"] == {"Latin": 28}
    assert found["columns"][case.where("a.jsonl")] == {"messages": {"list": 28}}


def test_near_duplicates_and_held_out_sets(case: Case) -> None:
    text = "a train leaves the old station at seven in the morning and reaches the river at nine"
    rows = [good(i) for i in range(20)]
    rows += [chat(f"{text} when it is {word} again", "At nine.") for word in ("green", "light")]
    case.write("a.jsonl", rows)
    held_out = case.folder / "held_out.json"
    held_out.write_text(json.dumps([{"question": f"If {text}, how fast is it?", "answer": "Fast"}]))
    found = case.audit(near_duplicates=True, near_duplicate_threshold=0.6, held_out=[str(held_out)])
    assert found["near_duplicates"]["clusters"] >= 1
    assert found["contamination"]["rows"] == 2
    assert found["contamination"]["held_out"] == {str(held_out): {"rows": 1, "hits": 1}}


def test_the_estimate(case: Case) -> None:
    """By hand: 100 answers of 3,600 tokens at 1,000 tokens/s are 0.1 GPU hours, 2.5 each: 0.25."""
    case.write("a.jsonl", [chat(f"Question {i}?", "") for i in range(100)])
    cost = {"tokens_per_s": 1000, "mean_output_tokens": 3600, "price_per_gpu_hour": 2.5, "gpus": 2}
    found = case.audit(estimate=cost)["estimate"]
    assert (found["output_tokens"], found["gpu_hours"], found["hours"]) == (360_000, 0.1, 0.05)
    assert found["cost"] == 0.25 and "3,600 tokens an answer" in found["assumption"]


def test_any_number_of_processes_says_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from workflow_scripts.audit import job as module
    from workflow_scripts.input.parts import parts

    case.write("a.jsonl", [*mixed(["", "OK.", *REFUSALS]), {"messages": []}, 3])
    case.write("b.jsonl", [good(i) for i in range(200)])
    one = case.audit()
    rows = case.rows()
    monkeypatch.setattr(module, "parts", lambda path, kind: parts(path, kind, 20_000))
    assert case.audit(processes=3) == one
    assert case.rows().equals(rows)
    assert len((case.folder / "out/audit/rejected.jsonl").read_text().splitlines()) == 2


def test_rejects_carry_the_configured_id(case: Case) -> None:
    rows = [{**good(1), "meta": {"id": "k1"}}, {"messages": [], "meta": {"id": "k2"}, "id": 3}]
    case.write("a.jsonl", rows)
    case.audit(columns={"id": "meta.id"})
    (rejected,) = (case.folder / "out/audit/rejected.jsonl").read_text().splitlines()
    assert json.loads(rejected)["id"] == '"k2"' and list(case.rows()["id"]) == ['"k1"']


def test_summary_is_ten_lines(case: Case) -> None:
    case.write("a.jsonl", mixed([""]))
    lines = summary(case.audit())
    assert len(lines) <= 10 and max(map(len, lines)) <= 200
    assert lines[0].startswith("audit: WORTHLESS: 870 of 1,000 responses (87.0 %) are trivial")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["messages", "role", "content", "prompt", "response", "input_ids", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON.map(json.dumps).map(str.encode) | st.binary(max_size=40), max_size=12))
@settings(max_examples=60)
def test_any_lines_are_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, model: Path, lines: list[bytes]
) -> None:
    case = Case(tmp_path_factory.mktemp("any"), model)
    raw = b"\n".join(lines)
    assume(not raw.startswith(tuple(COMPRESSIONS)))  # such a file is a damaged archive, one reject
    (case.folder / "a.jsonl").write_bytes(raw)
    found = case.audit()
    assert found["lines"] == raw.count(b"\n") + (raw != b"" and not raw.endswith(b"\n"))
    assert found["accepted"] + found["rejected"] + found["blank_lines"] == found["lines"]
    assert len(case.rows()) == found["accepted"]


# ---- single texts ----


def test_texts() -> None:
    assert folded("  OK.\n") == folded("ok") == "ok"
    assert pattern("The answer is 17.") == "the answer is 0"
    assert pattern("42") is None and pattern("no number at all here") is None
    assert [script(t) for t in ("Hi", "Привет", "東京へ行く", "你好", "42", "שלום")] == [
        "Latin", "Cyrillic", "Kana", "Han", "none", "Hebrew",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("write to ann.b+c@mail.example.org", {"email"}),
        ("@property and a@b", set()),
        ("call 555-123-4567 now", {"phone"}),
        ("version 1.2.3.4567 of 1999-2005", set()),
        ("host 192.168.0.1:80", {"ip_address"}),
        ("card 4111 1111 1111 1111", {"payment_card"}),  # the schemes' own test number
        ("sum 4111 1111 1111 1112", set()),
        ("key sk-abcdefghijklmnopqrstuvwx", {"secret_key"}),
    ],
)
def test_personal_data(text: str, kinds: set[str]) -> None:
    assert personal([text]) == kinds


def test_luhn() -> None:
    assert luhn("79927398713") and not luhn("79927398710")  # the worked example of the standard
    assert not luhn("0000 0000 0000 0000")


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("cafÃ© and naÃ¯ve", {"mojibake"}),
        ("itâ€™s", {"mojibake"}),
        ("caf\ufffd", {"replacement_character"}),
        ("a\x00b", {"control_character"}),
        ("SÃO PAULO, naïve, “quoted”, a\tb\r\n", set()),
    ],
)
def test_damage(text: str, kinds: set[str]) -> None:
    import orjson

    assert damage(orjson.dumps(text), [text]) == kinds

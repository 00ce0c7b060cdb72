"""The dataset stage on merged rows made by hand: ids, masks, sides, card and page."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.made.call_templates import WRITTEN, template
from tests.made.merged_rows import PROMPTS, RUN, Built, reply, row
from tests.made.model import IM_END, IM_START, THINK, THINK_CLOSE, byte_tokenizer
from tests.made.prompts import tiny_prompts
from workflow_scripts.dataset.card import cell
from workflow_scripts.dataset.drift import TemplateChanged
from workflow_scripts.dataset.samples import kept_ids, read_samples
from workflow_scripts.dataset.survey import split_sides
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.tables.columns import COMPLETIONS

# ---- ids and masks ----


def test_ids_and_mask_by_hand(tmp_path: Path) -> None:
    built = Built(tmp_path, [row(1, "Hi", reply("Yo", "hm"))])
    (found,) = built.rows().to_dicts()
    head = [IM_START, *b"user\nHi", IM_END, 10, IM_START, *b"assistant\n", THINK, 10]
    completion = [*b"hm\n", THINK_CLOSE, *b"\n\nYo", IM_END]
    assert found["input_ids"] == head + completion
    assert found["loss_mask"] == [0] * len(head) + [1] * len(completion)
    assert (found["length"], found["prompt_length"]) == (len(head) + len(completion), len(head))
    assert found["reasoning_length"] == len(b"hm\n") + 1  # up to and with </think>
    assert found["class"] == "complete" and found["on_policy"] and found["loop_score"] == 0
    messages = json.loads(found["messages"])
    assert messages[1] == {"role": "assistant", "content": "Yo", "reasoning_content": "hm"}
    assert built.stats["tokens"] == len(head) + len(completion)
    assert built.stats["supervised_tokens"] == len(completion)
    assert built.stats["reasoning_tokens"] == 4


def test_without_thinking_by_hand(tmp_path: Path) -> None:
    plain = tiny_prompts(thinking=False)
    built = Built(tmp_path, [row(1, "Hi", reply("Yo", None), prompts=plain)], plain)
    (found,) = built.rows().to_dicts()
    closed = [THINK, *b"\n\n", THINK_CLOSE, *b"\n\n"]
    head = [IM_START, *b"user\nHi", IM_END, 10, IM_START, *b"assistant\n", *closed]
    assert found["input_ids"] == [*head, *b"Yo", IM_END]
    assert sum(found["loss_mask"]) == 3 and found["reasoning_length"] == 0


def test_each_turn_is_a_row_and_earlier_reasoning_is_left_out(tmp_path: Path) -> None:
    """The template strips reasoning from the history, so each turn has a prompt of its own."""
    built = Built(tmp_path, [row(1, "a", reply("b", "r1"), "c", reply("d", "r2"))])
    one, two = built.rows().sort("turn").to_dicts()
    assert one["turn"] == 0 and two["turn"] == 1
    history = [IM_START, *b"user\na", IM_END, 10, IM_START, *b"assistant\nb", IM_END, 10]
    asked = [IM_START, *b"user\nc", IM_END, 10, IM_START, *b"assistant\n", THINK, 10]
    assert two["input_ids"][: two["prompt_length"]] == history + asked
    assert len(json.loads(one["messages"])) == 2 and len(json.loads(two["messages"])) == 4


LLAMA = """\
{{- '<|begin|>' }}{%- for m in messages %}
{{- '<|head|>' + m.role + '<|/head|>\\n\\n' + m.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\\n\\n' }}{%- endif %}
"""


def test_a_kept_response_of_another_family_by_hand() -> None:
    """The layout of Llama 3: a header a turn, no thinking, content trimmed."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<|begin|>", "<|head|>", "<|/head|>", "<|eot|>"])
    begin, head, close, eot = range(261, 265)
    prompts = Prompts(tokenizer.to_str(), LLAMA, {}, False, [eot])
    talk = [{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Yo\n"}]
    prompt, completion = kept_ids(prompts, talk)
    asked = [begin, head, *b"user", close, *b"\n\nHi", eot, head, *b"assistant", close, 10, 10]
    assert prompt == asked
    assert completion == [*b"Yo", eot]


def test_kept_calls_are_samples_where_calls_are_asked() -> None:
    """Their ids are what the template writes after its prompt."""
    prompts = tiny_prompts(template=template(WRITTEN["qwen"]))
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    talk = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "Yo"},
    ]
    merged = row(1, origin="kept", messages=json.dumps(talk))
    batch = pa.Table.from_pylist([merged], COMPLETIONS).to_batches()[0]
    one, two = read_samples(batch, 0, prompts, calls_too=True)
    written = b'<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert one.output_ids.tolist() == [*written, IM_END]
    assert two.output_ids.tolist() == [*b"Yo", IM_END]
    assert [json.loads(s.fields["calls"] or "0") for s in (one, two)] == [[call], 0]
    assert [s.fields["turn"] for s in (one, two)] == [0, 1] and not one.answer
    (only,) = read_samples(batch, 0, prompts)  # under `keep` the call is history
    assert only.output_ids.tolist() == two.output_ids.tolist() and only.fields["turn"] == 0


def test_endings_are_counted_and_told(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    cut = reply("Hm", calls=json.dumps([call]), ended="calls_differ")
    built = Built(tmp_path, [row(1, "a", cut), row(2, "b", reply("fine"))])
    assert built.stats["ended"] == {"calls_differ": 1}
    told = built.rows().sort("line")
    assert told["ended"].to_list() == ["calls_differ", None]
    assert told["calls"].to_list() == [json.dumps([call]), None]


def test_a_kept_response_is_off_policy(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "old"}]
    kept = row(1, origin="kept", messages=json.dumps(messages))
    (found,) = Built(tmp_path, [kept]).rows().to_dicts()
    assert not found["on_policy"] and found["class"] == "kept"
    supervised = [i for i, m in zip(found["input_ids"], found["loss_mask"], strict=True) if m]
    assert supervised == [*b"old", IM_END]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=3))
def test_any_conversation_comes_back(talk: list[tuple[str, str, str]]) -> None:
    """The row decodes to the conversation, and the mask covers exactly the generated ids."""
    said: list[Any] = []
    for question, reasoning, answer in talk:
        said += [question, reply(answer, reasoning)]
    table = pa.Table.from_pylist([row(1, *said)], COMPLETIONS)
    samples = list(read_samples(table.to_batches()[0], 0, PROMPTS))
    assert len(samples) == len(talk)
    for sample, (question, reasoning, answer) in zip(samples, talk, strict=True):
        given_ids = [*reasoning.encode(), 10, THINK_CLOSE, 10, 10, *answer.encode(), IM_END]
        assert sample.output_ids.tolist() == given_ids
        assert sample.question == question and sample.answer == answer
        text = bytes(i for i in sample.prompt_ids.tolist() if i < 256).decode()
        assert text.endswith(f"user\n{question}\nassistant\n\n")
        assert sample.fields["reasoning_length"] == len(reasoning.encode()) + 2


def test_no_id_is_lost_across_batches_and_files(tmp_path: Path) -> None:
    """Slices of Arrow arrays and files of a few rows keep every row's own ids."""
    rows = [row(n, f"q{n}", reply(f"answer {n}"), "more", reply(f"{n}!")) for n in range(1, 1100)]
    built = Built(tmp_path, rows, rows_per_file=300)
    files = sorted(built.folder.glob("train-*"))
    assert [pq.read_metadata(f).num_rows for f in files] == [300] * 7 + [98]
    for found in built.rows().iter_rows(named=True):
        text = f"answer {found['line']}" if found["turn"] == 0 else f"{found['line']}!"
        assert found["input_ids"][-len(text) - 1 :] == [*text.encode(), IM_END]
        assert sum(found["loss_mask"]) == found["completion_length"]
    meta = pq.read_schema(files[0]).metadata
    assert meta[b"tracemill.run_hash"] == RUN["run_hash"].encode()


# ---- drift ----


def test_drift_is_counted_and_not_introduced(tmp_path: Path) -> None:
    """The model wrote </think> as seven bytes; text would make one token of it. The ids stay."""
    spelled = reply("is </think> a tag", "so")
    built = Built(tmp_path, [row(1, "a", reply("b")), row(2, "c", spelled)])
    drift = built.stats["drift"]
    assert (drift["turns_checked"], drift["turns_differing"]) == (2, 1)
    assert drift["tokens_longer"] == 1 - len("</think>")
    assert drift["example"] == "a.jsonl:2, turn 0"
    assert built.stats["rows_spelling_control_tokens"] == 1
    assert built.rows()["input_ids"][1].to_list()[-17:-1] == list(b"s </think> a tag")


def test_a_template_that_renders_otherwise_now(tmp_path: Path) -> None:
    changed = row(1, "a", reply("b"))
    changed["turns"][0]["prompt_ids"] = changed["turns"][0]["prompt_ids"][1:]
    with pytest.raises(TemplateChanged, match=r"a\.jsonl:1, turn 0.*renders differently"):
        Built(tmp_path, [changed])


# ---- sides ----


def test_near_duplicates_never_cross_the_split(tmp_path: Path) -> None:
    words = "the quick brown fox jumps over a lazy dog by the old river bank at noon today"
    rows = [row(3 * n + k, f"{n} {words} {n} {words}{'.' * k}", reply("b")) for n in range(60)
            for k in range(3)]  # fmt: skip
    built = Built(tmp_path, rows, validation_fraction=0.3, filters={"repeated": "keep"})
    train, validation = (set(built.rows(s)["prompt_cluster"]) for s in ("train", "validation"))
    assert train and validation and not train & validation
    assert built.stats["rows"]["train"] + built.stats["rows"]["validation"] == 180
    sides = (
        {line // 3 for line in built.lines("train")},
        {line // 3 for line in built.lines("validation")},
    )
    assert not sides[0] & sides[1]


def test_a_cluster_keeps_its_side_when_rows_move() -> None:
    hashes = ["b", "a", "c", "d"]
    for fraction in (0.2, 0.5, 0.8):
        one = split_sides(np.array([0, 0, 2, 3]), hashes, fraction)
        other = split_sides(np.array([0, 1, 2, 2]), ["d", "c", "a", "b"], fraction)
        assert one[0] == one[1] == other[2] == other[3]
        assert one.tolist()[2:] == other.tolist()[:2][::-1]


def test_the_share_held_out() -> None:
    found = split_sides(np.arange(20_000), [f"{n:032x}" for n in range(20_000)], 0.1)
    assert 0.09 < found.mean() < 0.11  # 6 standard deviations are 0.013


def test_what_only_drafters_take(tmp_path: Path) -> None:
    cut = reply("and so on", **{"class": "truncated_in_answer", "finish_reason": "length"})
    rows = [row(n, f"question {n}", cut if n % 2 else reply(f"x{n}")) for n in range(1, 41)]
    built = Built(
        tmp_path, rows, validation_fraction=0.3, filters={"truncated_in_answer": "drafter"}
    )
    drafter, dropped = built.lines("drafter"), built.dropped()
    assert all(n % 2 for n in drafter) and len(drafter) + len(dropped) == 20
    assert set(dropped.values()) == {"truncated_in_answer"}  # held out: whole answers only
    assert all(n % 2 == 0 for n in built.lines("train") + built.lines("validation"))
    assert built.stats["rows"]["drafter"] == len(drafter) > 0
    front = yaml.safe_load((built.folder / "README.md").read_text().split("---\n")[1])
    splits = [entry["split"] for entry in front["configs"][0]["data_files"]]
    assert splits == ["train", "validation", "drafter"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b\nc", "a\\|b c"),
        ("<img src=x onerror=alert(1)>", "\\<img src=x onerror=alert(1)\\>"),
        ("[click](javascript:alert(1))", "\\[click\\](javascript:alert(1))"),
        ("truncated_in_answer", "truncated_in_answer"),
        ("`x` \\", "\\`x\\` \\\\"),
    ],
)
def test_names_in_the_card_are_text(text: str, shown: str) -> None:
    assert cell(text) == shown


# ---- card and page ----


def test_the_card(tmp_path: Path) -> None:
    rows = [row(1, "a", reply("b")), row(2, "c", reply("d", retractions=2))]
    built = Built(tmp_path, rows, license="apache-2.0", filters={"retracted": "drop"})
    text = (built.folder / "README.md").read_text()
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["license"] == "apache-2.0" and front["size_categories"] == ["n<1K"]
    assert "| train | 1 | |" in text and "| retracted | 1 |" in text
    assert "| a.jsonl | 1 |" in text and "| seed | 5 |" in text and RUN["run_hash"] in text
    # s, o, a line end, </think>, two line ends, b and <|im_end|>
    assert "6 different ids are among the 8 supervised tokens" in text
    assert "| 8,000 | 100.0 % |" in text


def test_the_page_colours_what_the_mask_covers(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script> é😀"
    built = Built(tmp_path, [row(1, hostile, reply("yes", "hm"))])
    page = (built.folder / "samples.html").read_text()
    assert "<script>" not in page and "&lt;" in page
    assert '<span class="s" title="121">y</span>' in page  # y of the answer: trained on
    assert '<span class="p" title="240 159 152 128">😀</span>' in page  # one sign, four tokens
    assert f'<span class="s c" title="{IM_END}">&lt;|im_end|&gt;</span>' in page
    assert f'<span class="p c" title="{THINK}">&lt;think&gt;</span>' in page

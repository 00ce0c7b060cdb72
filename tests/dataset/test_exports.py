"""Exports: rows worked out by hand, and everything that was trained on is in them.

That the trainers' own loaders read them to the same ids and masks is shown by
benchmarks/trainers.py: their packages are not part of the tests' environment.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.made.training_rows import row, write
from workflow_scripts.config.audit import Rules
from workflow_scripts.dataset import exports
from workflow_scripts.dataset.exports import ratio_of, write_exports
from workflow_scripts.input.conversation import read_conversation
from workflow_scripts.input.reasoning import is_switch
from workflow_scripts.model.given import NOTHING

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "2+2?"}
THOUGHT = {"role": "assistant", "content": "4", "reasoning_content": "Two and two."}
PLAIN = {"role": "assistant", "content": "Four"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "c1"}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write(
        tmp_path / "dataset",
        train_00000=[
            row("a", [5, 6, 7, 8], 2, [SYSTEM, ASK, THOUGHT]),
            row("a", [5, 6, 7, 9, 3], 4, [SYSTEM, ASK, THOUGHT, ASK, PLAIN], turn=1),
            row("b", [1, 2], 1, [ASK, THOUGHT], **{"class": "truncated_in_thinking"}),
        ],
        train_00001=[row("c", [4, 4, 4], 1, [ASK, CALLS, RESULT, PLAIN])],
        validation_00000=[row("d", [7, 8], 1, [ASK, PLAIN])],
        rejected=[],  # no side: it has no number
    )


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_text_forms(dataset: Path) -> None:
    told = write_exports(dataset, ["sharegpt", "sharegpt_inline", "messages"])
    counts = {"train": {"rows": 3, "left_out": 1}, "validation": {"rows": 1, "left_out": 0}}
    assert told == dict.fromkeys(("sharegpt", "sharegpt_inline", "messages"), counts)
    out = dataset / "exports"
    system, ask = '{"from":"system","value":"Be brief."}', '{"from":"human","value":"2+2?"}'
    thought = '{"from":"gpt","value":"4","reasoning_content":"Two and two."}'
    inline = '{"from":"gpt","value":"<think>\\nTwo and two.\\n</think>\\n\\n4"}'
    plain = '{"from":"gpt","value":"Four"}'
    call = json.dumps([CALL], separators=(",", ":"))
    called = f'{{"from":"gpt","value":"","tool_calls":{call}}}'
    called += ',{"from":"tool","value":"4","tool_call_id":"c1"}'
    # LLaMA-Factory's names, by its documentation of the sharegpt format
    known = r'{"from":"function_call","value":"[{\"name\":\"add\",\"arguments\":\"{}\"}]"}'
    known += ',{"from":"observation","value":"4"}'
    for form, said, calling in (
        ("sharegpt", thought, called),
        ("sharegpt_inline", inline, known),
    ):
        assert lines(out / form / "train.jsonl") == [
            f'{{"id":"a-0","conversations":[{system},{ask},{said}]}}',
            f'{{"id":"a-1","conversations":[{system},{ask},{said},{ask},{plain}]}}',
            f'{{"id":"c-0","conversations":[{ask},{calling},{plain}]}}',
        ]
        assert lines(out / form / "validation.jsonl") == [
            f'{{"id":"d-0","conversations":[{ask},{plain}]}}'
        ]
    first, _, third = lines(out / "messages/train.jsonl")
    assert json.loads(first) == {"id": "a-0", "messages": [SYSTEM, ASK, THOUGHT]}
    assert json.loads(third) == {"id": "c-0", "messages": [ASK, CALLS, RESULT, PLAIN]}


def test_forms_with_ids_hold_every_row(dataset: Path) -> None:
    told = write_exports(dataset, ["specforge", "speculators"])
    assert told["specforge"] == {"train": {"rows": 4}, "validation": {"rows": 1}}
    assert lines(dataset / "exports/specforge/train.jsonl") == [
        '{"id":"a-0","input_ids":[5,6,7,8],"loss_mask":[0,0,1,1]}',
        '{"id":"a-1","input_ids":[5,6,7,9,3],"loss_mask":[0,0,0,0,1]}',
        '{"id":"b-0","input_ids":[1,2],"loss_mask":[0,1]}',
        '{"id":"c-0","input_ids":[4,4,4],"loss_mask":[0,1,1]}',
    ]
    assert told["speculators"] == {
        "train": {"rows": 4, "validation": 1, "train_data_ratio": 0.9}
    }  # 4.5 of 5
    folder = dataset / "exports/speculators"
    names = ("row_id", "turn", "seq_len", "input_ids", "loss_mask")
    assert [tuple(r[name] for name in names) for r in arrow_rows(folder)] == [
        ("a", 0, 4, [5, 6, 7, 8], [0, 0, 1, 1]),
        ("a", 1, 5, [5, 6, 7, 9, 3], [0, 0, 0, 0, 1]),
        ("b", 0, 2, [1, 2], [0, 1]),
        ("c", 0, 3, [4, 4, 4], [0, 1, 1]),
        ("d", 0, 2, [7, 8], [0, 1]),
    ]
    # as datasets 5.1.0 wrote them for a set with these columns
    features = json.loads((folder / "dataset_info.json").read_text())["features"]
    assert features["input_ids"] == {
        "feature": {"dtype": "int32", "_type": "Value"},
        "_type": "List",
    }
    assert features["row_id"] == {"dtype": "string", "_type": "Value"}
    state = json.loads((folder / "state.json").read_text())
    assert state["_format_type"] == "torch" and state["_split"] is None


def arrow_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a folder as `datasets` reads it: the streams that state.json names, in order."""
    names = [f["filename"] for f in json.loads((folder / "state.json").read_text())["_data_files"]]
    assert sorted(names) == sorted(p.name for p in folder.glob("*.arrow"))
    return [r for name in names for r in pa.ipc.open_stream(folder / name).read_all().to_pylist()]


def test_the_fingerprint_follows_the_content(dataset: Path) -> None:
    """`datasets` would hand out what it cached for another set."""

    def fingerprint() -> str:
        write_exports(dataset, ["speculators"])
        state = (dataset / "exports/speculators/state.json").read_text()
        return json.loads(state)["_fingerprint"]

    first = fingerprint()
    assert len(first) == 16 and fingerprint() == first
    write(dataset, validation_00000=[row("d", [7, 9], 1, [ASK, PLAIN])])
    assert fingerprint() != first


def test_drafters_alone_learn_what_is_for_them(dataset: Path) -> None:
    write(dataset, drafter_00000=[row("e", [1, 2], 1, [ASK, PLAIN])])
    told = write_exports(dataset, ["messages", "specforge", "speculators"])
    assert told["messages"].keys() == {"train", "validation"}
    assert told["specforge"] == {"train": {"rows": 5}, "validation": {"rows": 1}}
    made = lines(dataset / "exports/specforge/train.jsonl")
    assert [json.loads(line)["id"] for line in made] == ["a-0", "a-1", "b-0", "c-0", "e-0"]
    found = arrow_rows(dataset / "exports/speculators")
    assert [r["row_id"] for r in found] == ["a", "a", "b", "c", "e", "d"]
    assert int(6 * told["speculators"]["train"]["train_data_ratio"]) == 5


def test_what_cannot_be_written_is_said(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown export trl; there are sharegpt, "):
        write_exports(dataset, ["trl"])
    with pytest.raises(ValueError, match=r"no train-\*\.parquet"):
        write_exports(tmp_path, ["messages"])


def test_a_file_appears_only_when_it_is_whole(dataset: Path) -> None:
    write(dataset, train_00001=[row("c", [4], 0, "no conversation")])
    with pytest.raises(AttributeError):
        write_exports(dataset, ["sharegpt"])
    assert list((dataset / "exports/sharegpt").iterdir()) == []


@given(st.data(), st.integers(2, 2**40))
def test_the_ratio_cuts_between_training_and_validation(data: st.DataObject, rows: int) -> None:
    """speculators' ArrowDataset splits at int(rows * ratio)."""
    cut = data.draw(st.integers(1, rows - 1))
    ratio = ratio_of(cut, rows)
    assert 0 < ratio < 1 and int(rows * ratio) == cut


ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5)


@settings(max_examples=25)  # each writes files
@given(st.lists(st.lists(ids, max_size=5), min_size=1, max_size=3), st.integers(1, 4))
def test_ids_come_back(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[list[int]]], batch: int
) -> None:
    """Whatever the files, row groups and batches are."""
    folder = tmp_path_factory.mktemp("ids")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exports, "BATCH", batch)
        names = {f"train_{n:05d}": [row("r", i, 1, []) for i in of] for n, of in enumerate(files)}
        write_exports(write(folder, **names), ["specforge", "speculators"])
    want = [(i, [0] + [1] * (len(i) - 1)) for of in files for i in of]
    found = [json.loads(line) for line in lines(folder / "exports/specforge/train.jsonl")]
    assert [(r["input_ids"], r["loss_mask"]) for r in found] == want
    stored = arrow_rows(folder / "exports/speculators")
    assert [(r["input_ids"], r["loss_mask"]) for r in stored] == want


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text.strip() and "think>" not in text and not is_switch(text)
)


@given(st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=3))
def test_text_forms_read_back(turns: list[tuple[str, str, str]]) -> None:
    """By the reader of inputs, which knows the form from elsewhere (tests/test_input.py)."""
    messages = []
    for question, reasoning, answer in turns:
        messages.append({"role": "user", "content": question})
        told = {"role": "assistant", "content": answer, "reasoning_content": reasoning}
        messages.append(told)
    for form in (exports.sharegpt, exports.plain_messages):
        read = read_conversation(json.loads(json.dumps(form(messages, NOTHING))), Rules()).turns
        assert [turn.as_dict() for turn in read] == messages


def test_tools_and_documents_stand_beside_the_conversation(tmp_path: Path) -> None:
    """As TRL, SpecForge and transformers take them, lists; LLaMA-Factory's `tools` is JSON text."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    documents = [{"title": "a", "text": "b"}]
    beside = {"tools": json.dumps(tools), "documents": json.dumps(documents)}
    made = write(tmp_path / "d", train_0=[row("a", [1, 2], 1, [ASK, PLAIN], **beside)])
    write_exports(made, ["messages", "sharegpt", "sharegpt_inline"])
    (chat,), (told,), (inline,) = (
        map(json.loads, lines(made / f"exports/{form}/train.jsonl"))
        for form in ("messages", "sharegpt", "sharegpt_inline")
    )
    assert chat == {"id": "a-0", "messages": [ASK, PLAIN], "tools": tools, "documents": documents}
    assert (told["tools"], told["documents"]) == (tools, documents)
    assert json.loads(inline["tools"]) == tools and isinstance(inline["tools"], str)

"""What is no text is refused, wherever it stands; text that speaks of it is not."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.made.conversations import HI, KEEP, assistant, reason, rejected, turns, user
from workflow_scripts.input.lines import read_lines

CHAT = [user("hi"), assistant("hello")]


@pytest.mark.parametrize(
    "column",
    {
        "image": "street/0001.jpg",
        "images": [{"path": "a.png"}],
        "image_path": "a.png",
        "img": {"url": "a.png"},
        "audio": {"array": [0.5, 0], "sampling_rate": 16000},
        "audios": ["a.wav"],
        "video": "a.mp4",
        "videos": ["a.mp4"],
        "pixel_values": [[0, 0], [0, 0]],
        "attachments": ["a.pdf"],
        "jpg": {"bytes": "ff", "path": None},
        "pages": [{"bytes": None, "path": "a.png"}],
    }.items(),
    ids=str,
)
def test_columns(column: tuple[str, Any]) -> None:
    name, value = column
    told = f"the column `{name}` holds an image, audio, video or file, not text"
    for record in ({"messages": CHAT}, {"prompt": "hi", "response": "hello"}):
        assert rejected({**record, name: value}) == ("not_text", told)


@pytest.mark.parametrize("value", [None, "", [], {}, [None], {"bytes": None, "path": None}, False])
def test_columns_that_hold_nothing(value: Any) -> None:
    for name in ("image", "images", "figure"):
        assert turns({"messages": CHAT, name: value}) == HI


def test_columns_of_a_message() -> None:
    found = rejected({"messages": [{**user("hi"), "images": ["a.png"]}, assistant("hello")]})
    assert found[0] == "not_text" and found[1].startswith("messages[0].images holds an image")
    assert turns({"messages": [{**user("hi"), "images": []}, assistant("hello")]}) == HI


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "text": "", "image": "x.png"},
        {"type": "image_url", "image_url": {"url": "x.png"}, "text": "hi"},
        {"type": "input_audio", "input_audio": {"data": "ff"}, "text": ""},
        {"type": "video", "text": "hi"},
        {"type": "file", "file": {"file_id": "f"}, "text": "hi"},
        {"type": "text", "text": "hi", "image": "x.png"},
        {"text": "hi", "image_url": "x.png"},
    ],
)
def test_parts(part: dict[str, Any]) -> None:
    assert reason({"messages": [user([part, {"type": "text", "text": "What?"}])]}) == "not_text"
    result = {"role": "tool", "content": [part]}
    call = assistant(None, tool_calls=[{"function": {"name": "f"}}])
    assert reason({"messages": [user("hi"), call, result]}, KEEP) == "not_text"


def test_a_part_padded_with_nulls_is_text() -> None:
    part = {"type": "text", "text": "hi", "image_url": None, "image": None}
    assert turns({"messages": [user([part]), assistant("hello")]}) == HI


def test_a_table_with_images(tmp_path: Path) -> None:
    image = {"bytes": b"\x89PNG", "path": "a.png"}
    none = {"bytes": None, "path": None}
    text = {"type": "text", "text": "hi", "image_url": None}
    shown = {"type": "image_url", "text": None, "image_url": {"url": "a.png"}}
    rows: list[dict[str, Any]] = [
        {"messages": [user([text]), assistant([{**text, "text": "hello"}])], "photo": None},
        {"messages": [user([text]), assistant([text])], "photo": [none]},
        {"messages": [user([text]), assistant([text])], "photo": [image]},
        {"messages": [user([shown, text]), assistant([text])], "photo": None},
    ]
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist(rows), path)
    records = [line.record for line in read_lines(path)]
    assert turns(records[0]) == HI
    assert turns(records[1])[0] == HI[0]
    assert [reason(record) for record in records[2:]] == ["not_text", "not_text"]


@pytest.mark.parametrize(
    "text",
    [
        "<image>\nHow many bikes?",
        "How many bikes?\n<image>",
        "How many bikes? <image>",
        "<image> How many bikes?",
        "Look:\n<image>\nHow many?",
        "Look:\r\n  <image><image> \r\nHow many?",
        "<audio>\nWhat is said?",
        "<video>",
        "<|image_1|>\nWhat is it?",
        "<|vision_start|><|image_pad|><|vision_end|>What is it?",
        "<|AUDIO|> What is said?",
        "<start_of_image> What is it?",
        "[IMG] What is it?",
        "What is it?\n<image 1>",
        "<ImageHere> What is it?",
    ],
)
def test_marks(text: str) -> None:
    why, told = rejected({"messages": [user(text), assistant("Two.")]})
    assert why == "not_text" and told.startswith("user turn 1 has the mark ")
    later = [user("hi"), assistant("hello"), user(text), assistant("Two.")]
    assert rejected({"messages": later})[1].startswith("user turn 2 has the mark ")
    assert reason({"prompt": text, "response": "Two."}) == "not_text"


@pytest.mark.parametrize(
    "text",
    [
        "What does the <image> tag in my file mean?",
        "Is `<image>` allowed?",
        "Close it:\n<video>\n<source src='a.mp4'>\n</video>",
        "<image href='a.png'/> is SVG, is it?",
        "<|im_start|>user",
        "Fill in:\n<image_title_of_the_page>\n",
        "[IMAGE]",
        "x < y and\n<imagine>\n",
        "<image" + "1" * 99 + "!",
    ],
)
def test_texts_that_only_speak_of_it(text: str) -> None:
    assert turns({"messages": [user(text), assistant("hello")]})[0] == ("user", text)


def test_an_answer_may_hold_a_mark() -> None:
    answer = "<image>\nis what you write."
    assert turns({"messages": [user("hi"), assistant(answer)]})[1] == ("assistant", answer)

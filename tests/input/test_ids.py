"""The user's own id, and lines whose numbers are none."""

from pathlib import Path

import pytest

from tests.made.conversations import RULES, assistant, user
from tests.made.input_files import write
from workflow_scripts.config.audit import Columns
from workflow_scripts.input.conversation import read_conversation
from workflow_scripts.input.ids import user_id
from workflow_scripts.input.lines import read_lines


def test_ids() -> None:
    assert user_id({"id": 7}) == "7" and user_id({"id": "7"}) == '"7"'
    assert user_id({"id": None, "uuid": "u"}) == '"u"'
    assert user_id({"question_id": 3}) == "3" and user_id({"x": 3}) is None


def test_a_path_as_id() -> None:
    record = {
        "meta": {"id": "k1", "url": "u"},
        "id": 3,
        "messages": [user("hi"), assistant("hello")],
    }
    assert user_id(record, "meta.id") == '"k1"'
    assert user_id(record, "meta.none") is None and user_id({"meta.id": 2}, "meta.id") == "2"
    found = read_conversation(record, RULES, Columns(id="meta.id"))
    assert found.taken == {"meta", "messages"} and found.ignored == {"meta.url"}


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_has_not(tmp_path: Path, name: str) -> None:
    for raw in (f'{{"score": {name}, "id": 1}}', f'[{{"score": [1.5, {name}]}}]'):
        (line,) = read_lines(write(tmp_path / "x", raw.encode()))
        told = f"{name} is not JSON; write null for NaN and Infinity"
        assert line.reject == ("invalid_json", told)


def test_other_faults_are_told_as_before(tmp_path: Path) -> None:
    (line,) = read_lines(write(tmp_path / "x", b'{"a": tru, "b": NaN}'))
    assert line.reject is not None and "NaN" not in line.reject[1]

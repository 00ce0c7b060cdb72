"""Turns that call tools, regenerated: where the model makes the same calls the recorded results
follow; everything else ends the conversation with its reason."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.generate.test_asker import MadePool
from tests.made.call_templates import WRITTEN, template
from tests.made.model import IM_END, TEMPLATE, byte_tokenizer, make_model
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.load import load
from workflow_scripts.dataset.samples import read_samples
from workflow_scripts.engine.pool import Failure, Pool
from workflow_scripts.generate.asker import Asker
from workflow_scripts.generate.journal import Journal
from workflow_scripts.generate.rows import Row, write_shard
from workflow_scripts.merge import completed
from workflow_scripts.model.answers import Answer
from workflow_scripts.model.given import Given
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.tables.columns import SHARD

RUN, ROW = "feedfacefeedface", "0123456789abcdef" * 2
SUNNY = {"role": "tool", "content": "sunny", "tool_call_id": "c1"}
BYE = {"role": "assistant", "content": "old"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def call(number: int, name: str = "weather", **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"c{number}", "type": "function", "function": function}


def said(text: str) -> Answer:
    return Answer([*byte_tokenizer().encode(text).ids, IM_END], "stop", IM_END)


def calls(*these: str, before: str = "") -> Answer:
    """An answer with calls as Qwen writes them."""
    return said(before + "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in these))


BONN = '{"name": "weather", "arguments": {"city": "Bonn"}}'
ASKED = [user("Weather?"), called(call(1, city="Bonn")), SUNNY, BYE]


class Case:
    """A model whose template writes calls as Qwen's does, and what was made of one row."""

    def __init__(self, folder: Path, tool_turns: str = "regenerate"):
        self.folder, self.tool_turns = folder, tool_turns
        self.model = make_model(folder / "model", template(WRITTEN["qwen"]))
        self.journal: Journal | None = None

    def asker(self) -> Asker:
        if self.journal:
            self.journal.close()
        config = load(
            {
                "output_dir": str(self.folder),
                "input": "x",
                "model": {"path": str(self.model), "thinking": False},
                "engine": {"kind": "attach", "urls": ["http://a"]},
                "audit": {"rules": {"tool_turns": self.tool_turns}},
            }
        )
        self.journal = Journal(self.folder / "journal", 0, 1)
        return Asker(config, Prompts.from_config(config), RUN, self.journal)

    def ask(
        self, messages: list[dict[str, Any]], *answers: Answer | Failure, tools: Any = TOOLS
    ) -> tuple[dict[str, Any], MadePool]:
        """The row as it is written out after it was asked, and what it was asked."""
        asker, pool = self.asker(), MadePool(*answers)
        given = Given(tools=tools)
        row = self._row(asker, messages, given)
        asyncio.run(asker.ask(row, cast(Pool, pool)))
        assert row.over and len(pool.asked) == len(answers)
        whole = self._written(asker, row, messages, given)
        again = self.asker()  # from the journal alone it comes to the same
        recalled = self._row(again, messages, given)
        assert recalled.over or row.failure
        if not row.failure:
            assert self._written(again, recalled, messages, given) == whole
        return whole, pool

    def _row(self, asker: Asker, messages: list[dict[str, Any]], given: Given) -> Row:
        row = Row(ROW, json.loads(json.dumps(messages)), given)
        asker.prepare([row])
        asker.recall(row)
        return row

    def _written(
        self, asker: Asker, row: Row, messages: list[dict[str, Any]], given: Given
    ) -> dict[str, Any]:
        fields = {"row_id": ROW, "content_hash": "h", "source": "a", "line": 1, "id": None}
        fields |= {"messages": json.dumps(messages), "response_tokens": 3, **given.columns()}
        table = pa.Table.from_pylist([fields], SHARD)
        write_shard(self.folder / "out", table, [row], asker.journal, asker.course, RUN)
        self.table = pq.read_table(self.folder / "out.parquet")
        (found,) = self.table.to_pylist()
        found["messages"] = json.loads(found["messages"])
        return found

    def samples(self) -> list[dict[str, Any]]:
        """The row's training samples."""
        prompts, batches = self.asker().prompts, completed(self.table).to_batches()
        calls_too = self.tool_turns == "regenerate"
        samples = list(read_samples(batches[0], 0, prompts, calls_too))
        for sample in samples:  # what was sent is what the history in the tables gives
            now = prompts.prompt_ids(sample.messages[:-1], sample.given)
            assert now == sample.prompt_ids.tolist()
        return [s.fields | {"messages": orjson.loads(s.fields["messages"])} for s in samples]


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    if made.journal:
        made.journal.close()


def told(row: dict[str, Any]) -> list[tuple[Any, str | None]]:
    """Calls and ending of each turn."""
    return [(t["calls"] and json.loads(t["calls"]), t["ended"]) for t in row["turns"]]


def names(row: dict[str, Any]) -> list[str]:
    return [message["role"] for message in row["messages"]]


# ---- the same calls -----------------------------------------------------------------------------


def test_the_same_calls_go_on_to_the_recorded_result(case: Case) -> None:
    answer = calls('{"arguments": {"city": "Bonn"}, "name": "weather"}', before="I look.\n")
    row, pool = case.ask(ASKED, answer, said("Sunny there."))
    function = {"name": "weather", "arguments": {"city": "Bonn"}}
    own = {"id": "c1", "type": "function", "function": function}  # the old id
    turn = {"role": "assistant", "content": "I look.", "tool_calls": [own]}
    last = {"role": "assistant", "content": "Sunny there."}
    assert row["messages"] == [ASKED[0], turn, SUNNY, last]
    assert told(row) == [([own], None), (None, None)]
    assert row["turns"][0]["answer"] == "I look.\n<tool_call>\n" + (
        '{"arguments": {"city": "Bonn"}, "name": "weather"}\n</tool_call>'
    )
    assert pool.prompts()[1] == (
        "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\nI look.<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"
    )
    one, two = case.samples()
    assert (one["turn"], one["messages"]) == (0, row["messages"][:2])
    assert (two["turn"], two["messages"]) == (1, row["messages"])
    assert json.loads(one["calls"]) == [own] and one["ended"] is two["calls"] is None
    assert one["class"] == two["class"] == "complete"


def test_parallel_calls_are_compared_in_order(case: Case) -> None:
    both = [call(1, city="Bonn"), call(2, city="Rome", days=1)]
    messages = [user("Weather?"), called(*both), SUNNY, {**SUNNY, "tool_call_id": "c2"}, BYE]
    rome = '{"name": "weather", "arguments": {"days": 1.0, "city": "Rome"}}'
    row, _ = case.ask(messages, calls(BONN, rome), said("Fine."))
    assert names(row) == ["user", "assistant", "tool", "tool", "assistant"]
    assert [c["id"] for c in row["messages"][1]["tool_calls"]] == ["c1", "c2"]
    assert len(case.samples()) == 2


def test_parallel_calls_in_another_order_are_others(case: Case) -> None:
    both = [call(1, city="Bonn"), call(2, city="Rome")]
    messages = [user("Weather?"), called(*both), SUNNY, SUNNY, BYE]
    row, _ = case.ask(messages, calls('{"name": "weather", "arguments": {"city": "Rome"}}', BONN))
    assert told(row)[0][1] == "calls_differ"


def test_calls_after_each_other_go_on_to_the_end(case: Case) -> None:
    messages = [
        user("a"), called(call(1, city="Bonn")), SUNNY, called(call(2, "more"), content="hm"),
        SUNNY, BYE, user("b"), BYE,
    ]  # fmt: skip
    more = '{"name": "more", "arguments": {}}'
    row, pool = case.ask(messages, calls(BONN), calls(more), said("c"), said("d"))
    assert names(row) == [m["role"] for m in messages] and len(pool.asked) == 4
    assert [ended for _, ended in told(row)] == [None] * 4
    assert [s["turn"] for s in case.samples()] == [0, 1, 2, 3]


# ---- what ends a conversation -------------------------------------------------------------------


def test_other_calls_end_it(case: Case) -> None:
    row, _ = case.ask(ASKED, calls('{"name": "weather", "arguments": {"city": "Rome"}}'))
    ((found, ended),) = told(row)
    assert ended == "calls_differ" and found[0]["function"]["arguments"] == {"city": "Rome"}
    assert "id" not in found[0]  # no result belongs to it
    assert row["status"] == "completed" and names(row) == ["user", "assistant"]
    # without a text, as the old turn says it
    assert row["messages"][1] == {"role": "assistant", "content": None, "tool_calls": found}
    (sample,) = case.samples()
    assert sample["ended"] == "calls_differ" and sample["messages"] == row["messages"]


def test_an_answer_in_place_of_a_call_ends_it(case: Case) -> None:
    row, _ = case.ask(ASKED, said("It is sunny, I guess."))
    assert told(row) == [(None, "no_call")]
    assert row["messages"] == [
        ASKED[0], {"role": "assistant", "content": "It is sunny, I guess."}
    ]  # fmt: skip


@pytest.mark.parametrize("tool_turns", ["regenerate", "keep", "reject"])
def test_a_call_in_place_of_an_answer_ends_it(tmp_path: Path, tool_turns: str) -> None:
    """There is no result to go on with, whatever the rule for old calls is."""
    case = Case(tmp_path, tool_turns)
    row, _ = case.ask([user("Hi"), BYE, user("And?"), BYE], calls(BONN))
    ((found, ended),) = told(row)
    assert ended == "call_not_recorded" and found[0]["function"]["name"] == "weather"
    assert names(row) == ["user", "assistant"]
    (sample,) = case.samples()
    assert sample["turn"] == 0 and sample["ended"] == "call_not_recorded"


@pytest.mark.parametrize("tool_turns", ["regenerate", "keep"])
def test_a_call_that_cannot_be_read_ends_it(tmp_path: Path, tool_turns: str) -> None:
    case = Case(tmp_path, tool_turns)
    text = '<tool_call>\n{"name": "weather", "arguments": {"city"'
    row, _ = case.ask([user("Hi"), BYE, user("And?"), BYE], said(text))
    assert told(row) == [(None, "calls_unparsed")]
    assert row["messages"][1] == {"role": "assistant", "content": text}


def test_a_call_that_was_cut_is_not_known_whole(case: Case) -> None:
    whole = calls(BONN).output_ids[:-1]
    row, _ = case.ask(ASKED, Answer(whole, "length"))
    assert told(row) == [(None, "calls_unparsed")] and row["class"] == "truncated_in_answer"


def test_no_answer_at_all_ends_it_by_its_class(case: Case) -> None:
    row, _ = case.ask(ASKED, said(" "))
    assert told(row) == [(None, None)] and row["class"] == "no_answer"
    assert names(row) == ["user", "assistant"]


def test_a_failure_keeps_what_was_answered(case: Case) -> None:
    row, _ = case.ask(
        ASKED, calls(BONN), Failure("server_error", "500", 3, "http://a", 1.0, 1, 0.5)
    )
    assert row["status"] == "failed" and len(row["turns"]) == 1
    assert names(row) == ["user", "assistant"] and told(row)[0][1] is None


# ---- last turns ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "number"),
    [(calls(BONN), 1), (calls(BONN, BONN), 2), (said("No."), 0)],
    ids=["the same", "others", "an answer"],
)
def test_a_row_of_one_call_has_nothing_to_go_on_with(
    case: Case, answer: Answer, number: int
) -> None:
    """The shape of xLAM's rows. Nothing is ended: the row ends there."""
    row, _ = case.ask([user("Weather?"), called(call(1, city="Bonn"))], answer)
    ((found, ended),) = told(row)
    assert len(found or ()) == number and ended is None and row["class"] == "complete"
    assert row["messages"][1].get("tool_calls") == found
    assert len(case.samples()) == 1


def test_a_last_call_that_cannot_be_read_is_told(case: Case) -> None:
    row, _ = case.ask([user("Weather?"), BYE], said("<tool_call>weather"))
    assert told(row) == [(None, "calls_unparsed")]


def test_a_call_in_the_last_answer_is_told_under_keep(tmp_path: Path) -> None:
    case = Case(tmp_path, "keep")
    row, pool = case.ask(ASKED, calls(BONN, before="Again:"))
    assert len(pool.asked) == 1 and row["messages"][:3] == ASKED[:3]
    assert row["messages"][3]["content"] == "Again:" and row["messages"][3]["tool_calls"]
    assert told(row)[0][1] is None
    (sample,) = case.samples()
    assert sample["messages"] == row["messages"] and sample["calls"]


# ---- where nothing is looked for ----------------------------------------------------------------


def test_rows_without_tools_hold_no_calls(case: Case) -> None:
    """An answer about the marks of calls is an answer."""
    talk = [user("How do you write calls?"), BYE, user("Thanks"), BYE]
    row, pool = case.ask(talk, calls(BONN), said("You are welcome."), tools=None)
    assert told(row) == [(None, None)] * 2 and len(pool.asked) == 2
    assert "<tool_call>" in row["messages"][1]["content"]


def test_a_row_that_shows_calls_without_offering_tools_can_call(case: Case) -> None:
    """As sets whose system prompt says the tools in words."""
    row, pool = case.ask(ASKED, calls(BONN), said("Sunny."), tools=None)
    assert len(pool.asked) == 2 and told(row)[0][0] is not None


def test_a_template_whose_calls_are_not_known(tmp_path: Path) -> None:
    """Under `regenerate` an error before anything is asked; otherwise calls stay text."""
    case = Case(tmp_path)
    (case.model / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    with pytest.raises(ConfigError, match=r"audit\.rules\.tool_turns.*`keep`"):
        case.asker()
    case.tool_turns = "keep"
    row, pool = case.ask([user("Hi"), BYE, user("And?"), BYE], calls(BONN), said("Yes."))
    assert len(pool.asked) == 2 and told(row) == [(None, None)] * 2


def test_keep_asks_answers_only(tmp_path: Path) -> None:
    case = Case(tmp_path, "keep")
    row, pool = case.ask(ASKED, said("Sunny."))
    assert len(pool.asked) == 1 and row["messages"][:3] == ASKED[:3]


def test_answers_of_older_journals_are_taken(case: Case) -> None:
    """A record holds the answer alone; what it calls is read again each time."""
    case.ask(ASKED, calls(BONN), said("Sunny."))
    lines = (case.folder / "journal/shard-0000.n1.jsonl").read_bytes().splitlines()
    assert set(json.loads(lines[0][9:])) == {
        "output_ids", "finish", "class", "retractions", "accept_length", "attempts", "request",
        "row_id",
    }  # fmt: skip

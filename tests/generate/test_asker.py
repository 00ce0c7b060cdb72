"""A row's turns at a pool made by hand: what is asked, what the journal has already, what is not
sent."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.made.model import IM_END, THINK, byte_tokenizer, make_model
from workflow_scripts.config.load import load
from workflow_scripts.engine.places import NoServer
from workflow_scripts.engine.pool import Failure, Pool
from workflow_scripts.generate import asker as asker_module
from workflow_scripts.generate.asker import Asker
from workflow_scripts.generate.journal import Journal
from workflow_scripts.generate.rows import Row
from workflow_scripts.identity import rehearsal_length
from workflow_scripts.model.answers import Answer
from workflow_scripts.model.prompts import Prompts

RUN, ROW = "feedfacefeedface", "0123456789abcdef" * 2
FAILURE = Failure("server_error", "500: told", 3, "http://a", 75.5, 7, 0.25)
# refuses a conversation whose last question is `no`
STRICT = """\
{%- for m in messages %}
{%- if loop.last and m.content == 'no' %}{{ raise_exception('not this one') }}{% endif %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n<think>\\n' }}
"""


def answer(text: str) -> Answer:
    """An answer after a short reasoning, its ids by the byte tokenizer: one a byte."""
    return Answer([*byte_tokenizer().encode(f"hm</think>\n\n{text}").ids, IM_END], "stop", IM_END)


def conversation(*questions: str) -> list[dict[str, Any]]:
    messages = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": "old"})
    return messages


class MadePool:
    """Gives the answers and failures it was told until none is left; notes what it was asked."""

    def __init__(self, *found: Answer | Failure):
        self.found = iter(found)
        self.asked: list[tuple[list[int], int, int | None]] = []  # prompt ids, seed, fixed length

    async def ask(
        self, prompt_ids: list[int], seed: int, fixed: int | None = None
    ) -> tuple[Answer, int] | Failure:
        self.asked.append((prompt_ids, seed, fixed))
        if (found := next(self.found, None)) is None:
            raise NoServer("gone")
        return (found, 2) if isinstance(found, Answer) else found

    def prompts(self) -> list[str]:
        tokenizer = byte_tokenizer()
        return [tokenizer.decode(ids, skip_special_tokens=False) for ids, _, _ in self.asked]


class Case:
    """A model, a journal and an asker for rows; each `asker` opens the journal anew."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.model = make_model(folder / "model")
        self.engine: dict[str, Any] = {"kind": "attach", "urls": ["http://a"]}
        self.journal: Journal | None = None

    def asker(self, retry_failed: bool = False) -> Asker:
        self.close()
        config = load(
            {
                "output_dir": str(self.folder),
                "input": "x",
                "model": {"path": str(self.model)},
                "engine": self.engine,
                "sampling": {"seed": 5},
            }
        )
        self.journal = Journal(self.folder / "journal", 0, 1)
        return Asker(config, Prompts.from_config(config), RUN, self.journal, retry_failed)

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()

    def row(self, asker: Asker, *questions: str, row_id: str = ROW) -> Row:
        """A row as far as the journal goes."""
        row = Row(row_id, conversation(*questions))
        asker.prepare([row])
        asker.recall(row)
        return row

    def records(self) -> list[dict[str, Any]]:
        lines = (self.folder / "journal/shard-0000.n1.jsonl").read_bytes().splitlines()
        return [json.loads(line[9:]) for line in lines]


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.close()


def ask(asker: Asker, row: Row, pool: MadePool) -> None:
    asyncio.run(asker.ask(row, cast(Pool, pool)))


ASKS = "<|im_start|>assistant\n<think>\n"


def user(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n"


# ---- turn by turn -------------------------------------------------------------------------------


def test_a_row_goes_on_with_the_new_answer(case: Case) -> None:
    asker, pool = case.asker(), MadePool(answer("One."), answer("Two."))
    row = case.row(asker, "First?", "Second?")
    assert not row.over and not row.fresh
    ask(asker, row, pool)
    assert pool.prompts() == [
        user("First?") + ASKS,
        # the template leaves earlier reasoning out
        f"{user('First?')}<|im_start|>assistant\nOne.<|im_end|>\n{user('Second?')}{ASKS}",
    ]
    (_, first_seed, first_fixed), (_, second_seed, _) = pool.asked
    assert first_seed != second_seed and first_fixed is None
    assert row.over and row.failure is None and row.fresh
    # two answers of `hm`, </think>, two line feeds, four letters and the end
    assert row.tokens == 2 * (2 + 1 + 2 + 4 + 1)
    first, second = case.records()
    assert first["output_ids"] == answer("One.").output_ids
    assert (first["class"], first["finish"], first["attempts"]) == ("complete", "stop", 2)
    assert first["row_id"] == second["row_id"] == ROW
    assert [turn.request for turn in row.turns] == [first["request"], second["request"]]


def test_rows_and_turns_have_seeds_and_requests_of_their_own(case: Case) -> None:
    asker = case.asker()
    rows = [case.row(asker, "Same?", row_id=name * 32) for name in "0123"]
    assert len({row.next_seed for row in rows}) == len({row.next_request for row in rows}) == 4
    again = case.row(case.asker(), "Same?", row_id="2" * 32)
    assert again.next_request == rows[2].next_request and again.next_seed == rows[2].next_seed
    other = case.row(asker, "Other?", row_id="2" * 32)  # another prompt is another request
    assert other.next_seed == rows[2].next_seed and other.next_request != rows[2].next_request


def test_a_failure_is_the_rows_and_ends_it(case: Case) -> None:
    asker, pool = case.asker(), MadePool(answer("One."), FAILURE)
    row = case.row(asker, "First?", "Second?", "Third?")
    ask(asker, row, pool)
    assert row.over and len(row.turns) == 1 and len(pool.asked) == 2
    assert row.failure == {
        "reason": "server_error",
        "message": "500: told",
        "attempts": 3,
        "server": "http://a",
        "server_age_s": 75.5,
        "running_requests": 7,
        "cache_use": 0.25,
        "request": row.next_request,
        "row_id": ROW,
    }
    assert case.records()[1] == row.failure


def test_a_rehearsal_asks_for_a_fixed_length(case: Case) -> None:
    case.engine |= {"rehearsal": True, "rehearsal_tokens": [120, 480]}
    asker, pool = case.asker(), MadePool(answer("One."), answer("Two."))
    ask(asker, case.row(asker, "First?", "Second?"), pool)
    fixed = [length for _, _, length in pool.asked]
    assert fixed == [rehearsal_length((120, 480), ROW, turn) for turn in (0, 1)]


# ---- what the journal has -----------------------------------------------------------------------


def test_an_answered_turn_is_not_asked_again(case: Case) -> None:
    asker = case.asker()
    whole = case.row(asker, "First?", "Second?")
    ask(asker, whole, MadePool(answer("One."), answer("Two.")))
    again = case.row(case.asker(), "First?", "Second?")
    assert again.over and again.failure is None and not again.fresh
    assert (again.turns, again.tokens) == (whole.turns, whole.tokens)


def test_a_row_goes_on_where_the_journal_ends(case: Case) -> None:
    """There was no server for its second turn, which ended the job."""
    asker, first = case.asker(), MadePool(answer("One."))
    with pytest.raises(NoServer):
        ask(asker, case.row(asker, "First?", "Second?"), first)
    asker, pool = case.asker(), MadePool(answer("Two."))
    row = case.row(asker, "First?", "Second?")
    assert not row.over and len(row.turns) == 1
    ask(asker, row, pool)
    assert pool.asked == first.asked[1:]
    assert row.over and len(row.turns) == 2 and len(case.records()) == 2


@pytest.mark.parametrize(
    ("sealed", "retry_failed", "taken"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_a_final_failure_is_taken_unless_it_is_to_be_asked_again(
    case: Case, sealed: bool, retry_failed: bool, taken: bool
) -> None:
    asker = case.asker()
    ask(asker, case.row(asker, "Question?"), MadePool(FAILURE))
    if sealed:
        asker.journal.seal()
    asker, pool = case.asker(retry_failed), MadePool(answer("One."))
    row = case.row(asker, "Question?")
    assert row.over == taken
    ask(asker, row, pool)
    assert len(pool.asked) == (not taken)
    assert (row.failure or {}).get("reason") == ("server_error" if taken else None)


# ---- what is never sent -------------------------------------------------------------------------


def test_a_template_that_refuses_fails_its_row_alone(case: Case) -> None:
    (case.model / "chat_template.jinja").write_text(STRICT)
    asker = case.asker()
    rows = [
        Row(name * 32, conversation(q)) for name, q in zip("012", ("a", "no", "b"), strict=True)
    ]
    asker.prepare(rows)
    assert [row.over for row in rows] == [False, True, False]
    assert rows[1].failure == {
        "reason": "template_refused",
        "message": "the chat template refuses it: not this one",
        "attempts": 0,
    }
    made = asker.prompts.decode([row.next_prompt or [] for row in rows])
    assert made == [f"{user('a')}{ASKS}", "", f"{user('b')}{ASKS}"]


def test_a_prompt_that_no_context_can_hold_is_not_encoded(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer has a token for each byte, and four times 1,000 tokens are allowed."""
    config = json.loads((case.model / "config.json").read_text())
    (case.model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1000}))
    monkeypatch.setattr(asker_module, "HUGE", 500)
    asker = case.asker()
    rows = [
        Row(name * 32, conversation("why? " * times)) for name, times in (("0", 150), ("1", 999))
    ]
    encoded: list[int] = []
    encode = asker.prompts.encode

    def noting(rendered: Sequence[str]) -> list[list[int]]:
        encoded.append(max(map(len, rendered)))
        return encode(rendered)

    monkeypatch.setattr(asker.prompts, "encode", noting)
    monkeypatch.setattr("workflow_scripts.model.codec.PIECE", 1000)
    asker.prepare(rows)
    assert [row.over for row in rows] == [False, True] and max(encoded) < 2000
    assert rows[1].failure is not None and rows[1].failure["reason"] == "over_context"
    assert "more than 4,000 tokens" in rows[1].failure["message"]


def test_a_template_that_refuses_a_later_turn_keeps_the_earlier_ones(case: Case) -> None:
    (case.model / "chat_template.jinja").write_text(STRICT)
    asker, pool = case.asker(), MadePool(answer("One."))
    row = case.row(asker, "First?", "no", "Third?")
    ask(asker, row, pool)
    assert row.failure is not None and row.failure["reason"] == "template_refused"
    assert len(row.turns) == len(pool.asked) == len(case.records()) == 1


@pytest.mark.parametrize(("vocab_size", "sent"), [(THINK + 1, True), (THINK, False)])
def test_an_id_outside_the_models_vocabulary_is_never_sent(
    case: Case, vocab_size: int, sent: bool
) -> None:
    """The highest id of the prompt is that of <think>."""
    config = case.model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": vocab_size}))
    asker, pool = case.asker(), MadePool(answer("One."))
    row = case.row(asker, "Question?")
    ask(asker, row, pool)
    assert len(pool.asked) == sent
    if not sent:
        assert (
            row.failure
            == case.records()[0]
            == {
                "reason": "id_outside_vocabulary",
                "message": "the prompt has the id 259; the model has 259",
                "attempts": 0,
                "request": row.next_request,
                "row_id": ROW,
            }
        )


# ---- in which thread ----------------------------------------------------------------------------


def test_later_turns_are_made_outside_the_event_loop(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that answers that arrive meanwhile are journalled at once. The last answer needs neither
    text nor prompt, so it stays where it is."""
    asker, pool = case.asker(), MadePool(answer("One."), answer("Two."))
    row = case.row(asker, "First?", "Second?")
    seen: list[tuple[str, int]] = []

    def noting(name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def noted(these: Sequence[Any], **more: Any) -> Any:
            seen.append((name, threading.get_ident()))
            return do(these, **more)

        return noted

    for name in ("render", "encode"):
        monkeypatch.setattr(asker.prompts, name, noting(name, getattr(asker.prompts, name)))
    ask(asker, row, pool)
    assert row.over and [name for name, _ in seen] == ["render", "encode"]
    assert threading.get_ident() not in {thread for _, thread in seen}

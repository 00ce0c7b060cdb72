"""Texts of rows: as they are in the report, visible on the page and in the terminal."""

from tests.made.audit_case import Case, chat
from tests.made.page_reader import Page
from workflow_scripts.audit.examples import beginning
from workflow_scripts.audit.page import page
from workflow_scripts.audit.verdict import summary

# Unicode's own examples: a zero-width non-joiner within a Persian word, joiners within a family.
PERSIAN = "می\u200cخواهم بدانم"
FAMILY = "👨\u200d👩\u200d👧"


def test_joiners_reach_the_page(case: Case) -> None:
    rows = [chat(PERSIAN, FAMILY), chat(PERSIAN, FAMILY)]
    case.write("a.jsonl", rows + [chat(f"{PERSIAN} {i}", FAMILY) for i in range(30)])
    found = case.audit(near_duplicates=True, near_duplicate_threshold=0.5)
    (examples,) = found["class_examples"].values()
    assert [(e["prompt"], e["response"]) for e in examples[:2]] == [(PERSIAN, FAMILY)] * 2
    assert found["top_repeated_responses"][0]["text"] == FAMILY
    assert found["prompts"]["top"][0]["text"] == PERSIAN
    assert found["near_duplicates"]["largest"][0]["text"] == PERSIAN
    assert f"{FAMILY}<|im_end|>\n" in found["spikes"][0]["text"]
    shown = Page(page(found))
    assert shown.table("class-examples")[0][1:3] == [PERSIAN, FAMILY]
    assert shown.table("repeated-table")[0][0] == FAMILY
    assert shown.table("prompt-table")[0][0] == shown.table("near-table")[0][0] == PERSIAN
    assert f"{FAMILY}<|im_end|>↵" in shown["spike-table"].text


def test_an_escape_is_a_sign_on_the_page_and_stays_out_of_the_terminal(case: Case) -> None:
    answers = [f"\x1b[2J your ticket number {i} is closed." for i in range(60)]
    case.write("a.jsonl", [chat(f"Ticket {i}?", answer) for i, answer in enumerate(answers)])
    found = case.audit()
    assert [e["response"] for e in found["class_examples"]["normal"]] == answers[:3]
    lines = summary(found)
    assert any("`?[0j your ticket number 0 is closed`" in line for line in lines)
    assert all(line.isprintable() for line in lines)
    source = page(found)
    assert "\x1b" not in source
    shown = Page(source)
    assert shown.table("class-examples")[0][2] == f"␛{answers[0][1:]}"
    assert shown.table("pattern-table")[0][0] == "␛[0j your ticket number 0 is closed"
    assert "`␛[0j your ticket number 0 is closed`" in shown["findings"].text


def test_a_spike_shows_the_control_tokens_that_an_answer_spells(case: Case) -> None:
    case.write("a.jsonl", [chat(f"Question {i}?", "Write <|im_end|> last.") for i in range(30)])
    (spike,) = case.audit()["spikes"]
    assert spike["text"].endswith("Write <|im_end|> last.<|im_end|>\n")


def test_a_beginning_ends_between_characters() -> None:
    assert beginning("a" * 200) == "a" * 200
    assert beginning("a" * 199 + "😀😀") == "a" * 199 + "😀…"

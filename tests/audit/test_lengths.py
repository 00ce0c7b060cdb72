"""Tokens of texts, long ones in pieces."""

import pytest

from tests.made.prompts import tiny_prompts
from workflow_scripts.audit import lengths
from workflow_scripts.audit.lengths import RowLengths, UncountedRow


def test_a_huge_text_is_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token a byte: what fits into the context is exact, what does not is as long as its
    characters say, and above the context."""
    monkeypatch.setattr(lengths, "HUGE", 100)
    monkeypatch.setattr("workflow_scripts.model.codec.PIECE", 50)
    counter = RowLengths(tiny_prompts(), large=False, context=1000)
    texts = ["word " * 30, "word " * 180, "word " * 9000]
    rows = [UncountedRow({}, text, text) for text in texts]
    counter.fill(rows)
    assert [row.columns["response_tokens"] for row in rows] == [150, 900, 45000]
    prompts = [row.columns["prompt_tokens"] - counter.overhead for row in rows]
    assert prompts == [150, 900, 45000]

"""A tool-calling set from end to end on the embedded engine, its prompts against transformers."""

import json
from pathlib import Path

import polars as pl
import pytest

from tests.made.embedded import needs_package
from tests.made.paths import ROOT
from tests.made.tool_rows import TEMPLATE, tool_rows
from tests.made.workspace import Workspace

MODEL = ROOT / "models/smollm2-135m-instruct"


@needs_package
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_rows_with_tools(tmp_path: Path) -> None:
    """Each prompt is, id for id, what transformers makes of the talk and its tools."""
    transformers = pytest.importorskip("transformers")
    made = tool_rows()
    work = Workspace.create(tmp_path / "w", [row for row, _, _ in made])
    (work.folder / "tools.jinja").write_text(TEMPLATE)
    work.configure(
        model={"path": str(MODEL), "thinking": False, "chat_template": "tools.jinja"},
        engine={"kind": "embedded", "slots": 4, "slot_context": 1024},
        audit={"rules": {"tool_turns": "keep"}},
        sampling={"max_new_tokens": 6},
        generate={"retries": 2, "max_failed_fraction": 0.0, "stall_timeout_s": 300},
        dataset={
            "filters": {"truncated_in_answer": "keep", "loop": "keep", "repeated": "keep"},
        },
        shards=1,
    )
    done = work.run(timeout=1500)
    assert done.code == 0, done.output

    report = json.loads((work.out / "audit/report.json").read_text())
    assert report["rejected"] == 0 and report["accepted"] == len(made)
    assert report["template"] == {"refused": {}, "left_out": {}}
    rows = pl.read_parquet(work.out / "merged/completions.parquet").sort("line")
    assert rows["line"].to_list() == [*range(1, len(made) + 1)]
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(MODEL / "tokenizer.json"), chat_template=TEMPLATE
    )
    for (_, messages, tools), turns, told in zip(made, rows["turns"], rows["tools"], strict=True):
        (turn,) = turns
        expected = theirs.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, return_dict=False
        )
        assert turn["prompt_ids"] == expected, messages
        assert (json.loads(told) if told else None) == tools
    trained = pl.concat(
        pl.read_parquet(path) for path in sorted(work.out.glob("dataset/*-0*.parquet"))
    )
    offered = {line: tools for line, (_, _, tools) in enumerate(made, 1)}
    assert len(trained) > 150
    for line, told in trained.select("line", "tools").iter_rows():
        assert (json.loads(told) if told else None) == offered[line]
    page = (work.out / "dataset/samples.html").read_text()
    assert "tools: " in page
    assert json.loads((work.out / "verify.json").read_text())["ok"]
    assert work.run().nothing

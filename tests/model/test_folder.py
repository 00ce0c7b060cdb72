"""What a model's folder says."""

import json
from pathlib import Path

import pytest

from tests.made.model import END_OF_TEXT, IM_END, make_model
from workflow_scripts.config.load import load
from workflow_scripts.model.folder import end_token_ids


@pytest.mark.parametrize(
    ("generation", "eos", "expected"),
    [
        ({"eos_token_id": IM_END}, "<|im_end|>", [END_OF_TEXT, IM_END]),
        ({}, "<|im_end|>", [END_OF_TEXT, IM_END]),  # the tokenizer's alone
        ({}, {"content": "<|im_end|>"}, [END_OF_TEXT, IM_END]),
        ({"eos_token_id": [7, END_OF_TEXT]}, "<|nobody|>", [7, END_OF_TEXT]),
        ({}, None, [END_OF_TEXT]),
        ({}, "<｜end▁of▁sentence｜>", [99, END_OF_TEXT]),
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_end_tokens(
    tmp_path: Path, generation: object, eos: object, expected: list[int], ascii_only: bool
) -> None:
    """Of the configuration, of generation, and of the tokenizer, in any spelling."""
    folder = make_model(tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps(generation))
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"eos_token": eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({"id": 99, "content": "<｜end▁of▁sentence｜>"})
    text = json.dumps(tokenizer, indent=2, ensure_ascii=ascii_only)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    config = load({"output_dir": "o", "input": "x", "model": {"path": str(folder)}})
    assert end_token_ids(config) == sorted(expected)

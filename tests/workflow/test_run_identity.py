"""What makes another run, and that a first look refuses no model that reasons in its own way."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.made.families import FAMILIES
from tests.made.model import TEMPLATE, byte_tokenizer, make_model
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import digest
from workflow_scripts.workflow.params import stage_params
from workflow_scripts.workflow.run_identity import hash_of, run_identity

SETTINGS: list[dict[str, Any]] = [
    {"date": "2026-01-31"},
    {"template_variables": {"reasoning_effort": "high"}},
    {"reasoning": {"open": "<think>", "close": "</think>"}},
]
# Of an identity before these settings were; a run that is there must be found again.
BEFORE = {
    "prompt_version", "chat_template", "special_tokens", "tokenizer", "thinking", "model",
    "weights", "end_token_ids", "sampling", "engine", "numeric_flags",
    "rehearsal_tokens", "embedded_numerics",
}  # fmt: skip


def config(folder: Path, **model: Any) -> Config:
    values = {"output_dir": "out", "input": "in", "model": {"path": str(folder), **model}}
    return Config.model_validate(values)


def identity(folder: Path, **model: Any) -> dict[str, Any]:
    return run_identity(config(folder, **model))


def test_an_identity_stays_what_it_was(tmp_path: Path) -> None:
    found = identity(make_model(tmp_path / "m"))
    assert {*found} == BEFORE
    assert found["chat_template"] == digest(TEMPLATE)
    assert found["special_tokens"] == {"eos_token": "<|im_end|>"}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_make_another_run_and_another_audit(
    tmp_path: Path, setting: dict[str, Any]
) -> None:
    folder = make_model(tmp_path / "m")
    old, new = identity(folder), identity(folder, **setting)
    assert {*new} == BEFORE | {*setting}
    assert hash_of(old) != hash_of(new)
    audits = [stage_params(config(folder), found, hash_of(found))["audit"] for found in (old, new)]
    assert audits[0] != audits[1]


def test_special_tokens_count_where_a_template_names_them(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    told = json.loads((folder / "tokenizer_config.json").read_text())
    told["sep_token"] = "<|endoftext|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    assert identity(folder)["special_tokens"] == {"eos_token": "<|im_end|>"}
    (folder / "chat_template.jinja").write_text(TEMPLATE + "{{ sep_token }}")
    both = {"eos_token": "<|im_end|>", "sep_token": "<|endoftext|>"}
    assert identity(folder)["special_tokens"] == both


def test_a_template_for_tools_counts(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    alone = identity(folder)
    extra = folder / "additional_chat_templates"
    extra.mkdir()
    (extra / "rag.jinja").write_text("never used")
    assert identity(folder) == alone
    (extra / "tool_use.jinja").write_text("x")
    found = identity(folder)
    assert found == {**alone, "chat_template_for_tools": digest("x")}
    (extra / "tool_use.jinja").write_text("y")
    assert hash_of(identity(folder)) != hash_of(found)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_first_look_lets_pass_what_reasons(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    folder = make_model(tmp_path / "m", family.template)
    (folder / "tokenizer.json").write_text(family.tokenizer())
    assert identity(folder)["thinking"]


def test_the_first_look_refuses_what_names_no_reasoning(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", "{{ messages[0].content }}")
    byte_tokenizer(["<|im_end|>"]).save(str(folder / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"model.thinking: .* or name the marks"):
        identity(folder)
    assert identity(folder, thinking=False)
    assert identity(folder, reasoning={"open": "So:", "close": "Thus:"})
    byte_tokenizer(["[THINK]", "[/THINK]"]).save(str(folder / "tokenizer.json"))
    assert identity(folder)

"""The configuration: unknown keys, defaults, and that each key changes what it says it changes."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from tests.made.model import make_model
from tests.made.paths import RECORDED, ROOT
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config import docs as config_docs
from workflow_scripts.config.load import load, walk
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import canonical
from workflow_scripts.sglang.numerics import NUMERIC_FLAGS, numeric_flags
from workflow_scripts.tables import docs as table_docs
from workflow_scripts.workflow.run import Run
from workflow_scripts.workflow.run_identity import run_identity


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    model = make_model(tmp_path / "model")
    return {
        "output_dir": str(tmp_path / "out"),
        "input": [str(model / "config.json")],
        "model": {"path": str(model)},
        "engine": {"kind": "attach", "urls": ["http://127.0.0.1:1"]},
    }


@pytest.mark.parametrize("name", ["config.yaml", "qwen3.6-27b.yaml"])
def test_shipped_configurations_are_valid(name: str) -> None:
    load(yaml.safe_load((ROOT / "config" / name).read_text()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard": 3}, "shard: unknown key; did you mean shards?"),
        ({"sampling": {"temprature": 1}}, "did you mean sampling.temperature?"),
        ({"temperature": 1}, "temperature: unknown key; did you mean sampling.temperature?"),
        ({"dataset": {"filters": {"no_anwser": "keep"}}}, "did you mean dataset.filters.no_answer"),
        ({"zzz": 1}, "zzz: unknown key; known here: audit,"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature: "),
        ({"shards": 0}, "shards: "),
        (
            {"engine": {"kind": "attach", "urls": ["http://me:secret@host:1"]}},
            "a user or password for host would stand in run.json",
        ),
        ({"engine": {"kind": "attach", "urls": ["http://token@host"]}}, "write ${NAME} in its"),
        ({"engine": {"kind": "attach"}}, "engine.urls: kind `attach` needs"),
        ({"input": []}, "input: name at least one"),
    ],
)
def test_faults_are_named(values: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(values | change)
    assert message in str(caught.value)


def test_thinking_without_think_tokens_is_named_before_any_job(
    values: dict[str, Any], tmp_path: Path
) -> None:
    """Seen on a GPU machine: eight shards failed one by one after the audit."""
    run_identity(load(values))
    file = tmp_path / "model/tokenizer.json"
    file.write_text(file.read_text().replace("think>", "other>"))
    run_identity(load(values))  # the template still names them
    (tmp_path / "model/chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ConfigError, match=r"model\.thinking: .* set model\.thinking to false"):
        run_identity(load(values))
    values["model"]["thinking"] = False
    run_identity(load(values))


def test_one_input_may_stand_alone(values: dict[str, Any]) -> None:
    assert load(values | {"input": "a/*.jsonl"}).input == ["a/*.jsonl"]


def test_generated_files_are_current() -> None:
    assert (ROOT / config_docs.DOCS_FILE).read_text() == config_docs.docs_text()
    assert (ROOT / config_docs.SCHEMA_FILE).read_text() == config_docs.schema_text()
    assert (ROOT / table_docs.DOCS_FILE).read_text() == table_docs.docs_text()


def test_canonical_text_ignores_spelling() -> None:
    assert canonical({"b": 1.0, "a": [1]}) == canonical({"a": [1], "b": 1.0})
    one = load({"output_dir": "o", "input": "x", "model": {"path": "m"}, "sampling": {"top_p": 1}})
    two = load(
        {"output_dir": "o", "input": "x", "model": {"path": "m"}, "sampling": {"top_p": 1.0}}
    )
    assert canonical(one) == canonical(two)


# another valid value for every key, in the form that the configuration takes
OTHER: dict[str, Any] = {
    "output_dir": "elsewhere",
    "input": [__file__],
    "regenerate": "trivial",
    "shards": 9,
    "model.path": None,  # the path does not count, see test_model_identity
    "model.tokenizer": None,
    "model.chat_template": None,
    "model.thinking": False,
    "model.reasoning": {"open": "<think>", "close": "</think>"},
    "model.template_variables": {"reasoning_effort": "high"},
    "model.date": "2026-01-31",
    "engine.kind": "sglang",
    "engine.urls": ["http://127.0.0.1:2"],
    "engine.gpus": 5,
    "engine.server": {"mem_fraction_static": 0.9, "max_running_requests": 64},
    "engine.stage": "/dev/shm",
    "engine.rehearsal_tokens": (100, 400),
    "engine.python": "python3",
    "engine.canary": [{"prompt": "2+2?", "expect": "4"}],
    "generate.concurrency": 7,
    "audit.stop_on": ["ok"],
    "audit.held_out": ["test.jsonl"],
    "audit.context_length": 4096,
    "audit.estimate.price_per_gpu_hour": 2.0,
    "audit.estimate.mean_output_tokens": 100.0,
    "dataset.exports": [],
    "dataset.license": "mit",
    "dataset.filters.max_completion_tokens": 100,
    "dataset.filters.expressions": {"long": "length > 100"},
    "dataset.filters.python": None,
}


def changed(values: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(values))
    copy["engine"].setdefault("rehearsal", False)
    at = copy
    *parents, key = name.split(".")
    for part in parents:
        at = at.setdefault(part, {})
    at[key] = value
    copy["engine"]["rehearsal"] |= name == "engine.rehearsal_tokens"
    if name == "audit.columns.prompt_template":
        at |= {"prompt": "q", key: "{q}"}
    if name == "engine.kind":
        copy["engine"]["urls"] = []
    return copy


def other_value(name: str, field: Any) -> Any:
    if name in OTHER:
        return OTHER[name]
    if name.startswith("audit.columns."):
        return "text"
    if isinstance(field.default, str):
        return next(choice for choice in get_args(field.annotation) if choice != field.default)
    if isinstance(field.default, int):
        return field.default + 1
    return field.default / 2 or 0.01


@pytest.mark.parametrize("name", [name for name, _, _ in walk(Config)])
def test_a_key_changes_what_it_says(values: dict[str, Any], name: str) -> None:
    field, changes = next((f, c) for n, f, c in walk(Config) if n == name)
    value = other_value(name, field)
    if value is None:
        pytest.skip("a path; its content counts, see below")
    before = Run(load(values)).params
    after = Run(load(changed(values, name, value))).params
    assert load(changed(values, name, value)) != load(values)
    assert (before != after) == (changes in ("data", "layout")), name
    if changes == "layout":
        assert before["generate"] == after["generate"]


def test_which_turns_are_asked_makes_them_anew_but_changes_no_answer(
    values: dict[str, Any],
) -> None:
    keep, regenerate = (
        Run(load(changed(values, "audit.rules.tool_turns", rule)))
        for rule in ("keep", "regenerate")
    )
    assert keep.hash == regenerate.hash
    differ = {k for k in keep.params if keep.params[k] != regenerate.params[k]}
    assert differ == {"audit", "generate", "dataset"}


def test_an_edited_filter_makes_the_dataset_again(values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def judge(row):\n    return None\n")
    wanted = load(changed(values, "dataset.filters.python", f"{file}:judge"))
    before = Run(wanted).params
    file.write_text("def judge(row):\n    return 'no'\n")
    after = Run(wanted).params
    assert {k for k in before if before[k] != after[k]} == {"dataset"}


def test_model_identity(values: dict[str, Any], tmp_path: Path) -> None:
    first = Run(load(values)).hash
    moved = make_model(tmp_path / "moved" / "elsewhere")
    again = load(changed(values, "model.path", str(moved)))
    assert Run(again).hash == first
    seen = {first}
    for name, edit in (
        ("config.json", lambda raw: raw.replace(b"tiny", b"huge")),
        ("tokenizer.json", lambda raw: raw + b"\n"),
        ("tokenizer_config.json", lambda raw: raw.replace(b"assistant", b"helper")),
        ("generation_config.json", lambda raw: b'{"eos_token_id": [257, 258, 3]}'),
        ("model.safetensors", lambda raw: raw + b"\0"),
    ):
        path = moved / name
        path.write_bytes(edit(path.read_bytes()))
        assert Run(again).hash not in seen, name
        seen.add(Run(again).hash)
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    with_template = changed(again.model_dump(mode="json"), "model.chat_template", str(template))
    assert Run(load(with_template)).hash not in seen


def test_a_missing_model_is_named(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="nowhere/config.json does not exist; check model.path"):
        Run(load(changed(values, "model.path", "nowhere")))


def test_numeric_flags() -> None:
    spelled = {"--kv-cache-dtype": "fp8_e4m3", "speculative-algorithm": "NEXTN", "port": 3}
    expected = {"kv_cache_dtype": "fp8_e4m3", "speculative_algorithm": "EAGLE"}
    assert numeric_flags(spelled) == expected
    # the defaults are what a 0.5.11 server says of itself when it was given none of them
    recorded = json.loads((RECORDED / "server_info.json").read_text())
    assert recorded["load_format"] == "dummy"  # it had no weights
    assert {name: recorded[name] for name in NUMERIC_FLAGS} == NUMERIC_FLAGS | {
        "load_format": "dummy"
    }
    assert numeric_flags(recorded) == {"load_format": "dummy"}
    assert numeric_flags("auto") == {}

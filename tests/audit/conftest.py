"""The model and the inputs of the audit's tests."""

from pathlib import Path

import pytest

from tests.made.audit_case import QWEN, Case
from tests.made.model import make_model
from tests.model.test_fast_bpe import trained


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("audit") / "model", QWEN)
    trained().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def case(tmp_path: Path, model: Path) -> Case:
    return Case(tmp_path, model)

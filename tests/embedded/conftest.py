"""Fixtures of the embedded engine's tests: its model folder and a server, made once for all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.made.embedded import PACKAGE, Server
from workflow_scripts.embedded import model as embedded_model


@pytest.fixture(scope="package")
def metadata() -> dict[str, Any]:
    return embedded_model.read_metadata(embedded_model.find_gguf(PACKAGE))


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory, metadata: dict[str, Any]) -> Path:
    out = tmp_path_factory.mktemp("models") / "smollm2"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded_model, "read_metadata", lambda _: metadata)
        assert embedded_model.main(["--package", str(PACKAGE), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="package")
def server(folder: Path) -> Iterator[Server]:
    running = Server(folder / "model.gguf", "--slots", "4", "--context", "1024")
    yield running
    running.end()


@pytest.fixture(scope="package")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))

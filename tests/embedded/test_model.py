"""The model folder made from the package, and that it says what the engine does."""

import json
import os
import random
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

from tests.made.embedded import PACKAGE, Server, needs_package
from workflow_scripts.embedded import model as embedded_model
from workflow_scripts.embedded.model import ModelError

FILES = {
    "LICENSE",
    "config.json",
    "generation_config.json",
    "model.gguf",
    "source.json",
    "tokenizer.json",
    "tokenizer_config.json",
}

pytestmark = needs_package


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, metadata: dict[str, Any]) -> None:
    """Spares the seconds that reading the GGUF file takes, every time but the first."""
    monkeypatch.setattr(embedded_model, "read_metadata", lambda _: metadata)


# ---- the folder ---------------------------------------------------------------------------------


def test_folder_is_complete_and_a_second_call_leaves_it(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == FILES
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert embedded_model.make_model(PACKAGE, folder).endswith("is complete")
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"]) == (576, 30)
    assert (config["vocab_size"], config["max_position_embeddings"]) == (49152, 8192)


@pytest.mark.usefixtures("quick")
def test_damaged_folder_is_replaced(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    shutil.copytree(folder, out, copy_function=os.link)
    (out / "tokenizer.json").unlink()
    (out / "tokenizer.json").write_text("{}")
    embedded_model.make_model(PACKAGE, out)
    for name in FILES:
        assert (out / name).read_bytes() == (folder / name).read_bytes(), name
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.usefixtures("quick")
def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embedded_model, "place", fail)
    arguments = ["--package", str(PACKAGE), "--out", str(tmp_path / "model")]
    assert embedded_model.main(arguments) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "mine.txt").write_text("kept")
    with pytest.raises(ModelError, match="not made by this program"):
        embedded_model.make_model(PACKAGE, out)
    assert (out / "mine.txt").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_unusable_package_is_named(tmp_path: Path) -> None:
    package, out = tmp_path / "package", tmp_path / "model"
    (package / "x-1.dist-info").mkdir(parents=True)
    (package / "x-1.dist-info" / "LICENSE").write_text("free")
    with pytest.raises(ModelError, match=r"no \.gguf file below .*pip install"):
        embedded_model.make_model(package, out)
    (package / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"a\.gguf has sha256 .* delete it and install again"):
        embedded_model.make_model(package, out)
    (package / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="several"):
        embedded_model.make_model(package, out)
    assert not out.exists()


def test_weights_are_linked_or_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    source, target = tmp_path / "package" / "a.gguf", tmp_path / "models" / "m" / "model.gguf"
    source.parent.mkdir()
    target.parent.mkdir(parents=True)
    source.write_bytes(b"weights")
    assert embedded_model.place(source, target) == "hard link"
    assert target.samefile(source)
    target.unlink()
    monkeypatch.setattr(os, "link", refuse)
    assert embedded_model.place(source, target) == "symbolic link"
    assert not os.readlink(target).startswith("/")
    assert target.samefile(source)
    target.unlink()
    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert embedded_model.place(source, target) == "copy"
    assert target.read_bytes() == b"weights"


# ---- it says what the engine does ---------------------------------------------------------------


def odd_texts() -> list[str]:
    """Texts that pre-tokenizers disagree on, and random ones of all scripts.

    Left out: code points that Unicode does not assign and control characters that the vocabulary
    has no token for. llama.cpp ends a piece at each of them, where the tokenizers library goes on;
    that shows only where a merge would cross one, a few times in ten thousand random texts.
    """
    texts = [
        *("", " ", "  ", "\n\n\n a", "\r\n\r\n x\t\ty", "a\tb", "x   ", "\u00a0\u00a0x", "\u2028y"),
        *("don't I'LL we'Ve 'tis s's", "1234567 8.90", "١٢٣ 45²½Ⅷ ੧੨ 〇一二", "𝟘𝟙"),
        *("a\u0301 é", "日本語、テキスト。", "🏳️‍🌈👩🏽‍🚀 ok", "\ufeffx", "İi̇ ſ's", "\u200d\u200c"),
        *("<|im_end|>", "a<|im_start|>user\nhi<|im_end|>b", "<|im_end|>\u0338x", "<|im_end"),
        *("<reponame> <repo_name>", "def f(x):\n    return x**2  # ok\n", "\\frac{1}{2}$$"),
    ]
    chance = random.Random(20)
    alphabets = [range(0x20, 0x7F), range(0x20, 0x3000), range(0x20, 0x20000)]
    common = " \n\t'strevmldSTREVMLD0123456789²½Ⅷ١é中🙂_-.,<|>"
    for _ in range(400):
        text = ""
        alphabet = chance.choice([None, *alphabets])
        for _ in range(chance.randint(1, 30)):
            char = chr(chance.choice(alphabet)) if alphabet else chance.choice(common)
            if unicodedata.category(char) not in ("Cn", "Cs", "Cc") or char in "\n\t":
                text += char
        texts.append(text)
    return texts


def test_tokenizer_gives_the_ids_of_the_engine(server: Server, tokenizer: Tokenizer) -> None:
    for text in odd_texts():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == server.post("/tokenize", content=text)["tokens"], ascii(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text, ascii(text)


CHATS = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 2 + 2?\n"}],
    [
        {"role": "user", "content": "naïve “quotes” & <b>tags</b>"},
        {"role": "assistant", "content": "{{ not a template }}"},
        {"role": "user", "content": "日本\n\nline"},
    ],
]


@pytest.mark.parametrize("messages", CHATS)
def test_chat_template_gives_the_prompt_of_the_engine(
    server: Server, folder: Path, messages: list[dict[str, str]]
) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
        settings["chat_template"]
    )
    prompt = template.render(messages=messages, add_generation_prompt=True)
    assert prompt == server.post("/apply-template", messages=messages)["prompt"]


def test_transformers_reads_the_folder_alike(folder: Path, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    other = transformers.AutoTokenizer.from_pretrained(folder)
    assert (other.eos_token_id, other.bos_token_id, other.pad_token_id) == (2, 1, 2)
    for text in odd_texts()[:100]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert other.encode(text, add_special_tokens=False) == ids, ascii(text)
    prompt = other.apply_chat_template(CHATS[0], add_generation_prompt=True, tokenize=False)
    assert prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_end_ids_are_those_the_engine_stops_at(server: Server, folder: Path) -> None:
    """Each special token is forced in turn; the answer's ids include the one that ended it."""
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    for token in range(17):
        found = server.complete([504], n_predict=2, logit_bias=[[token, 1000.0]])
        expected = ([token], "eos") if token in ends else ([token, token], "limit")
        assert (found["tokens"], found["stop_type"]) == expected

"""The embedded engine: the model folder made from the package, and the real server on it."""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jinja2
import pytest
from tokenizers import Tokenizer

from tests.made.paths import ROOT
from workflow_scripts.config.load import load
from workflow_scripts.embedded import model as embedded_model
from workflow_scripts.embedded.model import ModelError
from workflow_scripts.engine.protocol import Ask
from workflow_scripts.serve.attached import open_engines

PACKAGE = ROOT / "models" / ".package"
FILES = {
    "LICENSE",
    "config.json",
    "generation_config.json",
    "model.gguf",
    "source.json",
    "tokenizer.json",
    "tokenizer_config.json",
}
# Generous: the machines that run this are small and shared. Quiet ones need 0.7, 0.05 and 0.5 s.
START_S, STOP_S, ORPHAN_S = 60, 3, 10

pytestmark = pytest.mark.skipif(
    not PACKAGE.is_dir(), reason="models/.package is absent, the embedded engine is not installed"
)


class Server:
    """An embedded_server process and an HTTP client for it."""

    def __init__(self, model: Path, *options: str):
        command = [sys.executable, "-m", "workflow_scripts.embedded.server", "--model", str(model)]
        started = time.monotonic()
        self.process = subprocess.Popen(
            [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.start_seconds = time.monotonic() - started
        self.client = httpx.Client(base_url=self.ready["url"], timeout=120, trust_env=False)

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def complete(self, ids: list[int], **settings: Any) -> dict[str, Any]:
        body = {"prompt": ids, "return_tokens": True, "cache_prompt": False, "n_predict": 24}
        return self.post("/completion", **(body | settings))

    def busy(self) -> bool:
        return any(slot["is_processing"] for slot in self.client.get("/slots").json())

    def end(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    return embedded_model.read_metadata(embedded_model.find_gguf(PACKAGE))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, metadata: dict[str, Any]) -> None:
    """Spares the seconds that reading the GGUF file takes, every time but the first."""
    monkeypatch.setattr(embedded_model, "read_metadata", lambda _: metadata)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, metadata: dict[str, Any]) -> Path:
    out = tmp_path_factory.mktemp("models") / "smollm2"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded_model, "read_metadata", lambda _: metadata)
        assert embedded_model.main(["--package", str(PACKAGE), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    running = Server(folder / "model.gguf", "--slots", "4", "--context", "1024")
    yield running
    running.end()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


# The model folder


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


# The folder says what the engine does


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


# The server


def question(tokenizer: Tokenizer, text: str) -> list[int]:
    prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = tokenizer.encode(prompt, add_special_tokens=False).ids
    return ids


def test_ready_line(server: Server) -> None:
    assert server.ready == {
        "ready": True,
        "url": server.ready["url"],
        "pid": server.process.pid,
        "slots": 4,
        "context": 1024,
    }
    assert server.client.get("/health").status_code == 200
    assert server.start_seconds < START_S


def test_same_seed_same_ids(server: Server, tokenizer: Tokenizer) -> None:
    ids = question(tokenizer, "Name three animals that live in the sea.")
    first, again, other = (server.complete(ids, seed=seed)["tokens"] for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_a_prompt_of_ids_is_taken_as_it_is(server: Server, tokenizer: Tokenizer) -> None:
    ids = question(tokenizer, "What is the capital of France?")
    found = server.complete(ids, temperature=0.0, n_predict=48)
    assert found["tokens_evaluated"] == len(ids)
    assert found["tokens_predicted"] == len(found["tokens"])
    assert found["tokens"][-1] == 2  # the end of the turn is among the ids, not in the text
    assert tokenizer.decode(found["tokens"][:-1]) == found["content"]
    assert "Paris" in found["content"]


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ([504] * 1024, "exceed_context_size_error"),
        ([], "invalid_request_error"),
        ([504, 49152], "invalid_request_error"),
        ([504, -1], "invalid_request_error"),
    ],
    ids=["too long", "empty", "unknown id", "negative id"],
)
def test_an_unusable_prompt_is_refused(server: Server, prompt: list[int], kind: str) -> None:
    answer = server.client.post("/completion", json={"prompt": prompt, "n_predict": 1})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, kind)
    assert server.client.get("/health").status_code == 200


def until(condition: Any, limit: float, what: str) -> float:
    """Wait until ``condition()`` holds and return the seconds it took, fail after ``limit``."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit, f"{what} after {limit} s"
        time.sleep(0.02)
    return time.monotonic() - started


LONG = {"prompt": [504], "n_predict": 900, "ignore_eos": True}


def test_a_streamed_request_given_up_frees_its_slot(server: Server) -> None:
    """One that is not streamed would run to its end: llama.cpp does not see the closed socket."""
    with server.client.stream("POST", "/completion", json={**LONG, "stream": True}) as answer:
        lines = answer.iter_lines()  # httpx closes the answer when this is let go
        assert next(lines).startswith("data: ")
        assert server.busy()
    until(lambda: not server.busy(), 10, "still busy")


def test_a_busy_server_answers_like_an_idle_one(server: Server) -> None:
    """Ids and probabilities are equal to the last bit; with flash attention they are not.

    Prompts cut so that one token is left over are the exception, which these lengths exclude.
    """
    prompts = [list(range(1000, 1000 + length)) for length in (70, 80, 95)]

    def answer(ids: list[int]) -> list[tuple[int, float]]:
        found = server.complete(ids, seed=5, n_predict=2, n_probs=1, ignore_eos=True)
        return [(step["id"], step["logprob"]) for step in found["completion_probabilities"]]

    alone = [answer(ids) for ids in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(answer, prompts)) == alone


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_a_request_in_flight(folder: Path, number: signal.Signals) -> None:
    server = Server(folder / "model.gguf", "--slots", "1")
    client = subprocess.Popen(
        [sys.executable, "-c", REQUEST, server.ready["url"] + "/completion", json.dumps(LONG)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        until(server.busy, 30, "no request")
        server.process.send_signal(number)
        assert server.process.wait(STOP_S) == 0
        assert client.communicate(timeout=30)[0].strip() == "closed"
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""  # one line in all
    finally:
        server.end()
        client.kill()
        client.wait()


REQUEST = """
import http.client, sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    opener.open(sys.argv[1], sys.argv[2].encode(), timeout=60).read()
    print("answered")
except (http.client.HTTPException, OSError):
    print("closed")
"""

PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-m", "workflow_scripts.embedded.server", *sys.argv[1:]])
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie that nobody has collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_it_dies_with_its_parent(folder: Path) -> None:
    command = [sys.executable, "-c", PARENT, "--model", str(folder / "model.gguf"), "--slots", "1"]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = json.loads(parent.stdout.readline())["pid"]
        assert is_running(pid)
    finally:
        parent.kill()
        parent.communicate()
    until(lambda: not is_running(pid), ORPHAN_S, "still running")


def run_server(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workflow_scripts.embedded.server", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_parent_already_gone_is_noticed(folder: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    found = run_server("--model", str(folder / "model.gguf"), "--parent-pid", str(gone.pid))
    assert (found.returncode, found.stdout) == (0, "")
    assert "is gone" in found.stderr


def test_an_unusable_model_is_named(tmp_path: Path) -> None:
    found = run_server("--model", str(tmp_path / "none.gguf"))
    assert (found.returncode, found.stdout) == (2, "")
    assert "cannot read the model file" in found.stderr
    (tmp_path / "torn.gguf").write_bytes(b"GGUF\x03\0\0\0")
    found = run_server("--model", str(tmp_path / "torn.gguf"))
    assert (found.returncode, found.stdout) == (1, "")
    assert "could not serve" in found.stderr


def test_a_request_given_up_frees_its_slot(folder: Path) -> None:
    """Through the workflow's own client: answers, then a long request that is cancelled."""
    values = {
        "output_dir": "x",
        "input": "x",
        "model": {"path": str(folder), "thinking": False},
        "engine": {"kind": "embedded", "slots": 1},
        "sampling": {"max_new_tokens": 900, "temperature": 0},
    }
    config = load(values)
    story = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("1 2 3 4 5 6 7 8 9").ids

    async def ask_and_give_up() -> list[int | None]:
        async with open_engines(config, [2], print) as [(engine, _)]:
            running = asyncio.create_task(engine.ask(Ask("rid", story, 1)))
            seen = []
            for wanted in (1, 0):
                for _ in range(100):
                    busy, _ = await engine.load()
                    if busy == wanted:
                        break
                    await asyncio.sleep(0.05)
                seen.append(busy)
                running.cancel()
            return seen

    assert asyncio.run(ask_and_give_up()) == [1, 0]

"""Whatever listens at a URL must show that it is the configured model's server."""

import asyncio
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from aiohttp import web

from tests.made.model import make_model
from tests.made.workspace import Workspace, chat, stand_in
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.load import load
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.serve.attached import open_engines


def described(folder: Path, *urls: str, **engine: Any) -> list[str]:
    """The URLs of the servers, once each has shown what it is."""
    model = folder / "model"
    if not model.exists():
        make_model(model)
    config = load(
        {
            "output_dir": str(folder),
            "input": "x",
            "model": {"path": str(model)},
            "engine": {"kind": "attach", "urls": list(urls), "canary": [], **engine},
        }
    )
    prompts = Prompts.from_config(config)

    async def describe() -> list[str]:
        async with open_engines(config, sorted(prompts.end_ids), prompts) as engines:
            return [engine.url for engine, _ in engines]

    return asyncio.run(describe())


def test_another_model_is_refused(tmp_path: Path) -> None:
    with (
        stand_in(model_type="llama", model_path="models/other") as server,
        pytest.raises(ConfigError) as caught,
    ):
        described(tmp_path, server.url)
    for word in (server.url, "'models/other'", "model_type 'llama'", "has 'tiny'"):
        assert word in str(caught.value)


def test_a_wrong_canary_is_refused(tmp_path: Path) -> None:
    """The stand-in answers in letters."""
    with stand_in() as server:
        right = {"prompt": "Say letters", "expect": "^[a-z]+$"}
        assert described(tmp_path, server.url, canary=[right]) == [server.url]
        wrong = {"prompt": "Capital of France?", "expect": "Paris"}
        with pytest.raises(ConfigError, match="expected to find 'Paris'"):
            described(tmp_path, server.url, canary=[wrong])


def test_nobody_there(tmp_path: Path) -> None:
    with stand_in() as server:
        url = server.url
    with pytest.raises(EngineError, match=url):
        described(tmp_path, url)


def test_one_of_two_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with stand_in() as gone:
        pass
    with stand_in() as server:
        assert described(tmp_path, gone.url, server.url) == [gone.url, server.url]
    assert f"no answer from {gone.url} (" in capfd.readouterr().err


def test_another_model_on_the_port_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """Its answers reach nothing: the job stops and names it; with the right one the run ends."""
    work = Workspace.create(tmp_path / "w", [chat(f"Question {i}?") for i in range(60)])
    with stand_in(token_seconds=0.02, max_running=2) as server:
        port = int(server.url.rsplit(":", 1)[1])
        work.configure(engine={"kind": "attach", "urls": [server.url], "reconnect_s": 5}, shards=1)
        process = work.start()
        journal = work.out / "generate"
        while not any(path.stat().st_size > 2000 for path in journal.glob("*/journal/*.jsonl")):
            time.sleep(0.05)
            assert process.poll() is None
    with stand_in(port=port, model_type="llama") as other:
        output, _ = process.communicate(timeout=120)
        assert process.returncode != 0 and "model_type 'llama'" in output, output
        assert other.url == server.url
    with stand_in(port=port):
        done = work.run()
    assert done.code == 0, done.output
    rows = pl.read_parquet(work.out / "merged/completions.parquet")
    assert len(rows) == 60 and rows["row_id"].n_unique() == 60


def test_a_password_is_a_variable_and_stands_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a proxy before the servers asks for it; messages name the URL without it."""
    seen: list[str | None] = []
    make_model(tmp_path / "model")

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append(request.headers.get("authorization"))
        return web.Response(status=404, text="nothing here")

    async def describe() -> str:
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        (_, port) = runner.addresses[0]
        url = f"http://${{NAME}}:${{SECRET}}@127.0.0.1:{port}"
        config = load(
            {
                "output_dir": str(tmp_path),
                "input": "x",
                "model": {"path": str(tmp_path / "model")},
                "engine": {"kind": "attach", "urls": [url]},
            }
        )
        try:
            async with open_engines(config, [], Prompts.from_config(config)):
                return "no error"
        except (EngineError, ConfigError) as error:
            return str(error)
        finally:
            await runner.cleanup()

    assert asyncio.run(describe()) == (
        "engine.urls: ${NAME}, ${SECRET} is not set in this job's environment"
    )
    monkeypatch.setenv("NAME", "me")
    monkeypatch.setenv("SECRET", "s@crt")
    told = asyncio.run(describe())
    assert "HTTP 404" in told and "s@crt" not in told and "s%40crt" not in told
    assert seen == ["Basic bWU6c0BjcnQ="]  # base64 of me:s@crt

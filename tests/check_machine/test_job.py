"""The machine's checks, on machines that are not there and model folders that are broken."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from tests.made.model import make_model
from workflow_scripts.check_machine.__main__ import main
from workflow_scripts.check_machine.job import check
from workflow_scripts.check_machine.machine import ENVS, Machine, Outcome
from workflow_scripts.check_machine.software import check_weights
from workflow_scripts.serve.gpus import Gpu, lease
from workflow_scripts.sglang.flags import SIMULATIONS

GIB = 2**30
LOCKED = {
    "sglang": "0.5.11",
    "kernels": "0.14.1",
    "fastapi": "0.116.1",
    "starlette": "0.47.3",
    "torch": "2.11.0+cu130",
}
GPUS = """\
0, GPU-5a1fb0a6-7f0c-4c56-9b5e-0d5a3c1d2e10, NVIDIA H200, 4, 143771, 0, 76.62
1, GPU-c27de4f1-11c8-4b1a-8f3f-6b9a1f0e7d21, NVIDIA H200, 4, 143771, 0, 75.94
"""
BUSY = GPUS.replace("NVIDIA H200, 4, 143771, 0, 75.94", "NVIDIA H200, 51234, 143771, 97, 412.10")
PROCESS = "GPU-c27de4f1-11c8-4b1a-8f3f-6b9a1f0e7d21, 4711, /usr/bin/python3, 51220\n"
SMI_FAILS = """\
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.
Make sure that the latest NVIDIA driver is installed and running.
"""


def answering(
    gpus: str | Exception = GPUS,
    driver: str = "580.95.05",
    processes: str = "",
    packages: dict[str, Any] | Exception = LOCKED,
) -> Callable[[list[str]], str]:
    """What the commands say that a check runs."""

    def run(command: list[str]) -> str:
        said: Any = json.dumps(packages) if isinstance(packages, dict) else packages
        if command[0] == "nvidia-smi":
            said = driver + "\n" + driver if "driver_version" in command[1] else gpus
            said = processes if "compute-apps" in command[1] else said
        if isinstance(gpus, Exception) and command[0] == "nvidia-smi":
            raise gpus
        if isinstance(said, Exception):
            raise said
        return str(said)

    return run


MACHINE = Machine(
    run=answering(),
    environ={},
    python=(3, 12),
    glibc="2.39",
    free=lambda path: 2000 * GIB,
    memory=lambda: 1500 * GIB,
    open_files=lambda: (65536, 65536),
    listens=lambda host, port: False,
    own_ports=lambda: range(32768, 61000),
)


def safetensors(path: Path, size: int) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\1" * size)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = make_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    names = [f"model-{k}-of-3.safetensors" for k in (1, 2, 3)]
    for name in names:
        safetensors(folder / name, 1000)
    index = {"metadata": {"total_size": 3000}, "weight_map": {f"w{n}": n for n in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def values(tmp_path: Path, model: Path) -> dict[str, Any]:
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hello", "response": ""}\n' * 10)
    return {
        "output_dir": str(tmp_path / "out"),
        "input": str(tmp_path / "in.jsonl"),
        "model": {"path": str(model)},
        "engine": {"kind": "sglang", "server": {"max_running_requests": 64}},
    }


def bad(values: Any, machine: Machine = MACHINE) -> list[Outcome]:
    return [line for line in check(values, machine) if line.state != "ok"]


def one(values: Any, machine: Machine = MACHINE) -> str:
    """The one line that is not ok, as it is printed."""
    (line,) = bad(values, machine)
    return " ".join(line)


def test_a_machine_that_is_right(
    values: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values["engine"]["stage"] = str(tmp_path)
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(values))
    assert main(["--configfile", str(tmp_path / "my.yaml")], MACHINE) == 0
    lines = [line.split(None, 1)[1] for line in capsys.readouterr().out.splitlines()]
    checks = [line[:13].strip() for line in lines]
    assert checks == [
        *("python", "configuration", "model", "weights", "sglang", "packages", "simulation"),
        *("flags", "driver", "gpu 0", "gpu 1", "ports", "stage", "disk", "open files"),
    ]
    assert "NVIDIA H200, 4 of 143,771 MiB in use" in lines[9]
    assert "--max-running-requests 64" in lines[7]
    assert "kernels 0.14.1, fastapi 0.116.1" in lines[5]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"python": (3, 10)}, "FAIL python 3.10 is older than 3.11"),
        ({"glibc": "2.28"}, "FAIL glibc 2.28 is too old"),
        ({"environ": {SIMULATIONS[0]: "3"}}, "FAIL simulation .*unset SGLANG_SIMULATE_ACC_LEN"),
        ({"free": lambda path: 1000}, "FAIL disk .*set output_dir to another disk"),
        ({"open_files": lambda: (256, 4096)}, "FAIL open files up to 416 are needed, 256 .*"
         "ulimit -n 416"),
        ({"open_files": lambda: (256, 300)}, "FAIL open files .*limits.conf"),
        ({"listens": lambda host, port: port == 20100}, "WARN ports 20100 in use"),
        ({"own_ports": lambda: range(1024, 65536)}, "WARN ports .*ip_local_port_range"),
    ],
)  # fmt: skip
def test_hosts(values: dict[str, Any], change: dict[str, Any], expected: str) -> None:
    found = one(values, replace(MACHINE, **change))
    assert re.match(expected, found), found


def test_open_files_by_a_flag_written_as_on_a_command_line(values: dict[str, Any]) -> None:
    values["engine"]["server"] = {"--max-running-requests": 64}
    found = one(values, replace(MACHINE, open_files=lambda: (256, 4096)))
    assert "up to 416 are needed" in found  # 64 and a quarter more, on two GPUs, and 256


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"gpus": FileNotFoundError()}, ["FAIL gpus nvidia-smi is not there"]),
        ({"gpus": subprocess.CalledProcessError(9, "nvidia-smi", SMI_FAILS)},
         ["FAIL gpus nvidia-smi failed (NVIDIA-SMI has failed because"]),
        ({"gpus": ""}, ["FAIL gpus engine.gpus: auto asked for, 0 found"]),
        ({"gpus": BUSY, "processes": PROCESS}, ["FAIL gpu 1 NVIDIA H200, 51,234 of 143,771 MiB in "
         "use by process 4711 (/usr/bin/python3, 51220 MiB); end that"]),
        ({"gpus": BUSY}, ["FAIL gpu 1 NVIDIA H200, 51,234 of 143,771 MiB in use; end that"]),
        ({"processes": PROCESS.replace("51220", "412")}, ["WARN gpu 1 NVIDIA H200, 4 of"]),
        ({"processes": PROCESS.replace("GPU-c", "GPU-d")}, []),
        ({"driver": "570.133.20"}, ["WARN driver 570.133.20 is too old for CUDA 13."]),
        ({"gpus": GPUS.replace(", 4, 143771, 0", ", [N/A], [N/A], [N/A]")}, []),
        ({"packages": FileNotFoundError(2, "No such file or directory")},
         ["FAIL sglang engine.python: .venv-sglang/bin/python cannot be run (No such file"]),
        ({"packages": subprocess.CalledProcessError(1, "python", "", "a\nImportError: x\n")},
         ["FAIL sglang engine.python: .venv-sglang/bin/python failed (ImportError: x)"]),
        ({"packages": LOCKED | {"sglang": None}}, ["FAIL sglang engine.python: .venv-sglang/bin/"
         "python has no SGLang"]),
        ({"packages": LOCKED | {"kernels": "0.17.0"}},
         ["FAIL packages kernels 0.17.0 where the lock has 0.14.1"]),
        ({"packages": LOCKED | {"kernels": "0.14.0"}},
         ["WARN packages kernels 0.14.0 where the lock has 0.14.1"]),
        ({"packages": LOCKED | {"kernels": None}}, ["FAIL packages kernels none where"]),
        ({"packages": LOCKED | {"fastapi": "0.165.0", "starlette": "1.10.0", "torch": "2.12.0"}},
         ["FAIL packages fastapi 0.165.0 where the lock has 0.116.1; starlette 1.10.0 where the "
          "lock has 0.47.3; torch 2.12.0 where"]),
        ({"packages": LOCKED | {"torch": "2.11.0+cpu"}}, ["FAIL packages torch 2.11.0+cpu has no"]),
        ({"packages": LOCKED | {"sglang": "0.5.20"}},
         ["WARN sglang the flags of SGLang 0.5.20 are not in", "WARN packages there is no "]),
    ],
)  # fmt: skip
def test_gpus_and_packages(values: dict[str, Any], said: Any, expected: list[str]) -> None:
    found = [" ".join(line) for line in bad(values, replace(MACHINE, run=answering(**said)))]
    assert len(found) == len(expected), found
    for line, beginning in zip(found, expected, strict=True):
        assert line.startswith(beginning)


def test_a_gpu_that_a_run_has_taken(values: dict[str, Any]) -> None:
    """Of a UUID of this test alone: it is taken on the whole host."""
    found = GPUS.replace("GPU-c27de4f1", f"GPU-{uuid4()}")
    taken = Gpu(1, found.splitlines()[1].split(", ")[1], "NVIDIA H200", 4, 143_771, 0, None)
    held = lease(taken)
    assert held is not None
    with held:
        told = one(values, replace(MACHINE, run=answering(gpus=found)))
    assert told == (
        "FAIL gpu 1 NVIDIA H200, 4 of 143,771 MiB in use, taken by a run or tune (process "
        f"{os.getpid()}); wait for it to end, or name other GPUs"
    )


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({"server": {"max_runing_requests": 8}}, "FAIL flags engine.server.max_runing_requests: "),
        ({"server": {"load_format": "dummy"}}, "FAIL simulation engine.server.load_format: dummy"),
        ({"gpus": 8}, "FAIL gpus engine.gpus: 8 asked for, 2 found"),
        ({"gpus": [0, 5]}, "FAIL gpus engine.gpus: there is no GPU '5'"),
        ({"stage": "/nowhere"}, "FAIL stage engine.stage: /nowhere is not a folder"),
        ({"urls": ["http://127.0.0.1:30000"]}, "FAIL configuration the configuration cannot"),
        ({"kind": "attach", "server": {}, "urls": ["http://127.0.0.1:30000"]},
         "FAIL server http://127.0.0.1:30000 takes no connection"),
    ],
)  # fmt: skip
def test_configurations(values: dict[str, Any], engine: dict[str, Any], expected: str) -> None:
    assert one(values | {"engine": values["engine"] | engine}).startswith(expected)


def test_a_rehearsal_may_simulate(values: dict[str, Any]) -> None:
    values["engine"] |= {"rehearsal": True, "server": {"load_format": "dummy"}}
    assert not bad(values, replace(MACHINE, environ={SIMULATIONS[0]: "3"}))


def test_the_stage_has_to_be_large_enough(values: dict[str, Any], tmp_path: Path) -> None:
    values["engine"]["stage"] = str(tmp_path)
    small = replace(MACHINE, free=lambda path: GIB if path == tmp_path else 2000 * GIB)
    assert "in a container: --shm-size" in one(values, small)
    values["engine"]["stage"] = "/dev/shm"
    assert "but it is memory, of which 0.5 are" in one(
        values, replace(MACHINE, memory=lambda: GIB // 2)
    )


def test_answers_have_to_fit_on_the_disk(values: dict[str, Any]) -> None:
    Path(values["input"]).write_text('{"prompt": "Hello"}\n' * 100_000)
    found = one(values, replace(MACHINE, free=lambda path: 5 * GIB))
    assert found.startswith("WARN disk 5 GiB free")
    assert "about 100,0" in found or "about 99,9" in found
    Path(values["input"]).unlink()
    assert one(values).startswith("FAIL input input: ")


def test_the_weights_have_to_fit_on_a_gpu(values: dict[str, Any], model: Path) -> None:
    small = GPUS.replace("143771", "0.001")
    assert not bad(values, replace(MACHINE, run=answering(small)))  # 0 MiB: not known
    safetensors(model / "model-4-of-3.safetensors", 2 * 2**20)
    found = one(values, replace(MACHINE, run=answering(GPUS.replace("143771", "2"))))
    assert found.startswith("FAIL memory the weights take 0.0 GiB, GPU 0 has 0.0")


# ---- model folders ------------------------------------------------------------------------------


def test_what_a_model_folder_lacks(values: dict[str, Any], model: Path) -> None:
    (model / "generation_config.json").unlink()
    (model / "config.json").write_text("{}")
    assert bad(values) == []  # the tokenizer names an end token
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": None}))
    assert one(values).startswith("WARN model ")
    (model / "tokenizer_config.json").write_text("{}")
    assert "no chat template" in one(values)
    (model / "tokenizer.json").unlink()
    assert one(values).startswith(
        f"FAIL model {model / 'tokenizer.json'} missing; check model.path"
    )


@pytest.mark.parametrize(
    ("template", "thinking", "expected"),
    [
        ("{% if %}", True, "is not valid Jinja, line 1"),
        ("{{ raise_exception('no such thing') }}<think></think>", True,
         "the chat template refuses it: no such thing, and it was only asked to render a plain"),
        ("{{ messages[0].text.strip() }}", False, "the chat template refuses it: 'dict object' "),
        ("{% if add_generation_prompt %}</think>{% endif %}<think>{{ messages[0].content }}"
         "{% if add_generation_prompt %}</think>{% endif %}", True, "a reasoning that is over"),
        ("{{ messages[0].content }}<think>", False, "model.thinking: false, but the chat template"),
        ("{{ strftime_now('%Y') }}", False, "set model.date to a fixed date"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_template(
    values: dict[str, Any], model: Path, template: str, thinking: bool, expected: str
) -> None:
    (model / "chat_template.jinja").write_text(template)
    values["model"]["thinking"] = thinking
    found = one(values)
    assert found.startswith("FAIL model ") and expected in found, found


def test_calls_to_regenerate_that_the_template_never_writes(values: dict[str, Any]) -> None:
    values["audit"] = {"rules": {"tool_turns": "regenerate"}}
    found = one(values)
    assert found.startswith("FAIL model audit.rules.tool_turns: the chat template writes calls"), (
        found
    )


def test_a_tokenizer_that_cannot_be_read(values: dict[str, Any], model: Path) -> None:
    (model / "tokenizer.json").write_text("{}")
    assert "tokenizer.json cannot be read" in one(values)


def cut(model: Path) -> None:
    path = model / "model-2-of-3.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def as_pointer(model: Path) -> None:
    path = model / "model-1-of-3.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1000\n")


def without(model: Path) -> None:
    (model / "model-3-of-3.safetensors").unlink()


def all_cut(model: Path) -> None:
    for path in model.glob("*.safetensors"):
        path.write_bytes(b"\0")
    safetensors(model / "extra.safetensors", 5)
    (model / "extra.safetensors").write_bytes(b"{")


def too_few(model: Path) -> None:
    index = model / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("3000", "300000"))


def no_index(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text("[]")


def none(model: Path) -> None:
    for path in model.glob("*.safetensors*"):
        path.unlink()


def other_kind(model: Path) -> None:
    none(model)
    (model / "pytorch_model.bin").write_bytes(b"x")


@pytest.mark.parametrize(
    ("breaks", "state", "text"),
    [
        (cut, "FAIL", r"model-2-of-3.safetensors has 1,\d+ of 1,\d+ bytes; fetch the model again"),
        (as_pointer, "FAIL", "model-1-of-3.safetensors is a Git LFS pointer"),
        (without, "FAIL", "model-3-of-3.safetensors is missing"),
        (all_cut, "FAIL", "extra.safetensors cannot be read, .* and 1 more"),
        (too_few, "FAIL", r"3,\d+ bytes where the index says 300,000"),
        (no_index, "FAIL", "model.safetensors.index.json is not an index"),
        (none, "FAIL", "there are none"),
        (other_kind, "WARN", "only safetensors can be checked, found pytorch_model.bin"),
    ],
)
def test_broken_weights(model: Path, breaks: Callable[[Path], None], state: str, text: str) -> None:
    breaks(model)
    line = check_weights(model)
    assert line.state == state

    assert re.search(text, line.text), line.text


def test_a_configuration_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("a: [", None, "x"):
        path = tmp_path / "my.yaml"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        assert main(["--configfile", str(path)], MACHINE) == 1
        assert "FAIL  configuration" in capsys.readouterr().out


def test_the_real_machine_can_be_seen() -> None:
    machine = Machine()
    assert machine.python >= (3, 11)
    assert machine.free(Path("/")) > 0
    assert machine.memory() > 0
    assert machine.open_files()[0] != 0
    assert not machine.listens("127.0.0.1", 1)
    assert isinstance(machine.own_ports(), range)
    assert (ENVS / "sglang-0.5.11.txt").is_file()

"""Staged copies of a model: who uses them, and what becomes of those that nobody does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.made.paths import ROOT
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.serve.staging import staged, unstage

# Copies a model and uses the copy until it is killed; `half`: it is killed amid copying.
USE = """
import shutil, sys, time
from pathlib import Path
from workflow_scripts.serve.staging import staged

def slow(source, copy):
    print("half", flush=True)
    time.sleep(60)

if sys.argv[3] == "half":
    shutil.copytree = lambda source, copy, **_: slow(source, (copy / "config.json").write_text("{"))
held = staged(Path(sys.argv[1]), sys.argv[2], lambda text: None, sys.argv[3] == "keep")
print(held[0], flush=True)
time.sleep(60)
"""


def user(model: Path, stage: Path, how: str) -> "subprocess.Popen[str]":
    """A process that uses a copy, or is half through making one."""
    command = [sys.executable, "-c", USE, str(model), str(stage), how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None and process.stdout.readline()
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def copies(stage: Path) -> list[str]:
    """What stands in a stage; a copy has two locks beside it."""
    return sorted(path.name for path in stage.iterdir())


@pytest.fixture
def staging(tmp_path: Path) -> tuple[Path, Path]:
    """A model, and the folder to copy it to."""
    model, stage = tmp_path / "model", tmp_path / "shm"
    model.mkdir()
    (model / "config.json").write_text("{}")
    stage.mkdir()
    return model, stage


def test_a_staged_copy_goes_with_its_last_user(staging: tuple[Path, Path]) -> None:
    """As with two jobs of a cluster on one node."""
    model, stage = staging
    copy, first = staged(model, str(stage), print)
    same, second = staged(model, str(stage), print)
    assert copy == same and first is not None and second is not None
    unstage(copy, first)
    assert (copy / "config.json").exists()
    unstage(copy, second)
    assert list(stage.iterdir()) == []


def test_a_copy_that_somebody_else_made_is_not_served(
    tmp_path: Path, staging: tuple[Path, Path]
) -> None:
    """Its name can be guessed: a link to another model, or a folder that others may write to."""
    model, stage = staging
    copy, users = staged(model, str(stage), print)
    assert users is not None
    unstage(copy, users)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".staged").touch()
    copy.symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="a link or file stands where a folder of ours belongs"):
        staged(model, str(stage), print)
    copy.unlink()
    copy.mkdir()
    copy.chmod(0o777)
    (copy / ".staged").touch()
    with pytest.raises(ConfigError, match="other users may write there"):
        staged(model, str(stage), print)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another model."""
    model = tmp_path / "other-model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "other"}')
    return model


@pytest.mark.parametrize("how", ["whole", "half"])
def test_what_a_killed_run_left_goes_with_the_next_of_any_model(
    staging: tuple[Path, Path], other: Path, how: str
) -> None:
    model, stage = staging
    said: list[str] = []
    kill(user(model, stage, how))
    (left,) = (path for path in stage.iterdir() if path.is_dir())
    assert (left / "config.json").exists() and (left / ".staged").exists() == (how == "whole")
    copy, users = staged(other, str(stage), said.append)
    assert users is not None
    assert copies(stage) == [copy.name, f"{copy.name}.lock", f"{copy.name}.users"]
    assert said[0] == f"removed {left}, a copy of a model that a killed run left"
    assert f"copying the model to {copy}" in said[1] and "by the next run" in said[1]
    unstage(copy, users)
    assert copies(stage) == []


@pytest.mark.parametrize("how", ["whole", "half"])
def test_what_another_run_uses_or_makes_stays(
    staging: tuple[Path, Path], other: Path, how: str
) -> None:
    """And nobody waits for it."""
    model, stage = staging
    process = user(model, stage, how)
    before = copies(stage)
    copy, users = staged(other, str(stage), print)
    assert users is not None and len(copies(stage)) == 6
    unstage(copy, users)
    assert copies(stage) == before
    kill(process)


def test_a_killed_runs_own_copy_is_used_again(staging: tuple[Path, Path]) -> None:
    model, stage = staging
    kill(user(model, stage, "whole"))
    (left,) = (path for path in stage.iterdir() if path.is_dir())
    found = left.stat().st_ino
    said: list[str] = []
    copy, users = staged(model, str(stage), said.append)
    assert users is not None and copy.stat().st_ino == found and said == []
    unstage(copy, users)


def test_a_copy_to_keep_is_kept(staging: tuple[Path, Path], other: Path) -> None:
    """Until a run that keeps none has used it."""
    model, stage = staging
    kill(user(model, stage, "keep"))
    kept = copies(stage)
    copy, users = staged(other, str(stage), print)
    assert users is not None
    unstage(copy, users)
    assert copies(stage) == kept
    kill(user(model, stage, "whole"))
    copy, users = staged(other, str(stage), print)
    assert users is not None
    unstage(copy, users)
    assert copies(stage) == []


def test_what_is_not_a_copy_of_ours_stays(staging: tuple[Path, Path], tmp_path: Path) -> None:
    """A daemon's folder has such a name where TMPDIR is the stage; and links lead elsewhere."""
    model, stage = staging
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").touch()
    mine = f"tracemill-{os.getuid()}-"
    (stage / f"{mine}0123456789ab").mkdir()
    (stage / f"{mine}0123456789ab/lock").touch()
    (stage / f"{mine}aaaaaaaaaaaa").symlink_to(tmp_path / "elsewhere")
    (stage / f"{mine}aaaaaaaaaaaa.lock").touch()
    (stage / f"{mine}bbbbbbbbbbbb.lock").symlink_to(tmp_path / "elsewhere/file")
    (stage / f"tracemill-{os.getuid()}1-cccccccccccc.lock").touch()
    before = {*copies(stage)}
    copy, users = staged(model, str(stage), print)
    assert users is not None
    unstage(copy, users)
    assert before <= {*copies(stage)} and (tmp_path / "elsewhere/file").exists()
    assert (stage / f"{mine}0123456789ab/lock").exists()


def test_locks_without_a_copy_go_without_a_word(staging: tuple[Path, Path]) -> None:
    model, stage = staging
    (stage / f"tracemill-{os.getuid()}-aaaaaaaaaaaa.lock").touch()
    (stage / f"tracemill-{os.getuid()}-bbbbbbbbbbbb.users").touch()
    said: list[str] = []
    copy, users = staged(model, str(stage), said.append)
    assert users is not None and len(said) == 1
    unstage(copy, users)
    assert copies(stage) == []


def test_a_model_that_cannot_be_copied_leaves_nothing(staging: tuple[Path, Path]) -> None:
    model, stage = staging
    (model / "weights.safetensors").symlink_to(model / "gone")
    with pytest.raises(ConfigError, match=r"model cannot be copied to .*No such file.*weights"):
        staged(model, str(stage), print)
    assert copies(stage) == []

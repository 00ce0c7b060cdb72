"""The locks: every package pinned and hashed, every wish met, from the default index only."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.made.paths import ROOT

ENVS = ROOT / "envs"
LOCKS = sorted(ENVS.glob("*.txt"))
WISHES = sorted(ENVS.glob("*.in"))
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")

# What breaks a server of that version where it is not held; see the comments in the .in files.
HOLDS = {
    "sglang-0.5.11": ["sglang==0.5.11", "kernels<0.15", "fastapi==0.116.1", "starlette==0.47.3",
                      "torch==2.11.0", "transformers==5.6.0"],
    "sglang-0.5.23": ["sglang==0.5.23", "kernels<0.15", "transformers==5.19.0"],
}  # fmt: skip


def logical_lines(path: Path) -> list[str]:
    """Lines without comments, continued ones joined."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line]


def requirements(path: Path) -> list[Requirement]:
    lines = [line.split(" --hash")[0] for line in logical_lines(path)]
    return [Requirement(line) for line in lines if not line.startswith("-c ")]


def pins(path: Path) -> dict[str, list[str]]:
    """Versions by package; a lock for several Pythons may have more than one."""
    found: dict[str, list[str]] = {}
    for requirement in requirements(path):
        (pin,) = requirement.specifier
        found.setdefault(canonicalize_name(requirement.name), []).append(pin.version)
    return found


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_line_is_pinned_and_hashed(path: Path) -> None:
    for line in logical_lines(path):
        wish, *hashes = re.split(r"\s+(?=--)", line)
        assert hashes and all(HASH.fullmatch(word) for word in hashes), wish
        requirement = Requirement(wish)
        assert [spec.operator for spec in requirement.specifier] == ["=="], wish
        assert requirement.url is None, wish


@pytest.mark.parametrize("path", WISHES, ids=lambda path: path.stem)
def test_every_wish_is_met(path: Path) -> None:
    locked = pins(path.with_suffix(".txt"))
    for wish in requirements(path):
        for version in locked[canonicalize_name(wish.name)]:
            assert wish.specifier.contains(version, prereleases=True), wish


@pytest.mark.parametrize("name", HOLDS)
def test_holds_are_respected(name: str) -> None:
    locked = pins(ENVS / f"{name}.txt")
    for hold in map(Requirement, HOLDS[name]):
        (version,) = locked[canonicalize_name(hold.name)]
        assert hold.specifier.contains(version), hold


@pytest.mark.parametrize("path", [*LOCKS, *WISHES], ids=lambda path: path.name)
def test_no_other_index_is_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"index-url|find-links|trusted-host", text)


@pytest.mark.parametrize("name", HOLDS)
def test_the_servers_lock_is_whole(name: str) -> None:
    """What PyTorch and SGLang need at run time, and nothing that only other systems need."""
    locked = pins(ENVS / f"{name}.txt")
    assert {"torch", "triton", "sglang-kernel", "flashinfer-python", "nvidia-nccl-cu13"} <= set(
        locked
    )
    assert all(len(versions) == 1 for versions in locked.values())
    assert not {"colorama", "pywin32", "appnope", "decord2"} & set(locked)

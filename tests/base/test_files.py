"""A file is the old one or the whole new one, and an error says which file it was."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.made.paths import ROOT
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import (
    appearing,
    file_sha256,
    naming,
    own_file,
    own_folder,
    write_atomically,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "report.json"
    found.write_bytes(b"old")
    return found


def names(path: Path) -> list[str]:
    return [found.name for found in path.parent.iterdir()]


def test_a_new_file_takes_the_place_of_the_old_one(path: Path) -> None:
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new" and names(path) == ["report.json"]
    write_atomically(path.with_name("first"), b"", sync=False)
    assert sorted(names(path)) == ["first", "report.json"]


def test_it_appears_only_when_it_is_whole(path: Path) -> None:
    other = path.with_name("other")
    with appearing(path) as f, appearing(other) as g:
        f.write(b"new, " * 100_000)
        g.write(b"whole")
        f.flush()
        assert path.read_bytes() == b"old" and not other.exists()
    assert path.stat().st_size == 500_000 and other.read_bytes() == b"whole"
    assert sorted(names(path)) == ["other", "report.json"]


@pytest.mark.parametrize("fault", [ValueError("a bug"), KeyboardInterrupt()], ids=repr)
def test_whatever_ends_the_writing_leaves_the_old_file(path: Path, fault: BaseException) -> None:
    with pytest.raises(type(fault)) as raised, appearing(path) as f:
        f.write(b"half")
        raise fault
    assert raised.value is fault
    assert path.read_bytes() == b"old" and names(path) == ["report.json"]


def test_a_disk_that_fails_at_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems say only then that there was no room."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'") as raised:
        write_atomically(path, b"new")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_bytes() == b"old" and names(path) == ["report.json"]
    write_atomically(path, b"new", sync=False)  # not forced to the disk, so it is not asked
    assert path.read_bytes() == b"new"


WRITE = """
import resource, sys
from pathlib import Path
from workflow_scripts.base.files import write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(Path(sys.argv[1]), b"x" * 5000)
except OSError as error:
    print(error)
"""


def test_a_disk_that_takes_no_more(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(path)], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (f"[Errno 27] File too large: '{path}'\n", "")
    assert path.read_bytes() == b"old" and names(path) == ["report.json"]


def test_a_folder_that_is_gone_is_named(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone/report.json"):
        write_atomically(path.parent / "gone/report.json", b"new")


def test_an_error_that_names_its_file_keeps_the_name(path: Path) -> None:
    with pytest.raises(OSError, match="'elsewhere'"), naming(path):
        raise OSError(errno.EACCES, "Permission denied", "elsewhere")
    with pytest.raises(OSError, match=f"odd.*'{path}'"), naming(path):
        raise OSError("odd")


def test_sha256(path: Path) -> None:
    """The one-block example of FIPS 180-2, and the hash of nothing."""
    path.write_bytes(b"abc")
    assert file_sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path.write_bytes(b"")
    assert file_sha256(path) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


# ---- names that anybody can guess ---------------------------------------------------------------


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    """Made closed to others, and taken as found a second time."""
    path = tmp_path / "mine"
    assert own_folder(path) == path == own_folder(path)
    assert path.stat().st_mode & 0o777 == 0o700


def test_what_somebody_else_put_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "file", "open"):
        with pytest.raises(ConfigError, match=f"{name}: .*remove it, or set TMPDIR"):
            own_folder(tmp_path / name)
    (tmp_path / "there").symlink_to(tmp_path / "made")
    with pytest.raises(ConfigError, match="a link stands where a file of ours belongs"):
        own_file(tmp_path / "there")
    assert not (tmp_path / "made").exists()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(ConfigError, match="belongs to user"):
        own_folder(tmp_path / "real")
    with pytest.raises(ConfigError, match="belongs to user"):
        own_file(tmp_path / "file")

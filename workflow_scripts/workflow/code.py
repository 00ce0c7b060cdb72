"""The code that a stage's result depends on: an edit, but no mere touch, runs it again."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from workflow_scripts.identity import digest

PACKAGE = Path(__file__).resolve().parents[1]

# Rooms that decide how fast, where or how safely answers arrive, and how they are shown, never what
# they are; an edit in them reruns nothing. `config` and `sglang` are here because every value that
# matters reaches a rule through `params:` or the run's hash.
SPEED_ONLY = {
    "base",
    "check_machine",
    "config",
    "embedded",
    "engine",
    "plan",
    "progress",
    "serve",
    "sglang",
    "tune",
    "watch",
    "workflow",
}

# An import of project modules: by the text, since a parser takes half a second for all, which every
# Snakemake process would spend.
IMPORT = re.compile(
    r"^\s*(?:from|import) workflow_scripts((?:\.\w+)*)(?:\s+import\s+(\([^)]*\)|.*))?", re.M
)


def _module(name: str) -> Path | None:
    """The file of a module by its dotted name inside the package; None where there is none."""
    path = PACKAGE.joinpath(*name.split(".")).with_suffix(".py")
    return path if path.is_file() else None


@cache
def imports(path: Path) -> frozenset[Path]:
    """Project files that a file names in an import, wherever it stands."""
    found = set()
    for dotted, names in IMPORT.findall(path.read_text(encoding="utf-8")):
        name = dotted.lstrip(".")
        if module := _module(name) if name else None:
            found.add(module)
            continue
        for one in re.findall(r"(\w+)(?:\s+as\s+\w+)?", names):
            if module := _module(f"{name}.{one}".lstrip(".")):
                found.add(module)
    return frozenset(found)


def room(path: Path) -> str:
    """The room that a file of the package stands in; of a program of one file, its name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def closure(stage: str) -> Iterator[Path]:
    """A stage's program, all project files that it imports, and the templates beside them: that of
    `page.py` is `page.html.j2`."""
    todo = [path for path in (_module(f"{stage}.__main__"), _module(stage)) if path]
    seen: set[Path] = set()
    while todo:
        path = todo.pop()
        if path in seen or room(path) in SPEED_ONLY:
            continue
        seen.add(path)
        todo.extend(imports(path))
        yield from (path, *path.parent.glob(f"{path.stem}.*.j2"))


def code(stage: str) -> list[str]:
    """The files that a stage's result depends on. As a rule's inputs they make an edit, but not a
    mere touch, run it again."""
    return sorted(map(shown, closure(stage)))


def code_digest(stage: str) -> str:
    """Identity of what these files say. As a rule's parameter it does what they do as inputs."""
    files = {path.relative_to(PACKAGE).as_posix(): path for path in closure(stage)}
    return digest(*(part for name in sorted(files) for part in (name, files[name].read_bytes())))


def shown(path: Path) -> str:
    """The path as a rule names it: relative where it can be, so that a moved folder reruns
    nothing."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)

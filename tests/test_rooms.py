"""What docs/contributing.md asks of every file. That imports go down is import-linter's to hold."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.made.paths import ROOT

PACKAGE = ROOT / "workflow_scripts"
FILES = [path for name in ("workflow_scripts", "tests") for path in (ROOT / name).rglob("*.py")]
MOST_LINES, MOST_OF_A_CLASS, MOST_OF_A_FUNCTION = 400, 150, 60


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_too_long(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            most = MOST_OF_A_CLASS if isinstance(node, ast.ClassDef) else MOST_OF_A_FUNCTION
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < most, node.name


def test_a_name_means_one_class() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    classes = (n.name for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    assert [name for name, count in Counter(classes).items() if count > 1] == []


def test_rooms_are_packages_that_import_nothing_by_themselves() -> None:
    assert all(path.read_bytes() == b"" for path in PACKAGE.rglob("__init__.py"))
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_every_room_has_tests() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    programs = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    assert rooms - tested == set()
    imported = {name for name in programs if any(f"workflow_scripts.{name}" in t for t in texts)}
    assert programs - imported == set()

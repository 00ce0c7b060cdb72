"""Which files a stage's result depends on."""

import ast

import pytest

from workflow_scripts.workflow.code import PACKAGE, SPEED_ONLY, closure, code_digest, imports, room

STAGES = ("audit", "shard", "generate", "merge", "dataset", "verify", "report", "gate")


def files(stage: str) -> set[str]:
    return {path.relative_to(PACKAGE).as_posix() for path in closure(stage)}


def test_imports_are_found_as_python_finds_them() -> None:
    for path in PACKAGE.rglob("*.py"):
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        modules = {name[17:] for name in names if name.startswith("workflow_scripts.")}
        there = {PACKAGE / f"{m.replace('.', '/')}.py" for m in modules}
        assert imports(path) == {file for file in there if file.exists()}, path


def test_every_room_that_is_left_out_is_there() -> None:
    rooms = {room(path) for path in PACKAGE.rglob("*.py")}
    assert rooms >= SPEED_ONLY


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_its_own_program_and_no_other_stage(stage: str) -> None:
    found = {name.split("/")[0].removesuffix(".py") for name in files(stage)}
    assert stage in found
    assert found.isdisjoint(SPEED_ONLY) and found & set(STAGES) == {stage}


def test_templates_are_part_of_their_rooms() -> None:
    assert {"report/page.html.j2", "report/page.style.j2"} <= files("report")
    assert {"dataset/page.html.j2", "dataset/card.md.j2"} <= files("dataset")
    assert "audit/page.html.j2" in files("audit.page")
    assert not [name for name in files("audit") | files("generate") if name.endswith(".j2")]


def test_who_needs_what() -> None:
    """Verify and report list a finished dataset's files; for that they need no sample, no loop, no
    template. Pages are drawn by what shows them alone."""
    for stage in ("verify", "report"):
        assert not [n for n in files(stage) if n.startswith(("dataset/", "model/", "texts/"))]
    for stage in ("audit", "shard", "generate", "merge", "verify", "gate"):
        assert not [name for name in files(stage) if name.startswith("pages/")]


def test_a_digest_tells_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {stage: code_digest(stage) for stage in STAGES}
    assert len(set(before.values())) == len(STAGES)
    assert before == {stage: code_digest(stage) for stage in STAGES}

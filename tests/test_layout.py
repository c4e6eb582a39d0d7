"""The folders are the architecture: which names there are, and who may import whom."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import regrow
from benchmarks.modules import rewiring

ROOT = Path(regrow.__file__).parent
LAYOUT = {
    "core", "methods", "storage", "kernels", "sparsifier", "distributed", "files", "integrations", "lab",
    "testing.py", "size.py", "__init__.py", "__main__.py", "py.typed",
}  # fmt: skip
# core <- methods <- storage <- sparsifier <- files, size, integrations, testing <- lab
LEVEL = {"core": 0, "methods": 1, "storage": 2, "sparsifier": 3, "files": 4, "size": 4, "integrations": 4, "testing": 4}
AT_MOST_CORE = ("kernels", "distributed")
LIBRARY = [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] not in ("lab", "__main__.py")]


def part_of(path: Path) -> str:
    """The part of the package that a file is in, by the name under which it is imported."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """The parts of the package that a file imports from, wherever in it; "" for the package itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.split(".")[0] == "regrow":
                yield [*name.split("."), ""][1]


def may_import(one: str, other: str) -> bool:
    if one == other or one in ("lab", "__init__", "__main__"):
        return True
    if one in AT_MOST_CORE:
        return other == "core"
    if other in AT_MOST_CORE:
        return one != "core"
    return other in LEVEL and LEVEL[other] <= LEVEL[one]


def test_a_run_of_the_lab_knows_nothing_of_sweeps_and_commands():
    above = ("regrow.lab.sweep", "regrow.lab.cli", "regrow.lab.report")
    assert not [path for path in ROOT.glob("lab/run/*.py") if any(name in path.read_text() for name in above)]


def test_the_top_level_has_no_other_names():
    assert {path.name for path in ROOT.iterdir() if path.name != "__pycache__"} <= LAYOUT


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    wrong = [other for other in imports_of(path) if not may_import(part_of(path), other)]
    assert not wrong, f"{part_of(path)} may not import {wrong}"


@pytest.mark.parametrize(
    ("one", "other", "is_allowed"),
    [
        ("methods", "core", True), ("core", "methods", False), ("core", "kernels", False), ("kernels", "core", True),
        ("kernels", "storage", False), ("storage", "kernels", True), ("storage", "sparsifier", False),
        ("testing", "size", True), ("sparsifier", "files", False), ("files", "lab", False), ("lab", "files", True),
        ("storage", "", False),
    ],
)  # fmt: skip
def test_the_rule_itself(one, other, is_allowed):
    assert may_import(one, other) == is_allowed


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_functions_take_few_arguments(path):
    tree = ast.parse(path.read_text())
    assert len(path.read_text().splitlines()) <= 330
    if part_of(path) != "kernels":
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name != "attach":
                given = node.args
                assert len([*given.posonlyargs, *given.args, *given.kwonlyargs]) <= 7, node.name


def test_a_reader_follows_a_step_that_rewires_through_twelve_modules():
    assert len(rewiring("SET", "dense")) <= 12

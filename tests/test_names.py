"""Names in the code say what a thing is."""

import ast
from pathlib import Path

import pytest

import pydlbench

#: Words that say nothing about what they name; ``left`` does beside ``right``.
BANNED = {"asked", "beside", "case", "found", "left", "of", "one", "played", "said", "told", "work"}
PACKAGE = Path(pydlbench.__file__).parent


def bound_names(node):
    """Return the names that a node of the syntax tree gives to something."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
        case ast.arg(arg=name) | ast.MatchAs(name=str(name)) | ast.alias(asname=str(name)):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
            return [name]
    return []


def banned_names(source):
    names = [name for node in ast.walk(ast.parse(source)) for name in bound_names(node)]
    banned = BANNED - {"left"} if "right" in names else BANNED
    return [name for name in names if name.strip("_").lower() in banned]


@pytest.mark.parametrize(
    "source",
    [
        *("one = 1", "x.found = 1", "def of(x): ...", "class Work: ...", "import os as left"),
        *("lambda said: 1", "[0 for _told in x]", "try: ...\nexcept E as case: ..."),
    ],
)
def test_every_kind_of_name_is_seen(source):
    assert len(banned_names(source)) == 1


@pytest.mark.parametrize(
    "room", sorted({path.name for path in PACKAGE.iterdir()} - {"__pycache__"})
)
def test_no_name_is_banned(room):
    path = PACKAGE / room
    files = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    names = {str(file.relative_to(PACKAGE)): banned_names(file.read_text()) for file in files}
    assert {file: names for file, names in names.items() if names} == {}

"""The scripts in ``benchmarks/`` load against this package and read their command lines."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[1] / "benchmarks"
_FILES = sorted(_FOLDER.rglob("*.py"))
_SCRIPTS = [path for path in _FOLDER.glob("*.py") if "add_argument(" in path.read_text("utf-8")]


def _names(path: Path) -> list[tuple[str, str]]:
    """Return what a file imports from this package, as (module, name)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pydlbench")
        for alias in node.names
    ]


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.relative_to(_FOLDER).as_posix())
def test_what_a_script_imports_is_there(path):
    for module, name in _names(path):
        there = importlib.import_module(module)
        assert hasattr(there, name) or importlib.util.find_spec(f"{module}.{name}"), (module, name)


@pytest.mark.deep
@pytest.mark.parametrize("path", _SCRIPTS, ids=lambda path: path.stem)
def test_a_script_reads_its_command_line(path):
    done = subprocess.run(
        [sys.executable, str(path), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert path.name in done.stdout

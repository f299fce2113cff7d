"""Imports of the package: no module needs itself by way of others.

``lint-imports`` holds the folders' layers; this holds the modules, within a folder too. Imports
inside functions count, and those that only annotate: whoever reads one of two files that need each
other has to read both.
"""

import ast
import graphlib
import itertools
from pathlib import Path

ROOT = Path(__file__).parent.parent


def modules(root: Path) -> dict[str, Path]:
    """Return the files of the package below a folder by their modules' names."""
    found = {}
    for path in (root / "pydlbench").rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return found & known.keys()


def circle(root: Path) -> list[str]:
    """Return a circle of modules, each importing the next; empty where there is none."""
    known = modules(root)
    needs = {name: imports(path, known) for name, path in known.items()}
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]  # it has each module before the one that imports it
    return []


def test_no_module_of_the_package_needs_itself_by_way_of_others():
    found = circle(ROOT)
    assert not found, " -> ".join(found)


def test_a_circle_is_named_by_its_modules(tmp_path):
    folder = tmp_path / "pydlbench"
    folder.mkdir()
    (folder / "__init__.py").write_text("from pydlbench.first import A\n")
    (folder / "first.py").write_text("import pydlbench.second\nA = 1\n")
    (folder / "second.py").write_text("def use():\n    from pydlbench import third\n")
    (folder / "third.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pydlbench.first import A\n"
    )
    names = ["pydlbench.first", "pydlbench.second", "pydlbench.third"]
    found = circle(tmp_path)
    assert found[0] == found[-1]
    assert sorted(found[1:]) == names
    after = dict(itertools.pairwise(found))
    assert after == dict(zip(names, [*names[1:], names[0]], strict=True))
    (folder / "third.py").write_text("")
    assert circle(tmp_path) == []

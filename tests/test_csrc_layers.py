"""The layers of ``csrc``, by what its files include: core, below cpu and cuda, below bind."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parent.parent / "csrc"
FILES = sorted(
    path for path in CSRC.rglob("*") if path.suffix in (".hpp", ".cpp", ".cu", ".cuh", ".in")
)
#: The folders that each folder may include from.
MAY_INCLUDE = {
    "core": {"core"},
    "cpu": {"core", "cpu"},
    "cuda": {"core", "cuda"},
    "bind": {"core", "cpu", "cuda", "bind"},
}
PYTHON = re.compile(r"^(Python\.h|pybind11/)")
CUDA = re.compile(r"^(cuda|cudnn|cublas|nv)\w*\.h|^(cuda|thrust|cub)/")


def includes(path: Path) -> tuple[list[str], list[str]]:
    """Return what a file includes in quotes, and what in angle brackets."""
    text = path.read_text(encoding="utf-8")
    return (
        re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE),
        re.findall(r"^\s*#\s*include\s*<([^>]+)>", text, re.MULTILINE),
    )


def folder_of(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def test_every_folder_is_a_layer():
    assert {folder_of(path) for path in FILES} == set(MAY_INCLUDE)


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_a_folder_includes_only_from_those_below_it(folder):
    for path in FILES:
        if folder_of(path) != folder:
            continue
        own, foreign = includes(path)
        # By their path from csrc, so that the folder is in it. What stands in for CUDA without
        # nvcc is the tests'.
        for name in own:
            if name == "cuda_emulation.hpp":
                assert path == CSRC / "cuda/simt.hpp"
                continue
            assert name.partition("/")[0] in MAY_INCLUDE[folder], (path, name)
            assert (CSRC / name).is_file(), (path, name)
        if folder != "bind":
            assert not [name for name in foreign if PYTHON.match(name)], path
        if folder in ("core", "cpu"):
            assert not [name for name in foreign if CUDA.match(name)], path


@pytest.mark.parametrize("module", ["cpu", "cuda"])
def test_the_bindings_of_one_module_know_nothing_of_the_other(module):
    other = {"cpu": "cuda", "cuda": "cpu"}[module]
    for path in (CSRC / "bind").glob(f"{module}_*.cpp"):
        own, _ = includes(path)
        assert not [name for name in own if name.startswith(f"{other}/")], path.name

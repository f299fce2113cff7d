"""Which tests of a product of parameters are in the default set, and which are there at all."""

import importlib.util
import itertools
from pathlib import Path

import pytest

_THREE = """
import pytest

@pytest.fixture(params=["x", "y", "z"])
def third(request):
    return request.param

@pytest.mark.product
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize(("second", "with_second"), [("a", 0), ("a", 1), ("b", 0)])
def test_of_three(first, second, with_second, third):
    pass
"""
_TWO = """
import pytest

@pytest.mark.product
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("second", "abc")
def test_of_two(first, second):
    pass
"""
_BUILT = """
import pytest

@pytest.mark.product
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("second", "abc")
def test_with_compiler(first, second, mode):
    pass
"""


class _Collected:
    """A plugin that keeps the parameters of the tests that would run."""

    def __init__(self) -> None:
        self.parameters: list[dict[str, object]] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            assert isinstance(item, pytest.Function)
            self.parameters.append(item.callspec.params)


def selected(folder: Path, text: str, marker: str) -> list[dict[str, object]]:
    """Return the parameters of a file's tests that a marker's expression selects."""
    path = folder / f"test_{folder.name}.py"  # a module that there is once
    path.write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    deep\n    gpu\n    product\n", encoding="utf-8"
    )
    spec = importlib.util.spec_from_file_location("shared", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    shared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared)
    collected = _Collected()
    words = [
        "--collect-only",
        "--import-mode=importlib",
        "-m",
        marker,
        "-p",
        "no:cacheprovider",
    ]
    assert pytest.main([str(path), *words], plugins=[shared, collected]) == pytest.ExitCode.OK
    return collected.parameters


def test_of_three_parameters_each_pair_of_values_is_seen(tmp_path):
    kept = selected(tmp_path, _THREE, "not deep")
    assert len(kept) == 4 * 3  # of 36; no fewer show the pairs of the two longest
    firsts, thirds = range(4), ("x", "y", "z")
    seconds = (("a", 0), ("a", 1), ("b", 0))  # given together, they are one parameter
    values = [(one["first"], (one["second"], one["with_second"]), one["third"]) for one in kept]
    for (left, first), (right, second) in itertools.combinations(
        enumerate((firsts, seconds, thirds)), 2
    ):
        assert {(one[left], one[right]) for one in values} == set(itertools.product(first, second))


def test_of_two_parameters_each_value_is_seen(tmp_path):
    kept = selected(tmp_path, _TWO, "not deep")
    assert len(kept) == 4
    assert {one["first"] for one in kept} == set(range(4))
    assert {one["second"] for one in kept} == set("abc")


def test_of_what_a_compiler_builds_each_value_is_seen_and_no_more(tmp_path):
    kept = selected(tmp_path, _BUILT, "deep or not deep")
    seen = {mode: [one for one in kept if one["mode"] == mode] for mode in ("eager", "compiled")}
    assert (len(seen["eager"]), len(seen["compiled"])) == (4 * 3, 4)
    assert {one["first"] for one in seen["compiled"]} == set(range(4))
    assert {one["second"] for one in seen["compiled"]} == set("abc")

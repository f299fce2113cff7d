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
    """A plugin that keeps which tests there are, their parameters, and which of them are deep."""

    def __init__(self) -> None:
        self.tests: list[tuple[str, dict[str, object], bool]] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            assert isinstance(item, pytest.Function)
            deep = item.get_closest_marker("deep") is not None
            self.tests.append((item.originalname, item.callspec.params, deep))


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> _Collected:
    """What the shared conftest.py leaves of three files of tests."""
    folder = tmp_path_factory.mktemp("products")
    for number, text in enumerate((_THREE, _TWO, _BUILT)):
        # A module that there is once.
        (folder / f"test_{folder.name}_{number}.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    deep\n    gpu\n    product\n", encoding="utf-8"
    )
    spec = importlib.util.spec_from_file_location("shared", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    shared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared)
    found = _Collected()
    words = ["--collect-only", "--import-mode=importlib", "-p", "no:cacheprovider"]
    assert pytest.main([str(folder), *words], plugins=[shared, found]) == pytest.ExitCode.OK
    return found


def selected(collected: _Collected, test: str, *, deep: bool = False) -> list[dict[str, object]]:
    """Return the parameters of a file's tests in the default set, or of all that there are."""
    return [
        parameters
        for name, parameters, marked in collected.tests
        if name == test and (deep or not marked)
    ]


def test_of_three_parameters_each_pair_of_values_is_seen(collected):
    kept = selected(collected, "test_of_three")
    assert len(kept) == 4 * 3  # of 36; no fewer show the pairs of the two longest
    firsts, thirds = range(4), ("x", "y", "z")
    seconds = (("a", 0), ("a", 1), ("b", 0))  # given together, they are one parameter
    values = [(one["first"], (one["second"], one["with_second"]), one["third"]) for one in kept]
    for (left, first), (right, second) in itertools.combinations(
        enumerate((firsts, seconds, thirds)), 2
    ):
        assert {(one[left], one[right]) for one in values} == set(itertools.product(first, second))


def test_of_two_parameters_each_value_is_seen(collected):
    kept = selected(collected, "test_of_two")
    assert len(kept) == 4
    assert {one["first"] for one in kept} == set(range(4))
    assert {one["second"] for one in kept} == set("abc")


def test_of_what_a_compiler_builds_each_value_is_seen_and_no_more(collected):
    kept = selected(collected, "test_with_compiler", deep=True)
    seen = {mode: [one for one in kept if one["mode"] == mode] for mode in ("eager", "compiled")}
    assert (len(seen["eager"]), len(seen["compiled"])) == (4 * 3, 4)
    assert {one["first"] for one in seen["compiled"]} == set(range(4))
    assert {one["second"] for one in seen["compiled"]} == set("abc")

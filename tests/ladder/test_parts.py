"""A step's operators by what they belong to."""

import pytest

from pydlbench.ladder.parts import module_tree, parts_of
from pydlbench.records.check import OperatorRow


def row(names, seconds, *, count=None, kind="layer", **how):
    count = len(names) if count is None else count
    return OperatorRow(
        signature="x", operator="x", names=names, seconds=seconds, count=count, kind=kind, **how
    )


ROWS = (
    row(("a.conv1", "a.conv2", "b.conv1"), 3.0, parts=(1, 2, 1), count=4),
    row(("a.conv1", "b.conv1"), 5.0, direction="backward"),
    row(("a.relu", "b.relu"), 1.0, kind="pointwise"),
    row((), 0.5, count=2, kind="pointwise"),
    row(("a.conv1", "a.conv2"), 0.25, kind="optimizer", direction="optimizer"),
)
NATIVE = {"a.conv1": 4.0, "b.conv1": 6.0, "a.conv2": 1.0, "a.relu": 0.5, "optimizer": 0.125}


def test_parts_of_the_same_calls_are_alike_and_nothing_is_lost():
    found = {one.name: one for one in parts_of(ROWS, NATIVE)}
    assert {name: (one.count, one.seconds) for name, one in found.items()} == {
        "a.conv1": (2, 8.0),
        "a.conv2": (1, 6.0),
        "a.relu": (2, 1.0),
        "(model)": (1, 1.0),
        "optimizer": (1, 0.5),
    }
    assert sum(one.total_s for one in found.values()) == pytest.approx(
        sum(one.count * one.seconds for one in ROWS)
    )
    assert {name: one.native_s for name, one in found.items()} == {
        "a.conv1": 5.0,
        "a.conv2": 1.0,
        "a.relu": None,  # of b.relu nothing is known
        "(model)": None,
        "optimizer": 0.125,
    }
    assert found["a.conv1"].weights == {0: 1.0, 1: 1.0}
    assert [one.kind for one in found.values()] == [
        *("layer", "layer", "pointwise", "pointwise", "optimizer"),
    ]


def test_modules_are_joined_at_any_depth():
    found = {one.name: one for one in parts_of(ROWS, NATIVE, depth=1)}
    assert {name: one.seconds for name, one in found.items()} == {
        "a": 3 * 3.0 + 5.0 + 1.0,
        "b": 3.0 + 5.0 + 1.0,
        "(model)": 1.0,
        "optimizer": 0.5,
    }
    assert found["a"].native_s == 5.5
    assert found["b"].native_s is None
    paths = (row(("inception/branch/conv..inception/branch/relu",), 1.0),)
    assert [one.name for one in parts_of(paths, {}, depth=2)] == ["inception/branch"]
    assert [one.name for one in parts_of(paths, {}, depth=9)] == ["inception/branch/conv"]


def test_the_tree_of_modules_adds_up_at_each_level():
    tree = module_tree(ROWS, NATIVE)
    total = sum(one.count * one.seconds for one in ROWS)
    assert tree.seconds == pytest.approx(total)
    found = {one.name: one for one in tree.children}
    assert list(found) == ["a", "b", "(model)", "optimizer"]
    assert {one.name: one.seconds for one in found["a"].children} == {
        "a.conv1": 8.0,
        "a.conv2": 6.0,
        "a.relu": 1.0,
    }
    assert found["a"].native_s == 5.5
    assert found["b"].native_s is None
    for one in found.values():
        below = sum(child.seconds for child in one.children)
        assert not one.children or below == pytest.approx(one.seconds)
    # A module that computes something itself is its own child.
    own = module_tree((row(("a", "a.x"), 1.0),), {})
    assert [one.name for one in own.children[0].children] == ["a", "a.x"]
    assert own.children[0].children[0].children == []

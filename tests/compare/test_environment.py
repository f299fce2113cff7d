"""What differs between the machines and environments of two runs."""

import copy

import pytest

from pydlbench.compare.environment import differences
from pydlbench.compare.rows import Pair


@pytest.fixture
def differ(row, side):
    """What is said of two runs that differ in device or environment."""

    def ask(device=None, environment=None, pairs=None, **changes):
        a = side("a", [row()])
        first = {"device": copy.deepcopy(a.device), "environment": copy.deepcopy(a.environment)}
        for part, change in (("device", device), ("environment", environment)):
            first[part].update(change or {})
        b = side("b", [row(**changes)], **first)
        return differences(a, b, pairs or [Pair(a.rows[0], b.rows[0])])

    return ask


def test_repeats_on_one_machine_do_not_differ(differ):
    assert differ() == []


def test_a_node_whose_memory_grows_is_the_same_machine(side, row):
    def nodes(memory_bytes, *cpus):
        node = {"index": 0, "cpus": list(cpus), "memory_bytes": memory_bytes}
        return side("x", [row()], device={"name": "x", "facts": {"numa_nodes": [node]}})

    assert not [one for one in differences(nodes(8, 0, 1), nodes(9, 0, 1), []) if one.counts]
    (found,) = (one for one in differences(nodes(8, 0, 1), nodes(8, 0), []) if one.counts)
    assert found.text == "the machines differ in NUMA nodes"


@pytest.mark.parametrize(
    ("change", "what", "text"),
    [
        ({"device": {"name": "Other 1"}}, "machine", "Invented 9000 and Other 1"),
        ({"device": {"facts": {"cores": 4}}}, "machine", "in cores: 2 and 4"),
        ({"device": {"libraries": {"oneDNN": "3.2"}}}, "library", "oneDNN absent and 3.2"),
        ({"environment": {"packages": {"numpy": "1.0"}}}, "library", "numpy 2.0 and 1.0"),
        (
            {"environment": {"variables": {"OMP_WAIT_POLICY": "active"}}},
            "variable",
            "OMP_WAIT_POLICY absent and active",
        ),
        ({"environment": {"python": "3.13"}}, "system", "3.11 and 3.13"),
        ({"algorithm": "brgconv"}, "kernel", "jit, then brgconv"),
        ({"clock_hz": 3.6e9}, "clock", "10.0 % lower"),
    ],
)
def test_what_may_change_times_is_named(differ, change, what, text):
    (found,) = differ(**change)
    # Another kernel or clock is in the ratio already.
    assert (found.what, found.counts) == (what, what not in ("kernel", "clock"))
    assert text in found.text


def test_a_run_without_a_record_may_differ(row, side):
    a, b = side("a", [row()]), side("b", [row()], device={}, environment={})
    assert [one.what for one in differences(a, b, [])] == ["unknown"]

"""Simulated repeats: false verdicts are counted, and what has really changed is found."""

from __future__ import annotations

import dataclasses
import math

import pytest

from pydlbench.compare.comparison import Settings
from pydlbench.compare.match import key, match
from pydlbench.compare.statistics import from_history
from pydlbench.compare.stored import compare

REPETITIONS = 200


def compared(a, b, **options):
    return compare(a, b, match(a, b), **options)


def verdicts(found):
    return [row.verdict for row in found.rows]


def test_repeats_of_a_drifting_machine_are_not_called_different(machine):
    here = machine()
    false = sum(
        set(verdicts(compared(here.run("a"), here.run("b")))) != {"UNCLEAR"}
        for _ in range(REPETITIONS)
    )
    assert false <= 2  # 1 % of the comparisons is what is promised


def test_neither_are_three_rows_of_which_nothing_in_common_is_known(machine):
    here = machine(rows=3, row_sd=0.028)
    false = sum(
        set(verdicts(compared(here.run("a"), here.run("b")))) != {"UNCLEAR"}
        for _ in range(REPETITIONS)
    )
    assert false <= 2


def test_a_row_that_became_a_quarter_slower_is_found_and_no_other(machine):
    here = machine()
    found = others = 0
    for _ in range(REPETITIONS):
        told = verdicts(compared(here.run("a"), here.run("b", {4: 1.25})))
        found += told.pop(4) == "SLOWER"
        others += set(told) != {"UNCLEAR"}
    assert found >= 0.9 * REPETITIONS
    assert others <= 2


def test_on_a_virtual_machine_a_kernel_that_shared_its_core_is_not_called_slower(machine):
    here = machine(episodes=0.01)
    runs = [(here.run("a"), here.run("b")) for _ in range(REPETITIONS)]
    told = [verdicts(compared(*pair)) for pair in runs]
    assert sum(set(one) != {"UNCLEAR"} for one in told) <= 2
    assert all(one.time.resolution > 1.5 for one in compared(*runs[0]).rows)
    hard = [({**side.device, "facts": {}}) for side in runs[0]]  # what is no virtual machine
    bare = [
        [dataclasses.replace(s, device=d) for s, d in zip(pair, hard, strict=True)] for pair in runs
    ]
    assert sum(set(verdicts(compared(*pair))) != {"UNCLEAR"} for pair in bare) > 20


def test_what_no_episode_does_is_found_on_a_virtual_machine_too(machine):
    here = machine(episodes=1e-9)
    for _ in range(20):
        told = verdicts(compared(here.run("a"), here.run("b", {4: 3.0})))
        assert told.pop(4) == "SLOWER"
        assert set(told) == {"UNCLEAR"}
        slow = compared(here.run("a"), here.run("b", dict.fromkeys(range(11), 1.5)))
        assert slow.geomean.verdict == "SLOWER"


def test_a_row_that_became_faster_is_found_too(machine):
    here = machine(run_sd=0.0)
    found = compared(here.run("a"), here.run("b", {0: 0.5}))
    assert verdicts(found)[0] == "FASTER"
    assert found.slower(0.03) == []


def test_what_all_rows_have_in_common_is_said_and_not_called(machine):
    here = machine(run_sd=0.0, row_sd=0.001)
    found = compared(here.run("a"), here.run("b", dict.fromkeys(range(11), 1.08)))
    assert found.drift == pytest.approx(1.08, rel=0.005)
    assert set(verdicts(found)) == {"UNCLEAR"}
    assert found.geomean.ratio == pytest.approx(1.08, rel=0.005)
    assert found.geomean.verdict == "UNCLEAR"


def test_twice_as_slow_altogether_is_no_drift(machine):
    here = machine(run_sd=0.0, row_sd=0.001)
    found = compared(here.run("a"), here.run("b", dict.fromkeys(range(11), 2.0)))
    assert found.drift is None
    assert set(verdicts(found)) == {"SLOWER"}
    assert found.geomean.verdict == "SLOWER"


def test_an_unchanged_row_among_many_changed_ones_is_not_called(machine):
    here = machine(run_sd=0.0, row_sd=0.001)
    slow = dict.fromkeys(range(1, 11), 1.12)
    assert verdicts(compared(here.run("a"), here.run("b", slow)))[0] == "UNCLEAR"


def test_the_interval_holds_the_variance_between_runs(row, side):
    a, b = side("a", [row()]), side("b", [row(median=11e-3)])
    (found,) = compared(a, b).rows
    # Within the runs the ratio is known to 0.4 %; between them to far less.
    assert found.time.ratio == pytest.approx(1.1)
    assert found.time.ci_low < 0.95
    assert found.time.ci_high > 1.25
    assert found.verdict == "UNCLEAR"
    assert found.time.resolution > 1.2


def test_short_and_streaming_kernels_scatter_more(row, side):
    rows = [row("net/conv"), row("net/fc", bytes=1e9), row("net/pool", median=50e-6)]
    found = compared(side("a", rows), side("b", rows)).rows
    widths = [math.log(one.time.ci_high / one.time.ci_low) for one in found]
    assert widths == sorted(widths)
    assert widths[2] > 1.5 * widths[0]


@pytest.mark.parametrize("where", ["a", "b"])
def test_a_contended_row_has_no_verdict(row, side, where):
    sides = {"a": [row()], "b": [row(median=50e-3)]}
    sides[where] = [one._replace(contended=1) for one in sides[where]]
    (found,) = compared(side("a", sides["a"]), side("b", sides["b"])).rows
    assert found.verdict == "UNCLEAR"
    assert "other work" in found.counts.reason


def test_a_row_without_an_interval_has_no_verdict(row, side):
    found = compared(side("a", [row()]), side("b", [row(median=1.0, half_width=None)]))
    assert found.rows[0].verdict == "UNCLEAR"
    assert "too few samples" in found.rows[0].counts.reason
    assert found.geomean is None


def test_where_only_the_clock_differs_cycles_are_judged(machine):
    here = machine(run_sd=0.0, row_sd=0.001)
    a, b = here.run("a"), here.run("b")
    # A clock of half the speed: twice the time, the same cycles; one row needs 50 % more of them.
    slow = [
        one._replace(
            median=one.median * (3 if number == 2 else 2),
            ci_low=one.ci_low * (3 if number == 2 else 2),
            ci_high=one.ci_high * (3 if number == 2 else 2),
            clock_hz=2e9,
        )
        for number, one in enumerate(b.rows)
    ]
    found = compared(a, type(b)(**{**_fields(b), "rows": slow}))
    assert found.in_cycles
    assert verdicts(found) == ["SLOWER" if number == 2 else "UNCLEAR" for number in range(11)]
    assert {row.time.verdict for row in found.rows} == {"SLOWER"}
    assert found.main_geomean is found.geomean_cycles
    assert any(one.what == "clock" for one in found.differences)


def slowed_clock(side, waiting, factor=0.5, slow=1.0):
    """A run at another clock: rows in ``waiting`` take as long as before, times ``slow``."""
    rows = []
    for number, one in enumerate(side.rows):
        times = slow if number in waiting else 1 / factor
        scaled = {name: getattr(one, name) * times for name in ("median", "ci_low", "ci_high")}
        rows.append(one._replace(**scaled, clock_hz=one.clock_hz * factor))
    return dataclasses.replace(side, rows=rows)


@pytest.mark.parametrize("changes", [{"bytes": 1e9}, {"flops_executed": None, "flops": None}])
def test_what_waits_for_memory_is_not_faster_at_a_slower_clock(machine, changes):
    here = machine(run_sd=0.0, row_sd=0.001)
    waiting = (2, 5, 7)
    a, b = (
        dataclasses.replace(
            one,
            rows=[
                row._replace(**(changes if number in waiting else {}))
                for number, row in enumerate(one.rows)
            ],
        )
        for one in (here.run("a"), here.run("b"))
    )
    found = compared(a, slowed_clock(b, waiting))
    assert found.in_cycles
    assert found.rows[2].cycles.ratio == pytest.approx(0.5, rel=0.01)
    assert set(verdicts(found)) == {"UNCLEAR"}
    assert "time and cycles" in found.rows[2].counts.reason
    # What is slower in both is slower, whatever bounds it.
    found = compared(a, slowed_clock(b, waiting, slow=4.0))
    assert [verdicts(found)[number] for number in waiting] == ["SLOWER"] * 3


def test_nor_is_a_run_that_only_waits(machine):
    here = machine(run_sd=0.0, row_sd=0.001)
    a, b = (
        dataclasses.replace(one, rows=[row._replace(bytes=1e9) for row in one.rows])
        for one in (here.run("a"), here.run("b"))
    )
    found = compared(a, slowed_clock(b, range(11), factor=0.4))
    assert set(verdicts(found)) == {"UNCLEAR"}
    assert found.main_geomean.verdict == "UNCLEAR"


def _fields(side):
    return {name: getattr(side, name) for name in type(side).__dataclass_fields__}


def test_without_clocks_there_are_no_cycles(row, side):
    a, b = side("a", [row(clock_hz=None)]), side("b", [row()])
    found = compared(a, b)
    assert found.rows[0].cycles is None
    assert found.geomean_cycles is None
    assert not found.in_cycles


def test_another_environment_keeps_the_common_part(machine, side):
    here = machine(run_sd=0.0, row_sd=0.001)
    a, b = here.run("a"), here.run("b")
    b = side("b", b.rows, environment={"packages": {"numpy": "3.0"}})
    found = compared(a, b)
    assert found.drift is None
    assert any("numpy" in one.text for one in found.differences)


def test_repeats_in_the_store_narrow_the_interval(machine):
    here = machine(run_sd=0.0, row_sd=0.001)
    past = [{key(row): row.median for row in here.run().rows} for _ in range(15)]

    def scatter(assumed, pairs):
        return from_history(assumed, [key(pair.b) for pair in pairs], past)

    a, b = here.run("a"), here.run("b", {3: 1.1})
    assert verdicts(compared(a, b))[3] == "UNCLEAR"
    found = compared(a, b, scatter=scatter)
    assert verdicts(found)[3] == "SLOWER"
    assert found.repeats == 15


def test_a_margin_may_be_asked_for(machine):
    here = machine(run_sd=0.0, row_sd=0.001)
    found = compared(here.run("a"), here.run("b", {3: 1.45}), settings=Settings(margin=0.5))
    assert verdicts(found).count("SAME") == 10  # 45 % slower is within 50 %, but not for sure


@pytest.mark.deep
def test_fifty_thousand_rows_are_compared_as_arrays(machine):
    here = machine(rows=50_000, row_sd=0.03)
    found = compared(here.run("a"), here.run("b", {7: 3.0}))
    assert verdicts(found).count("SLOWER") == 1
    assert found.rows[7].verdict == "SLOWER"

"""Simulated runs: false verdicts are counted, and what has really changed is found."""

import dataclasses

import pytest

from pydlbench.compare.comparison import Settings
from pydlbench.compare.match import key, match
from pydlbench.compare.stored import compare
from pydlbench.report.compare import what_would_decide
from pydlbench.store.entry import pack_samples

REPETITIONS = 60
#: One in a hundred is promised: of sixty comparisons, more than three are wrong once in 250 times.
FALSE = 3 / 60
CALLED = {"FASTER", "SLOWER"}


def compared(a, b, settings=None, groups=()):
    return compare(a, b, match(a, b), settings, groups)


def verdicts(found):
    return [row.verdict for row in found.rows]


def rates(here, slow=None, replicates=0):
    """Found among rows that became slower; comparisons in which another was called different."""
    slow = slow or {}
    found = false = 0
    for _ in range(REPETITIONS):
        groups = [here.replicates(replicates)] if replicates else ()
        told = verdicts(compared(here.run("a"), here.run("b", slow), groups=groups))
        found += sum(told[number] == "SLOWER" for number in slow)
        false += any(one in CALLED for number, one in enumerate(told) if number not in slow)
    return found / REPETITIONS / max(1, len(slow)), false / REPETITIONS


@pytest.mark.parametrize(
    ("machine_is", "replicates"),
    [
        ({}, 0),
        ({"rows": 3}, 0),
        ({"lap_sd": 0.03}, 0),
        ({"row_sd": 0.02}, 0),
        ({"row_sd": 0.02}, 4),
        ({"episodes": 0.05}, 0),
        ({"visits": 1, "row_sd": 0.02}, 4),
    ],
    ids=str,
)
def test_repeats_are_not_called_different(machine, machine_is, replicates):
    assert rates(machine(**machine_is), replicates=replicates)[1] <= FALSE


@pytest.mark.parametrize(
    ("machine_is", "factor", "replicates", "least"),
    [
        # A virtual machine whose hours differ by 5 %; a visit by 1 %.
        ({"rows": 33}, 1.05, 0, 0.6),
        ({"rows": 33}, 1.1, 0, 0.75),
        ({"rows": 33}, 1.5, 0, 0.95),
        # A quiet machine.
        ({"run_sd": 0.005, "visit_sd": 0.004}, 1.03, 0, 0.9),
        ({"run_sd": 0.005, "visit_sd": 0.004}, 1.1, 0, 0.99),
        # Rows whose runs differ by more than their visits: replicates know by how much.
        ({"row_sd": 0.01}, 1.1, 5, 0.7),
        ({"row_sd": 0.01, "visits": 1}, 1.1, 5, 0.6),
    ],
    ids=str,
)
def test_a_slower_row_is_found_and_no_other(machine, machine_is, factor, replicates, least):
    found, false = rates(machine(**machine_is), {4: factor}, replicates)
    assert found >= least
    assert false <= FALSE


def test_on_a_quiet_machine_rows_are_the_same(machine):
    here = machine(run_sd=0.005, visit_sd=0.004)
    told = [one for _ in range(20) for one in verdicts(compared(here.run("a"), here.run("b")))]
    assert told.count("SAME") > 0.9 * len(told)


def slowed(side, number, factor):
    """A run one of whose rows takes longer by a factor."""
    rows = list(side.rows)
    one = rows[number]
    visits = pack_samples([factor * x for x in memoryview(one.visit_s or b"").cast("d")])
    rows[number] = one._replace(median=factor * one.median, visit_s=visits)
    return dataclasses.replace(side, rows=rows)


@pytest.mark.parametrize(
    ("machine_is", "replicates"),
    [
        ({"rows": 11}, 0),  # its hours differ by 5 %, which may hide a change
        pytest.param({"run_sd": 0.005, "rows": 11}, 0, marks=pytest.mark.deep),
        pytest.param({"row_sd": 0.006, "rows": 33}, 0, marks=pytest.mark.deep),
        ({"row_sd": 0.01, "rows": 11}, 4),
    ],
    ids=str,
)
def test_four_of_five_comparisons_find_what_another_one_resolves(machine, machine_is, replicates):
    """The size comes from one comparison, the change is in another one, of runs of their own."""
    here = machine(**machine_is)

    def runs():
        groups = [here.replicates(replicates)] if replicates else ()
        return here.run("a"), here.run("b"), groups

    found = half = false = 0
    for number in range(REPETITIONS):
        row = number % here.rows
        size = compared(*runs()[:2], groups=runs()[2]).rows[row].counts.resolution
        a, b, groups = runs()
        told = verdicts(compared(a, slowed(b, row, size), groups=groups))
        found += told.pop(row) == "SLOWER"
        false += any(one in CALLED for one in told)
        half += verdicts(compared(a, slowed(b, row, size**0.4), groups=groups))[row] == "SLOWER"
    # Of what is found in 80 of 100, 44 of 60 are found in 9 of 10 cases.
    assert found >= 44
    assert half < found / 2
    assert false <= FALSE * REPETITIONS


def test_rows_of_one_visit_without_replicates_cannot_be_told(machine):
    found = compared(machine(visits=1).run("a"), machine(visits=1).run("b", {4: 3.0}))
    assert set(verdicts(found)) == {"UNCLEAR"}
    assert all("replicate" in row.counts.reason for row in found.rows)
    assert all(row.counts.resolution is None for row in found.rows)
    assert found.geomean is None


def test_all_rows_slower_is_told_where_replicates_say_that_the_machine_is_steadier(machine):
    slow = dict.fromkeys(range(11), 1.1)
    steady = machine(run_sd=0.005)
    told = [compared(steady.run("a"), steady.run("b", slow), groups=[steady.replicates(6)])]
    assert told[0].drift.reading == "change"
    assert set(verdicts(told[0])) == {"SLOWER"}
    # On a machine whose hours differ by as much nobody can tell, and it is said.
    found = compared(machine(run_sd=0).run("a"), machine(run_sd=0).run("b", slow))
    assert found.drift.reading == "either"
    assert found.drift.ratio == pytest.approx(1.1, rel=0.02)
    assert set(verdicts(found)) == {"UNCLEAR"}


def test_what_all_rows_have_in_common_is_taken_off_and_said(machine):
    here = machine(run_sd=0.0, visit_sd=0.001)
    found = compared(here.run("a"), here.run("b", dict.fromkeys(range(11), 1.04) | {3: 1.15}))
    assert found.drift.reading == "machine"
    assert found.drift.ratio == pytest.approx(1.04, rel=0.005)
    assert verdicts(found) == ["SLOWER" if number == 3 else "SAME" for number in range(11)]
    assert found.rows[0].counts.ratio == pytest.approx(1.0, abs=0.005)
    assert found.geomean.verdict == "UNCLEAR"


def test_twice_as_slow_altogether_is_no_drift(machine):
    here = machine(run_sd=0.0, visit_sd=0.001)
    found = compared(here.run("a"), here.run("b", dict.fromkeys(range(11), 2.0)))
    assert found.drift.reading == "change"
    assert set(verdicts(found)) == {"SLOWER"}
    assert found.geomean.verdict == "SLOWER"


def test_an_unchanged_row_among_many_changed_ones_is_not_called(machine):
    here = machine(run_sd=0.0, visit_sd=0.001)
    slow = dict.fromkeys(range(1, 11), 1.12)
    assert verdicts(compared(here.run("a"), here.run("b", slow)))[0] == "UNCLEAR"


def test_a_row_that_became_faster_is_found_too(machine):
    here = machine(run_sd=0.0)
    found = compared(here.run("a"), here.run("b", {0: 0.5}))
    assert verdicts(found)[0] == "FASTER"
    assert found.slower(0.03) == []


@pytest.mark.parametrize("where", ["a", "b"])
def test_a_contended_row_has_no_verdict(six_visits, side, where):
    sides = {"a": [six_visits("net/conv", 10e-3)], "b": [six_visits("net/conv", 50e-3)]}
    sides[where] = [one._replace(contended=1) for one in sides[where]]
    (found,) = compared(side("a", sides["a"]), side("b", sides["b"])).rows
    assert found.verdict == "UNCLEAR"
    assert "other work" in found.counts.reason
    assert found.counts.resolution is None


def test_disturbed_rows_do_not_tell_what_all_have_in_common(machine):
    here = machine(run_sd=0.0, visit_sd=0.001)
    a, b = here.run("a"), here.run("b", dict.fromkeys(range(7), 1.6))
    rows = [one._replace(contended=1) if number < 7 else one for number, one in enumerate(b.rows)]
    found = compared(a, dataclasses.replace(b, rows=rows))
    assert found.drift is None  # four are left
    assert set(verdicts(found)) == {"UNCLEAR"}


def test_the_scatter_of_disturbed_rows_is_not_that_of_the_others(machine):
    steady, wild = (machine(run_sd=0.0, visit_sd=sd, rows=12) for sd in (0.002, 0.2))

    def run():
        rows = [
            one._replace(contended=int(number >= 5))
            for number, one in enumerate([*steady.run().rows[:5], *wild.run().rows[5:]])
        ]
        return dataclasses.replace(steady.run(), rows=rows)

    found = compared(run(), run())
    assert all(row.counts.resolution < 1.1 for row in found.rows[:5])


def test_replicates_of_rows_under_two_names_count_once(machine):
    here = machine(run_sd=0.0, rows=6)
    a, b, other = here.run("a"), here.run("b"), here.run("c")
    b, other = (
        dataclasses.replace(one, rows=[row._replace(threads=1) for row in one.rows])
        for one in (b, other)
    )
    both = [{key(row): row.median for row in (*here.run().rows, *other.rows)} for _ in range(3)]
    assert compared(a, b, groups=[both]).replicates == 3


def test_visits_are_advised_only_where_they_decide(machine):
    def advice(rows):
        here = machine(run_sd=0.0, visit_sd=0.01, rows=rows)
        found = compared(here.run("a"), here.run("b"))
        return " ".join(what_would_decide(found, 0.03))

    assert "--visits" in advice(11)
    # Of three rows nothing tells what the runs have in common: no visit does.
    assert "replicates" in advice(3)
    assert "--visits" not in advice(3)


def test_a_check_is_advised_what_it_can_do(machine):
    def advice(kind):
        here = machine(run_sd=0.0, visit_sd=0.01)
        a, b = (
            dataclasses.replace(one, rows=[row._replace(kind=kind) for row in one.rows])
            for one in (here.run("a"), here.run("b"))
        )
        return " ".join(what_would_decide(compared(a, b), 0.03))

    assert "--laps" in advice("check native")
    assert "--visits" in advice("step")
    for kind in ("check native", "step", "estimate"):
        assert "--interleave" not in advice(kind)
        assert "replicates" in advice(kind)


@pytest.mark.parametrize(
    ("visit_sd", "factor", "threshold", "slower", "undecided"),
    [
        (0.004, 1.2, 0.03, True, False),  # slower beyond doubt
        (0.004, 1.0, 0.1, False, False),  # a change of 10 % would have been found
        (0.03, 1.0, 0.03, False, True),  # one of 3 % would not
        (0.03, 0.5, 0.03, False, False),  # faster beyond doubt
        (0.004, 1.0, 0.0, False, False),  # what is within the margin is no change
    ],
)
def test_a_gate_knows_what_it_cannot_tell(machine, visit_sd, factor, threshold, slower, undecided):
    here = machine(run_sd=0.002, visit_sd=visit_sd)
    found = compared(here.run("a"), here.run("b", {4: factor}))
    row = found.rows[4]
    assert (row in found.slower(threshold)) is slower
    assert (row in found.undecided(threshold)) is undecided


def test_a_gate_does_not_pass_what_all_rows_may_have_lost(machine):
    here = machine(run_sd=0.0, visit_sd=0.001)
    found = compared(here.run("a"), here.run("b", dict.fromkeys(range(11), 1.04)))
    assert set(verdicts(found)) == {"SAME"}
    assert len(what_would_decide(found, 0.03)) == 1
    assert what_would_decide(found, 0.05) == []


def test_where_only_the_clock_differs_cycles_are_judged(machine, at_clock):
    here = machine(run_sd=0.0, visit_sd=0.001)
    a, b = here.run("a"), here.run("b", {2: 1.5})
    # A clock of half the speed: twice the time, the same cycles; one row needs 50 % more of them.
    found = compared(a, at_clock(b, 2.0, clock=0.5))
    assert found.in_cycles
    assert verdicts(found) == ["SLOWER" if number == 2 else "SAME" for number in range(11)]
    assert {row.time.verdict for row in found.rows} == {"SLOWER"}
    assert found.main_geomean is found.geomean_cycles
    assert any(one.what == "clock" for one in found.differences)


def slowed_clock(side, waiting, at_clock, factor=0.5, slow=1.0):
    """A run at another clock: rows in ``waiting`` take as long as before, times ``slow``."""
    fast, same = at_clock(side, 1 / factor, factor).rows, at_clock(side, slow, factor).rows
    rows = [same[number] if number in waiting else fast[number] for number in range(len(fast))]
    return dataclasses.replace(side, rows=rows)


@pytest.mark.parametrize("changes", [{"bytes": 1e9}, {"flops_executed": None, "flops": None}])
def test_what_waits_for_memory_is_not_faster_at_a_slower_clock(machine, at_clock, changes):
    here = machine(run_sd=0.0, visit_sd=0.001)
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
    found = compared(a, slowed_clock(b, waiting, at_clock))
    assert found.in_cycles
    assert found.rows[2].cycles.ratio == pytest.approx(0.5, rel=0.01)
    assert [verdicts(found)[number] for number in waiting] == ["UNCLEAR"] * 3
    assert "time and cycles" in found.rows[2].counts.reason
    # What is slower in both is slower, whatever bounds it.
    found = compared(a, slowed_clock(b, waiting, at_clock, slow=4.0))
    assert [verdicts(found)[number] for number in waiting] == ["SLOWER"] * 3


def test_nor_is_a_run_that_only_waits(machine, at_clock):
    here = machine(run_sd=0.0, visit_sd=0.001)
    a, b = (
        dataclasses.replace(one, rows=[row._replace(bytes=1e9) for row in one.rows])
        for one in (here.run("a"), here.run("b"))
    )
    found = compared(a, slowed_clock(b, range(11), at_clock, factor=0.4))
    assert set(verdicts(found)) == {"UNCLEAR"}
    assert found.main_geomean.verdict == "UNCLEAR"


def test_without_clocks_there_are_no_cycles(six_visits, side):
    one = six_visits("net/conv", 10e-3)
    a, b = side("a", [one._replace(clock_hz=None)]), side("b", [one])
    found = compared(a, b)
    assert found.rows[0].cycles is None
    assert found.geomean_cycles is None
    assert not found.in_cycles


def test_another_environment_keeps_the_common_part(machine, side):
    here = machine(run_sd=0.0, visit_sd=0.001)
    a, b = here.run("a"), here.run("b")
    b = side("b", b.rows, environment={"packages": {"numpy": "3.0"}})
    found = compared(a, b)
    assert found.drift is None
    assert any("numpy" in one.text for one in found.differences)


def test_a_margin_may_be_asked_for(machine):
    here = machine(run_sd=0.0, visit_sd=0.001)
    found = compared(here.run("a"), here.run("b", {3: 1.45}), Settings(margin=0.5))
    assert set(verdicts(found)) == {"SAME"}
    found = compared(here.run("a"), here.run("b", {3: 1.55}), Settings(margin=0.5))
    assert verdicts(found).count("SAME") == 10


@pytest.mark.deep
def test_fifty_thousand_rows_are_compared_as_arrays(machine):
    here = machine(rows=50_000)
    found = compared(here.run("a"), here.run("b", {7: 3.0}))
    assert verdicts(found).count("SLOWER") == 1
    assert found.rows[7].verdict == "SLOWER"

"""Simulated runs: false verdicts are counted, and what has really changed is found."""

import dataclasses
import math

import pytest

from pydlbench.compare.comparison import MARGIN
from pydlbench.compare.rows import key, match
from pydlbench.compare.stored import MIN_RUNS, NO_REPLICATES, RUN_SD, compare
from pydlbench.report.compare import conclude, what_would_decide

REPETITIONS = 60
#: One in a hundred is promised: of sixty comparisons, more than three are wrong once in 250 times.
FALSE = 3
CALLED = {"FASTER", "SLOWER"}


def compared(a, b, margin=MARGIN, groups=NO_REPLICATES):
    return compare(a, b, match(a, b), margin, groups)


def verdicts(comparison):
    return [row.verdict for row in comparison.rows]


@pytest.mark.parametrize(
    ("machine_is", "runs"),
    [
        ({}, 0),
        ({"run_sd": 0.02, "row_sd": 0.02}, 0),
        ({"run_sd": 0.1}, 8),
        ({"run_sd": 0.0, "row_sd": 0.03}, MIN_RUNS),
        ({"run_sd": 0.02, "rows": 40}, MIN_RUNS),
        ({"run_sd": 0.1, "rows": 1}, 20),
    ],
    ids=str,
)
def test_runs_of_the_same_code_are_not_called_different(machine, machine_is, runs):
    here = machine(**machine_is)
    false = 0
    for _ in range(REPETITIONS):
        groups = [here.replicates(runs)]
        comparison = compared(here.run("a"), here.run("b"), groups=groups)
        false += not CALLED.isdisjoint(verdicts(comparison))
        assert all(row.estimate.resolution >= 1.02 for row in comparison.rows)
    assert false <= FALSE


@pytest.mark.parametrize("runs", [MIN_RUNS, 6, 12])
def test_nine_of_ten_prediction_intervals_hold_for_the_next_pair_of_runs(machine, runs):
    """The interval around no change, as wide as the row's, has the ratio of two other runs."""
    here = machine(run_sd=0.06, row_sd=0.03, rows=12)
    inside = 0
    for _ in range(200):
        (row, *_) = compared(here.run("a"), here.run("b"), groups=[here.replicates(runs)]).rows
        reach = row.estimate.ci_high / row.estimate.ratio
        again = compared(here.run("a"), here.run("b")).rows[0].estimate.ratio
        inside += 1 / reach <= again <= reach
    assert 0.86 <= inside / 200 <= 0.97


@pytest.mark.parametrize(
    ("machine_is", "factor", "runs", "least"),
    [
        ({}, 1.5, 0, 0.95),
        ({"run_sd": 0.005, "row_sd": 0.004}, 1.1, 8, 0.9),
        ({"run_sd": 0.02}, 1.3, 12, 0.9),
    ],
    ids=str,
)
def test_a_slower_row_is_found_and_no_other(machine, machine_is, factor, runs, least):
    here = machine(**machine_is)
    found = false = 0
    for _ in range(REPETITIONS):
        groups = [here.replicates(runs)]
        told = verdicts(compared(here.run("a"), here.run("b", {4: factor}), groups=groups))
        found += told.pop(4) == "SLOWER"
        false += not CALLED.isdisjoint(told)
    assert found >= least * REPETITIONS
    assert false <= FALSE


def test_a_change_beyond_what_a_row_resolves_is_told_and_a_smaller_one_is_not(machine):
    here = machine(run_sd=0.0, row_sd=0.0)
    a, b = here.run("a"), here.run("b")
    resolution = compared(a, b).rows[3].estimate.resolution
    assert 1.1 < resolution < 1.4
    larger, smaller = here.run("b", {3: resolution * 1.001}), here.run("b", {3: resolution * 0.999})
    assert verdicts(compared(a, larger))[3] == "SLOWER"
    assert verdicts(compared(a, smaller))[3] == "UNCLEAR"
    assert verdicts(compared(larger, a))[3] == "FASTER"


@pytest.mark.parametrize(
    ("factor", "half_width", "verdict"),
    [
        (1.0, 0.003, "SAME"),
        (1.06, 0.003, "SAME"),
        (0.94, 0.003, "SAME"),
        (1.08, 0.003, "UNCLEAR"),  # its interval holds no change, and one beyond the resolution
        (1.19, 0.003, "UNCLEAR"),
        (1.21, 0.003, "SLOWER"),
        (0.82, 0.003, "FASTER"),
        (1.0, 0.3, "UNCLEAR"),  # a change by a quarter is worth a look
    ],
)
def test_same_is_an_interval_within_the_resolution_of_the_row(
    row, side, factor, half_width, verdict
):
    """Without replicates runs differ by 5 %: a single row resolves 20 %."""
    a, b = (side(str(time), [row(median=time, half_width=half_width)]) for time in (1.0, factor))
    comparison = compared(a, b)
    assert verdicts(comparison) == [verdict]
    same = verdict == "SAME"
    assert comparison.same_within == pytest.approx(0.2 if same else MARGIN, abs=0.005)
    assert any("same within 20 %" in line for line in conclude(comparison)) is same
    # The way to learn more is one line.
    assert len(conclude(comparison)) == (1 if verdict in CALLED else 2)


@pytest.mark.parametrize(
    ("commands", "shown"),
    [
        ((("pydlbench", "layers", "--shape", "conv3"),) * 2, ["layers --shape conv3"]),
        ((("pydlbench", "layers"), ("pydlbench", "step", "mnist")), []),
        (((), ()), []),
    ],
)
def test_the_way_to_learn_more_is_the_command_that_both_runs_share(row, side, commands, shown):
    a, b = (
        dataclasses.replace(side(str(time), [row(median=time, half_width=0.003)]), command=command)
        for time, command in zip((1.0, 1.08), commands, strict=True)
    )
    lines = conclude(compared(a, b))[2:]
    assert [line.partition("pydlbench ")[2] for line in lines] == shown


def test_on_a_steady_machine_with_replicates_rows_are_the_same(machine):
    here = machine(run_sd=0.001, row_sd=0.002)
    told = [
        verdict
        for _ in range(20)
        for verdict in verdicts(
            compared(here.run("a"), here.run("b"), groups=[here.replicates(12)])
        )
    ]
    # Whatever the store says, a row is known no better than within its own run.
    assert told.count("SAME") > 0.9 * len(told)


def test_fewer_replicates_than_needed_do_not_narrow_the_interval(machine):
    here = machine(run_sd=0.001, row_sd=0.001)
    a, b = here.run("a"), here.run("b")
    without, few, enough = (
        compared(a, b, groups=[here.replicates(runs)]) for runs in (0, MIN_RUNS - 1, MIN_RUNS)
    )
    assert few.rows[0].estimate.ci_high == pytest.approx(without.rows[0].estimate.ci_high)
    assert enough.rows[0].estimate.ci_high < without.rows[0].estimate.ci_high
    assert (without.replicates, enough.replicates) == (0, MIN_RUNS)


@pytest.mark.parametrize("half_width", [0.6, 1.0])  # the latter begins at zero
def test_a_row_that_scatters_within_its_run_has_a_wide_interval(row, side, half_width):
    wide, narrow = row("net/wide", half_width=half_width), row("net/narrow")
    found = compared(side("a", [wide, narrow]), side("b", [wide, narrow]))
    reach = [one.estimate.ci_high for one in found.rows]
    assert reach[0] > 1.5 * reach[1]


def test_all_rows_slower_is_told_of_the_mean(machine):
    here = machine(run_sd=0.005)
    slow = dict.fromkeys(range(11), 1.1)
    found = compared(here.run("a"), here.run("b", slow), groups=[here.replicates(10)])
    assert found.geomean.verdict == "SLOWER"
    assert found.geomean.ratio == pytest.approx(1.1, rel=0.03)


def test_a_replicate_with_none_of_the_compared_rows_is_left_out_of_the_mean(machine):
    here = machine(run_sd=0.005)
    groups = [[*here.replicates(6), {"of no row": 1.0}]]
    found = compared(here.run("a"), here.run("b"), groups=groups)
    assert found.geomean.ci_low < found.geomean.ratio < found.geomean.ci_high


@pytest.mark.parametrize(
    ("disturbed", "slower_b", "verdict"),
    [
        ("a", 5.0, "SLOWER"),  # the time of A is an upper bound
        ("b", 0.2, "FASTER"),
        ("b", 5.0, "UNCLEAR"),
        ("a", 0.2, "UNCLEAR"),
        ("ab", 5.0, "UNCLEAR"),
        ("a", 1.01, "UNCLEAR"),  # it may as well be much slower
    ],
)
def test_a_contended_row_has_the_verdict_that_other_work_cannot_have_made(
    row, side, disturbed, slower_b, verdict
):
    a, b = (
        side(name, [row(median=seconds, contended=name in disturbed)])
        for name, seconds in (("a", 10e-3), ("b", slower_b * 10e-3))
    )
    comparison = compared(a, b)
    (only,) = comparison.rows
    assert only.verdict == verdict
    assert ("other work" in (only.estimate.reason or "")) is (verdict == "UNCLEAR")
    assert (only.estimate.resolution is None) is (verdict == "UNCLEAR")
    assert comparison.geomean is None


def test_disturbed_rows_are_to_be_measured_again_in_the_conclusion_and_for_a_gate(row, side):
    comparison = compared(side("a", [row()]), side("b", [row(median=50e-3, contended=1)]))
    (advice,) = what_would_decide(comparison, 0.03)
    assert "when nothing else runs" in advice
    assert "it is unclear which is faster: B takes 5.000x A's time" in conclude(comparison)[0]
    assert "50.0 ms against 10.0 ms" in conclude(comparison)[0]
    assert "when nothing else runs" in conclude(comparison)[1]
    assert "more runs" not in advice + conclude(comparison)[1]


def other_backend(side, factor=1.0):
    """The same rows, computed by torch; times are longer by a factor."""
    rows = [row._replace(backend="torch", median=factor * row.median) for row in side.rows]
    return dataclasses.replace(side, rows=rows)


def seconds(sides):
    return [{key(row): row.median for row in side.rows} for side in sides]


def test_replicates_of_each_side_tell_of_its_own_rows(machine):
    """Torch takes three times as long: that is the ratio, and no scatter between runs."""
    here = machine(run_sd=0.01, row_sd=0.01)
    groups = [
        seconds(here.run() for _ in range(8)),
        seconds(other_backend(here.run(), 3.0) for _ in range(8)),
    ]
    found = compared(here.run("a"), other_backend(here.run("b"), 3.0), groups=groups)
    assert found.matching.axis == "backend"
    assert (found.replicates, found.assumed_sd) == (16, None)
    assert set(verdicts(found)) == {"SLOWER"}
    assert all(row.estimate.resolution < 1.2 for row in found.rows)


@pytest.mark.parametrize(("sd", "wide"), [(0.01, False), (0.2, True)])
def test_the_scatter_of_a_ratio_has_that_of_both_sides(machine, sd, wide):
    steady, other = machine(run_sd=0.01, row_sd=0.0), machine(run_sd=sd, row_sd=0.0)
    groups = [
        seconds(steady.run() for _ in range(8)),
        seconds(other_backend(other.run()) for _ in range(8)),
    ]
    found = compared(steady.run("a"), other_backend(other.run("b")), groups=groups)
    estimates = (found.rows[0].estimate, found.geomean)
    assert [each.ci_high / each.ratio > 1.2 for each in estimates] == [wide, wide]


def test_a_side_without_replicates_has_the_assumed_scatter(machine):
    here = machine(run_sd=0.001, row_sd=0.001)
    groups = [seconds(here.run() for _ in range(8)), seconds([other_backend(here.run())])]
    found = compared(here.run("a"), other_backend(here.run("b")), groups=groups)
    assert (found.assumed_sd, found.replicates) == (RUN_SD, 8)
    reach = math.log(found.rows[0].estimate.ci_high / found.rows[0].estimate.ratio)
    assert reach == pytest.approx(1.65 * RUN_SD, rel=0.02)


def test_the_mean_of_rows_is_known_no_better_than_the_rows_are(row, side):
    """Of a single row the mean is the row; of four alike its own error is half as large."""
    rows = [row(f"net/wide{number}", half_width=0.6) for number in range(4)]
    only = compared(side("a", rows[:1]), side("b", rows[:1]))
    every = compared(side("a", rows), side("b", rows))
    reach = math.log(only.geomean.ci_high)
    assert reach == pytest.approx(math.log(only.rows[0].estimate.ci_high))
    assert math.log(every.geomean.ci_high) == pytest.approx(reach / 2)


def test_what_would_tell_more_depends_on_what_differs(machine):
    here = machine(run_sd=0.0)
    a, b = here.run("a"), here.run("b")
    advice = " ".join(what_would_decide(compared(a, b), 0.03))
    assert "--interleave" not in advice  # both sides would be the same kernels
    assert "runs" in advice
    other = dataclasses.replace(b, rows=[row._replace(backend="torch") for row in b.rows])
    assert "--interleave" in " ".join(what_would_decide(compared(a, other), 0.03))


@pytest.mark.parametrize(
    ("sd", "factor", "threshold", "slower", "undecided"),
    [
        (0.002, 1.2, 0.03, True, False),  # slower beyond doubt
        (0.002, 1.0, 0.1, False, False),  # a change of 10 % would have been told
        (0.03, 1.0, 0.03, False, True),  # one of 3 % would not
        (0.03, 0.5, 0.03, False, False),  # faster beyond doubt
        (0.001, 1.0, 0.0, False, False),  # what is within the margin is no change
    ],
)
def test_a_gate_knows_what_it_cannot_tell(machine, sd, factor, threshold, slower, undecided):
    here = machine(run_sd=sd, row_sd=sd)
    found = compared(here.run("a"), here.run("b", {4: factor}), groups=[here.replicates(12)])
    row = found.rows[4]
    assert (row in found.slower(threshold)) is slower
    assert (row in found.undecided(threshold)) is undecided


def test_cycles_stand_beside_the_time_where_both_clocks_are_known(machine, at_clock):
    here = machine(run_sd=0.0, row_sd=0.0)
    a = here.run("a")
    found = compared(a, at_clock(here.run("b"), 2.0, clock=0.5))
    assert [row.estimate.cycles for row in found.rows] == pytest.approx([1.0] * 11)
    assert set(verdicts(found)) == {"SLOWER"}
    assert any(one.what == "clock" for one in found.differences)
    unknown = dataclasses.replace(a, rows=[row._replace(clock_hz=None) for row in a.rows])
    assert {row.estimate.cycles for row in compared(unknown, a).rows} == {None}


def test_a_margin_may_be_asked_for(machine):
    here = machine(run_sd=0.0, row_sd=0.001)
    found = compared(here.run("a"), here.run("b", {3: 1.25}), 0.5)
    assert set(verdicts(found)) == {"SAME"}
    found = compared(here.run("a"), here.run("b", {3: 1.55}), 0.5)
    assert verdicts(found).count("SAME") == 10
    assert found.rows[3].verdict == "SLOWER"


@pytest.mark.deep
def test_fifty_thousand_rows_are_compared_as_arrays(machine):
    here = machine(rows=50_000)
    found = compared(here.run("a"), here.run("b", {7: 3.0}))
    assert verdicts(found).count("SLOWER") == 1
    assert found.rows[7].verdict == "SLOWER"

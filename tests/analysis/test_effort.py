"""How sure a sum of rows is, and which rows are visited again, from invented visits."""

import math

import msgspec
import pytest
from invented_evidence import row

from pydlbench.analysis.effort import half_width_s, sharing
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.statistics import median_interval

LARGE, SMALL = (KernelSpec(layer=build_layer("gemm", m=4, k=16, n=n)) for n in (64, 8))
COLD = msgspec.structs.replace(LARGE, cache="all-cold")


def visited(case, *seconds, bound="memory"):
    made = row(case, sorted(seconds)[len(seconds) // 2], roof=min(seconds) / 2)
    own = median_interval(seconds)
    ends = {} if own is None else {"ci_low": own.low, "ci_high": own.high}
    time = msgspec.structs.replace(made.time, repetitions=len(seconds), visit_s=seconds, **ends)
    roofline = msgspec.structs.replace(made.roofline, bound=bound)
    return msgspec.structs.replace(made, time=time, roofline=roofline)


def half_of(*seconds):
    """Return half of the interval of a median."""
    interval = median_interval(seconds)
    return (interval.high - interval.low) / 2


def test_drift_that_all_rows_share_is_in_the_interval_of_their_sum():
    drift = (1.0, 1.02, 1.04, 1.06, 1.08, 1.1)
    cases = [KernelSpec(layer=build_layer("gemm", m=4, k=16, n=n)) for n in range(1, 101)]
    rows = {case: visited(case, *drift) for case in cases}
    width = half_width_s(dict.fromkeys(cases, 1.0), rows)
    assert width == pytest.approx(100 * 0.05)
    # In an order of its own each row's errors are its own, and cancel.
    turned = {case: visited(case, *drift[i % 6 :], *drift[: i % 6]) for i, case in enumerate(cases)}
    assert half_width_s(dict.fromkeys(cases, 1.0), turned) < 0.1 * width


def test_rows_with_fewer_visits_are_added_as_independent_errors():
    weights = {LARGE: 2.0, SMALL: 3.0}
    rows = {
        LARGE: visited(LARGE, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 9.0),
        SMALL: visited(SMALL, 0.1, 0.12, 0.14),
    }
    short = {**rows, LARGE: visited(LARGE, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)}
    own_s = half_of(0.1, 0.12, 0.14)
    assert half_width_s(weights, short) == pytest.approx(math.hypot(2 * 0.25, 3 * own_s))
    # The seventh visit has an interval that leaves out nothing either.
    assert half_width_s(weights, rows) == pytest.approx(math.hypot(2 * 4.0, 3 * own_s))


@pytest.mark.parametrize("drift", [(1.0, 1.1), (1.0, 1.05, 1.1)])
def test_two_or_three_rounds_have_sums_as_well_where_nobody_has_more(drift):
    specs = [KernelSpec(layer=build_layer("gemm", m=4, k=16, n=n)) for n in range(1, 101)]
    rows = {spec: visited(spec, *drift) for spec in specs}
    single = {COLD: row(COLD, 3.0, width=4.0)}
    weights = {**dict.fromkeys(specs, 1.0), COLD: 2.0}
    expected = math.hypot(100 * half_of(*drift), 2 * 4.0)
    assert half_width_s(weights, {**rows, **single}) == pytest.approx(expected)


@pytest.mark.parametrize(("small_s", "early"), [(0.01, True), (0.2, False)])
def test_the_shortest_rows_have_one_visit_and_those_that_hardly_deviate_three(small_s, early):
    reason = sharing({LARGE: 1.0, SMALL: 1.0}, {})
    few = {LARGE: visited(LARGE, 1.0), SMALL: visited(SMALL, small_s)}
    assert (reason([SMALL], few) is not None) is early
    assert reason([SMALL], {SMALL: few[SMALL]}) is None  # what the sum is, is not known yet
    small = visited(SMALL, small_s, small_s + 0.01, small_s)
    rows = {LARGE: visited(LARGE, 1.0, 1.2, 1.1), SMALL: small}
    assert reason([SMALL], rows) is not None
    assert reason([LARGE], rows) is None
    # A thousand of them do.
    often = sharing({LARGE: 1.0, SMALL: 1000.0}, {})
    assert often([SMALL], rows) is None
    assert often([LARGE], rows) is not None


def test_disturbed_rows_and_rows_without_a_time_are_visited_on():
    reason = sharing({LARGE: 1.0, SMALL: 1.0}, {})
    rows = {LARGE: visited(LARGE, 1.0, 1.2, 1.1), SMALL: visited(SMALL, 0.01, 0.02, 0.01)}
    rows[SMALL] = msgspec.structs.replace(rows[SMALL], contended=True)
    assert reason([SMALL], rows) is None
    assert reason([COLD], rows) is None


@pytest.mark.parametrize(
    ("bound", "cold_s", "again"),
    [("compute", 1.01, False), ("compute", 1.05, True), ("memory", 1.01, True)],
)
def test_cold_caches_are_visited_once_where_they_cannot_matter(bound, cold_s, again):
    reason = sharing({LARGE: 0.5, COLD: 0.5}, {COLD: LARGE})
    rows = {LARGE: visited(LARGE, 1.0, bound=bound), COLD: visited(COLD, cold_s)}
    assert (reason([COLD], rows) is None) is again
    assert reason([LARGE], rows) is None

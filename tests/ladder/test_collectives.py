"""The line through a collective's times: what was planted is found, with what it is wrong by."""

from __future__ import annotations

import json

import msgspec
import pytest

from pydlbench.ladder.collectives import fits
from pydlbench.records.collectives import (
    CollectivePlace,
    CollectiveRow,
    CollectiveSpec,
    CollectivesResult,
)
from pydlbench.records.measurement import TimeSummary
from pydlbench.report.collectives import collectives_report
from pydlbench.report.json import dump
from pydlbench.report.text import as_text
from pydlbench.timing.statistics import median

PLACE = CollectivePlace(ranks=2)
SIZES = [1 << power for power in range(10, 27, 4)]


def row(size, visits, operation="all-reduce"):
    """Return a row of these visits."""
    time = TimeSummary(
        median=median(visits),
        ci_low=None,
        ci_high=None,
        q1=min(visits),
        q3=max(visits),
        min=min(visits),
        n=len(visits),
        visit_s=tuple(visits),
    )
    spec = CollectiveSpec(operation=operation, bytes=size)
    rate = size / time.median / 1e9
    return CollectiveRow(
        case=spec, place=PLACE, time=time, algorithm_gbps=rate, bus_gbps=rate, verified=True
    )


def test_a_planted_line_is_found_without_an_error():
    (found,) = fits([row(size, [2e-5 + size / 4e9]) for size in SIZES])
    assert found.alpha_s == pytest.approx(2e-5)
    assert found.bytes_per_s == pytest.approx(4e9)
    assert found.worst < 1e-9
    assert found.alpha_low is None


def test_visits_that_differ_give_intervals_that_hold_what_was_planted():
    factors = [0.9, 0.95, 1.0, 1.0, 1.05, 1.1]
    rows = [row(size, [(2e-5 + size / 4e9) * one for one in factors]) for size in SIZES]
    (found,) = fits(rows)
    assert 0.9 * 2e-5 <= found.alpha_low < 2e-5 < found.alpha_high <= 1.1 * 2e-5
    assert found.bytes_low < 4e9 < found.bytes_high


def test_where_the_line_does_not_hold_is_told_by_size():
    """Beyond a cache, say, each byte takes twice as long."""
    (found,) = fits([row(size, [1e-5 + size / (4e9 if size < 2e6 else 2e9)]) for size in SIZES])
    assert found.worst > 0.2
    assert set(found.errors) == set(SIZES)
    assert found.error_at(SIZES[-1]) == abs(found.errors[SIZES[-1]])
    between = (SIZES[1] + SIZES[2]) / 2
    assert found.error_at(between) == max(abs(found.errors[one]) for one in SIZES[1:3])


def test_neither_latency_nor_bandwidth_is_negative():
    (curved,) = fits([row(size, [(size / 4e9) ** 1.5]) for size in SIZES])
    assert curved.alpha_s == 0
    assert curved.bytes_per_s > 0
    (falling,) = fits([row(size, [1e-3 / size]) for size in SIZES])
    assert falling.alpha_s > 0
    assert falling.bytes_per_s is None
    assert json.loads(dump({"kind": "collectives", "fits": [falling.to_dict()]}))


def test_a_bandwidth_that_is_not_bounded_from_above_is_at_least_so_much():
    """In half of the visits times grow with the size, in the others they do not."""
    slopes = [0.0, 0.0, 0.0, 1e-10, 1e-10, 1e-10]
    (found,) = fits([row(size, [1e-3 + size * one for one in slopes]) for size in SIZES])
    assert found.bytes_low == pytest.approx(1e10)
    assert found.bytes_high is None
    assert found.alpha_low is not None


@pytest.mark.parametrize(
    ("rates", "text"),
    [
        ((4e9, 2e9, 5e9), "t = 20.0 us (10.0 us .. 30.0 us) + S / 4 GB/s (2 .. 5), "),
        ((4e9, 2e9, None), " + S / 4 GB/s (at least 2), "),
        ((None, 2e9, None), " no bandwidth can be told (at least 2), "),
        ((None, None, None), " no bandwidth can be told, "),
    ],
)
def test_a_line_says_what_is_known_of_its_bandwidth(rates, text):
    rows = [row(size, [2e-5]) for size in SIZES]
    middle, low, high = rates
    alphas = {"alpha_s": 2e-5, "alpha_low": 1e-5, "alpha_high": 3e-5}
    fit = msgspec.structs.replace(
        *fits(rows), bytes_per_s=middle, bytes_low=low, bytes_high=high, **alphas
    )
    said = as_text(collectives_report(CollectivesResult(rows=tuple(rows)), [fit]))
    assert text in said
    assert "inf" not in said
    assert "nan" not in said


def test_operations_have_a_line_each_from_three_sizes_on():
    rows = [row(size, [1e-5 + size / 4e9], "broadcast") for size in SIZES]
    rows += [row(size, [1e-5], "all-gather") for size in SIZES[:2]]
    assert [one.operation for one in fits(rows)] == ["broadcast"]

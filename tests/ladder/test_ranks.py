"""Data-parallel forecasts: buckets as PyTorch fills them, and what of their messages is hidden."""

from __future__ import annotations

import msgspec
import pytest
from check_records import forecast_of

from pydlbench.errors import UsageError
from pydlbench.ladder.ranks import Bucket, Link, buckets_of, makespan, ranked, stored_links
from pydlbench.ladder.rows import Rows
from pydlbench.records.collectives import (
    CollectiveFit,
    CollectivePlace,
    CollectiveRow,
    CollectiveSpec,
    CollectivesResult,
    OverlapRow,
)
from pydlbench.records.forecast import OperatorTime, Place
from pydlbench.records.measurement import TimeSummary
from pydlbench.records.operator import RecordedCall
from pydlbench.steps.operations import OperatorsFacts
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

MB = 1 << 20


def link(ranks=2, alpha=0.0, rate=1e9, overlap=None, error=0.0):
    """Return a link of so many seconds and bytes per second."""
    fit = CollectiveFit(
        operation="all-reduce",
        ranks=ranks,
        sizes=3,
        alpha_s=alpha,
        alpha_low=None,
        alpha_high=None,
        bytes_per_s=rate,
        bytes_low=None,
        bytes_high=None,
        errors={1: error, 1 << 40: error},
    )
    return Link(ranks=ranks, reduce=fit, broadcast=None, overlap=overlap, threads=1, created_utc="")


def step(gradients, seconds=0.4):
    """Return a forecast of a step of four equal calls, its facts, and their rows."""
    place = Place(framework="torch", mode="eager")
    calls = [
        RecordedCall.of(
            [("a",)], signature=f"op{n}()", operator="op", direction="backward", bytes=1
        )
        for n in range(4)
    ]
    times = {
        one.signature: OperatorTime(
            signature=one.signature,
            operator="op",
            place=place,
            created_utc="",
            visits_s=(0.1,),
        )
        for one in calls
    }
    facts = OperatorsFacts(calls=tuple(calls), order=(0, 1, 2, 3), gradients=gradients)
    record = msgspec.structs.replace(
        forecast_of("mnist", seconds), calibration=None, ci_low=seconds, ci_high=seconds
    )
    return record, facts, Rows(times=times)


def test_a_bucket_is_closed_by_the_gradient_that_fills_it():
    ready = [(1, MB // 2), (2, MB), (3, 30 * MB), (4, 10 * MB), (5, 14 * MB), (6, 2 * MB)]
    assert buckets_of(ready) == [
        Bucket(2, MB + MB // 2),
        Bucket(3, 30 * MB),
        Bucket(6, 26 * MB),
    ]
    assert buckets_of([(7, 10)]) == [Bucket(7, 10)]
    assert buckets_of([]) == []


@pytest.mark.parametrize(
    ("parts", "messages", "compute", "transfer", "seconds"),
    [
        ([1.0, 2.0], [0.5], 1, 1, 3.0),  # hidden
        ([1.0, 2.0], [3.0], 1, 1, 4.0),  # 1 s of it exposed
        ([1.0, 0.0], [3.0], 1, 1, 4.0),  # all of it
        ([1.0, 1.0, 1.0], [1.5, 1.5], 1, 1, 4.0),  # one at a time
        ([1.0, 2.0], [0.5], 0.5, 1, 3.25),  # half as fast beside it
        ([1.0, 1.0], [1.0], 1, 0.5, 2.5),
        ([1.0, 1.0], [2.0], 0.5, 0.5, 4.0),
    ],
)
def test_what_is_computed_hides_messages(parts, messages, compute, transfer, seconds):
    assert makespan(parts, messages, compute, transfer) == pytest.approx(seconds)


def test_a_step_is_longer_by_what_is_not_hidden():
    # Two buckets: 0.2 s at half of the step, 0.3 s at its end.
    gradients = ((2, 200_000_000), (4, 300_000_000))
    (found,) = ranked([2], *step(gradients), {2: link()})
    assert found.buckets == (200_000_000, 300_000_000)
    assert found.communication_s == pytest.approx(0.5)
    assert found.seconds == pytest.approx(0.4 + 0.3)
    assert found.exposed_s == pytest.approx(0.3)
    assert found.hidden == pytest.approx(0.4)
    assert found.efficiency == pytest.approx(0.4 / 0.7)
    assert found.ci_low == found.ci_high == found.seconds


def test_an_error_of_the_line_widens_the_range():
    (found,) = ranked([2], *step(((4, 300_000_000),)), {2: link(error=0.2)})
    assert found.ci_low == pytest.approx(0.4 + 0.8 * 0.3)
    assert found.ci_high == pytest.approx(0.4 + 1.2 * 0.3)


def test_copies_into_buckets_and_slower_cores_are_counted():
    beside = OverlapRow(
        bytes=MB,
        place=CollectivePlace(ranks=2),
        compute=(0.5,),
        transfer=(1.0,),
        copy_s_per_byte=(1e-9,),
    )
    (found,) = ranked([2], *step(((2, 100_000_000),)), {2: link(overlap=beside)})
    # 0.2 and half of the copies; 0.1 beside which half as much is done; the rest; the other half.
    assert found.seconds == pytest.approx(0.2 + 0.05 + 0.1 + 0.0 + 0.2 + 0.05)


def test_more_ranks_than_were_measured_keep_the_bandwidth_of_the_bus():
    links = {2: link(alpha=1e-3), 4: link(4, alpha=2e-3)}
    found = ranked([2, 3, 8], *step(((4, 300_000_000),)), links)
    assert [one.measured_at for one in found] == [2, 2, 4]
    assert found[0].exposed_s == pytest.approx(0.301)
    assert found[1].exposed_s == pytest.approx(0.002 + 0.3 * (4 / 3))
    assert found[2].exposed_s == pytest.approx(0.002 * 7 / 3 + 0.3 * (14 / 8) / (6 / 4))


def test_a_step_without_gradients_shares_nothing():
    with pytest.raises(UsageError, match="no gradients"):
        ranked([2], *step(()), {2: link()})


def test_the_newest_links_of_a_machine_are_taken(run_record):
    def result(processor, seconds, ranks=2):
        place = CollectivePlace(ranks=ranks, processor=processor)
        rows = []
        for size in (MB, 4 * MB, 16 * MB):
            time = seconds + size / 1e9
            summary = TimeSummary(
                median=time, ci_low=None, ci_high=None, q1=time, q3=time, min=time, n=1
            )
            spec = CollectiveSpec(operation="all-reduce", bytes=size)
            rows.append(CollectiveRow(case=spec, place=place, time=summary))
        return CollectivesResult(rows=tuple(rows))

    with Store.open() as store:
        for number, found in enumerate([result("a", 1.0), result("a", 2.0), result("b", 3.0)]):
            run = msgspec.structs.replace(
                run_record, id=f"r{number}", created_utc=f"2026-01-0{number + 1}T00:00:00+00:00"
            )
            store.begin(run, "collectives")
            store.add(run.id, Entry("collectives", found.to_dict(), key="k"))
            store.finish(run, "done")
        assert stored_links(store, "a", "cpu")[2].reduce.alpha_s == pytest.approx(2.0)
        with pytest.raises(UsageError, match="nearest: pydlbench collectives --ranks 2"):
            stored_links(store, "c", "cpu")
        with pytest.raises(UsageError, match="--device cuda"):
            stored_links(store, "a", "cuda:0")
    with pytest.raises(UsageError, match="pydlbench collectives"):
        stored_links(None, "a", "cpu")

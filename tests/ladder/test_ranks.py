"""Data-parallel forecasts: buckets as PyTorch fills them, and what of their messages is hidden."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from check_records import forecast_of

from pydlbench.errors import UsageError
from pydlbench.ladder.ranks import (
    Bucket,
    Link,
    buckets_of,
    fitting_links,
    makespan,
    ranked,
    stored_links,
)
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
    return Link(ranks=ranks, reduce=fit, broadcast=None, overlap=overlap, created_utc="2026")


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
    assert {(one.measured_utc, one.hosts) for one in found} == {("2026", 1)}
    assert found[0].exposed_s == pytest.approx(0.301)
    assert found[1].exposed_s == pytest.approx(0.002 + 0.3 * (4 / 3))
    assert found[2].exposed_s == pytest.approx(0.002 * 7 / 3 + 0.3 * (14 / 8) / (6 / 4))


def fit(sizes, operation="all-reduce", alpha=1e-4):
    """Return a line through these sizes."""
    errors = dict.fromkeys(sizes, 0.0)
    return msgspec.structs.replace(link(alpha=alpha).reduce, operation=operation, errors=errors)


def facts(largest, buffers=0):
    """Return a step that sends one bucket, and buffers."""
    return OperatorsFacts(calls=(), order=(), gradients=((1, largest),), buffers=buffers)


def test_a_link_is_taken_that_knows_messages_as_large_as_the_steps():
    """The newest of them, by the number of ranks; a run of small sizes hides none."""
    small, whole, older = (
        msgspec.structs.replace(fit(sizes), alpha_s=alpha)
        for sizes, alpha in (([1024, 16384], 1.0), ([MB, 16 * MB], 2.0), ([MB, 64 * MB], 3.0))
    )
    links = [dataclasses.replace(link(), reduce=one) for one in (small, whole, older)]
    links.append(dataclasses.replace(link(4), reduce=older))

    def taken(largest, buffers=0, of=links):
        found = fitting_links(of, facts(largest, buffers), "net", "measure")
        return {ranks: one.reduce.alpha_s for ranks, one in found.items()}

    assert taken(60_000) == {2: 1.0, 4: 3.0}
    assert taken(60 * MB) == {2: 2.0, 4: 3.0}
    assert taken(200 * MB) == {2: 3.0, 4: 3.0}
    with pytest.raises(UsageError, match=r"nearest: measure --sizes 1K\.\.300M"):
        taken(300 * MB)
    # Buffers are broadcast: where nobody has timed that, they would cost nothing.
    with pytest.raises(UsageError, match="all-reduce and broadcast"):
        taken(MB, buffers=1000)
    sent = [dataclasses.replace(one, broadcast=fit([MB], "broadcast")) for one in links[1:2]]
    assert taken(MB, 1000, [*links, *sent]) == {2: 2.0}
    with pytest.raises(UsageError, match="all-reduce and broadcast"):
        taken(MB, 5 * MB, sent)


def test_a_step_without_gradients_shares_nothing():
    with pytest.raises(UsageError, match="no gradients"):
        fitting_links([link()], OperatorsFacts(calls=(), order=(), gradients=()), "net", "measure")


def result(processor, alpha, stop_rule=None, **place):
    """Return a run of collectives between two ranks."""
    place = CollectivePlace(**{"ranks": 2, "threads": 2, "processor": processor} | place)
    rows = []
    for size in (MB, 4 * MB, 16 * MB):
        time = alpha + size / 1e9
        summary = TimeSummary(
            median=time, ci_low=None, ci_high=None, q1=time, q3=time, min=time, n=1
        )
        spec = CollectiveSpec(operation="all-reduce", bytes=size)
        rows.append(CollectiveRow(case=spec, place=place, time=summary))
    return CollectivesResult(rows=tuple(rows), stop_rule=stop_rule, others=alpha / 10)


def test_links_are_those_of_the_same_machine_threads_and_hosts_the_newest_first(run_record):
    results = [
        result("a", 0.1),
        result("a", 2.0),
        result("b", 3.0),
        result("a", 4.0, threads=1),
        result("a", 5.0, ranks=8, hosts=4),
        result("a", 6.0, stop_rule="interrupted"),
    ]
    with Store.open() as store:
        for number, found in enumerate(results):
            when = f"2026-01-0{number + 1}T00:00:00+00:00"
            run = msgspec.structs.replace(run_record, id=f"r{number}", created_utc=when)
            store.begin(run, "collectives")
            store.add(run.id, Entry("collectives", found.to_dict(), key="k"))
            store.finish(run, "done")

        def alphas(*where):
            return [one.reduce.alpha_s for one in stored_links(store, *where)]

        assert alphas("a", "cpu", 2) == pytest.approx([2.0, 0.1])
        assert alphas("a", "cpu", 1) == pytest.approx([4.0])
        (over,) = stored_links(store, "a", "cpu", 2, 4)
        assert (over.ranks, over.hosts) == (8, 4)
        newest, oldest = stored_links(store, "a", "cpu", 2)
        assert newest.created_utc == "2026-01-02T00:00:00+00:00"
        assert (newest.disturbed, oldest.disturbed) == (True, False)
        for where, near in (
            (("c", "cpu", 2), "pydlbench collectives --ranks 2 --threads 2$"),
            (("a", "cpu", 4), "--threads 2$"),
            (("a", "cpu", 2, 3), "torchrun --nnodes 3 .* pydlbench collectives --threads 2$"),
            (("a", "cuda:0", 0), "pydlbench collectives --ranks 2 --device cuda$"),
        ):
            with pytest.raises(UsageError, match=f"nearest: {near}"):
                stored_links(store, *where)
    with pytest.raises(UsageError, match="pydlbench collectives"):
        stored_links(None, "a", "cpu", 1)

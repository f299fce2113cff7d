"""Two stored runs: ratios of medians, with all that is known of their scatter in the intervals.

With y the logarithm of a row's ratio of medians,

    y = change + common + own,

where ``common`` is what the whole second run was faster or slower (the clock, a neighbour on the
machine) and ``own`` is what this row differs by from run to run. The variance of ``own`` is that
which the row's visits have within their runs, or that of replicates where it is larger: they count
in what hours and days do (:mod:`pydlbench.compare.scatter`). Without replicates, what rows of these
two runs differ by beyond their visits is added, as far as that can be told from changes.

``common`` is the weighted median of all rows, with five rows or more in two runs that differ in
nothing but code. How it is read follows from what whole runs of this machine differ by, see
:class:`pydlbench.compare.comparison.Drift`. Elsewhere its variance is in each row's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from pydlbench.compare.comparison import (
    SAME,
    UNCLEAR,
    ComparedRow,
    Comparison,
    Drift,
    Estimate,
    Settings,
    bounded,
)
from pydlbench.compare.environment import OTHER_CLOCK, differences
from pydlbench.compare.match import key, match
from pydlbench.compare.rows import Side, read_side
from pydlbench.compare.scatter import (
    LEAST_ROWS,
    Replicates,
    between_runs,
    is_disturbed,
    kinds_of,
    of_replicates,
    of_visits,
    visits_of,
)
from pydlbench.compare.statistics import MOST_FREEDOM, Evidence, judge, quantile
from pydlbench.store.place import machine_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.compare.match import Matching, Pair
    from pydlbench.compare.rows import Row
    from pydlbench.records.run import RunInfo
    from pydlbench.store.reader import Reader

#: What a whole run is faster or slower, one standard deviation: assumed where no replicates tell
#: it. No visit shows it, as a run is over before the hours are that its machine drifts in; without
#: any figure a slower hour would be called a slower kernel. On machines that others use, too, the
#: same code's time wanders by 5 to 20 % from hour to hour, which is taken for the range of most
#: runs; on a machine of one's own this is too much, and replicates take its place.
RUN_SD: Final = 0.05
#: FLOP per byte: in fp32, CPUs with AVX-512 have some 20 to 30 times as many FLOP/s as B/s, so that
#: memory does not bound what has more work than that for each byte.
_INTENSE: Final = 30.0
# A standard deviation of two clocks that differ by as little is known.
_LEAST_SD: Final = 1e-9
# Two runs of a machine have more in common than what is taken off unasked in one of three cases.
_OFTEN: Final = 1 / 3
NO_SCATTER: Final = "visited once, and no replicate is kept: how far it scatters is not known"
CONTENDED: Final = "other work disturbed it"
_TWO_READINGS: Final = "not the clock alone bounds it, and time and cycles say different things"
# Of a row with itself: whatever disturbed it, and however runs differ.
_ITSELF: Final = Estimate(ratio=1.0, ci_low=1.0, ci_high=1.0, verdict=SAME, p=1.0)


def compare_named(
    a: str, b: str, store: Reader | None, settings: Settings | None = None
) -> Comparison:
    """Compare two runs by their names, with the replicates that a store has of them.

    Args:
        a: the first one, as :func:`pydlbench.store.documents.load` takes it.
        b: the second one.
        store: that has them; None where there is none, and both are files.
        settings: what a verdict takes.

    Raises:
        UsageError: no such run, or nothing in one is in the other.
    """
    return compare_sides(read_side(a, store), read_side(b, store), store, settings)


def compare_sides(
    first: Side, second: Side, store: Reader | None, settings: Settings | None = None
) -> Comparison:
    """Compare two runs that were read, likewise."""
    groups = [] if store is None else replicates(store, first, second)
    return compare(first, second, match(first, second), settings, groups)


def compare(
    a: Side,
    b: Side,
    matching: Matching,
    settings: Settings | None = None,
    groups: Sequence[Sequence[Mapping[Any, float]]] = (),
) -> Comparison:
    """Compare two stored runs.

    Args:
        a: the first one.
        b: the second one.
        matching: of both.
        settings: what a verdict takes.
        groups: replicates, of :func:`replicates`.
    """
    settings = settings or Settings()
    pairs = matching.pairs
    found = differences(a, b, pairs)
    alike = matching.axis is None and not any(one.counts for one in found)
    replicated = _replicated(pairs, groups)
    variance, freedom = _scatter(pairs, replicated)
    log = np.log([pair.b.median / pair.a.median for pair in pairs])  # type: ignore[operator]  # both are timed
    clocks = _clocks(pairs)
    against = [
        CONTENDED if is_disturbed(pair) else NO_SCATTER if unknown else None
        for pair, unknown in zip(pairs, np.isnan(variance).tolist(), strict=True)
    ]
    lacking = [
        "no clock was read" if math.isnan(clock) else reason
        for clock, reason in zip(clocks.tolist(), against, strict=True)
    ]
    in_time = _read(log, variance, freedom, against, replicated, alike, settings)
    in_cycles = _read(log + clocks, variance, freedom, lacking, replicated, alike, settings)
    times, cycles = judge(in_time.evidence, settings), judge(in_cycles.evidence, settings)
    by_clock = alike and _only_clocks(clocks)
    geomean = _geomean(log, in_time, replicated, settings)
    geomean_cycles = _geomean(log + clocks, in_cycles, replicated, settings)
    if by_clock:
        bound = compute_bound([pair.a for pair in pairs]).tolist()
        cycles = list(map(_agreed, times, cycles, bound))
        if geomean is not None and geomean_cycles is not None:
            geomean_cycles = _agreed(geomean, geomean_cycles, all(bound))
    if (a.run_id, a.created_utc) == (b.run_id, b.created_utc):
        itself = [pair.a == pair.b for pair in pairs]
        times, cycles = (
            [_ITSELF if same else one for same, one in zip(itself, estimates, strict=True)]
            for estimates in (times, cycles)
        )
        if all(itself):
            geomean, geomean_cycles = _ITSELF, geomean_cycles and _ITSELF
    rows = [
        ComparedRow(pair.a, pair.b, time, None if math.isnan(clock) else cycle, by_clock)
        for pair, time, cycle, clock in zip(pairs, times, cycles, clocks.tolist(), strict=True)
    ]
    return Comparison(
        a=a,
        b=b,
        matching=matching,
        rows=rows,
        geomean=geomean,
        geomean_cycles=geomean_cycles,
        differences=found,
        drift=(in_cycles if by_clock else in_time).drift,
        settings=settings,
        replicates=replicated.count,
        run_sd=math.sqrt(_run(replicated)[0]),
        in_cycles=by_clock,
    )


# -----------------------------------------------------------------------------
# The scatter: of visits, of replicates, of a whole run.


def _replicated(
    pairs: Sequence[Pair], groups: Sequence[Sequence[Mapping[Any, float]]]
) -> Replicates:
    """Return what replicates tell of the rows, each side's looked up by its own name."""
    sides = [[key(pair.a) for pair in pairs], [key(pair.b) for pair in pairs]]
    kinds = kinds_of(pairs)
    if len(groups) == 1 and sides[0] != sides[1]:
        # The same runs, looked at twice: of the rows that is more, of whole runs it is not.
        found = of_replicates([*groups, *groups], [sides[0], sides[1]], kinds)
        count = len(groups[0])
        return replace(
            found,
            run_freedom=min(found.run_freedom, count - 1),
            count=min(found.count, count),
        )
    return of_replicates(groups, sides[: len(groups)], kinds)


def _scatter(pairs: Sequence[Pair], replicated: Replicates) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the variance of each ratio without the common part, and its degrees of freedom.

    Replicates tell all of it, visits less, but of these very runs: the larger one counts. Where
    there are replicates, it is known as well as they are many, whatever the visits say: of what
    runs differ by they know nothing.
    """
    sides = [visits_of([pair[side] for pair in pairs]) for side in (0, 1)]
    within, freedom = of_visits(sides, kinds_of(pairs))
    between = 2 * replicated.rows
    told = ~np.isnan(between)
    variance = np.fmax(within, between)
    worth = np.where(told, replicated.freedom, freedom)
    return np.maximum(variance, _LEAST_SD**2), np.clip(worth, 1, MOST_FREEDOM).astype(int)


def _run(replicated: Replicates) -> tuple[float, int]:
    """Return the variance of what a whole run has in common, and its degrees of freedom."""
    if replicated.run is None:
        return RUN_SD**2, MOST_FREEDOM
    return replicated.run, replicated.run_freedom


def _added(
    variance: NDArray[Any], freedom: NDArray[Any], more: float, more_freedom: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return sums of variances, with their degrees of freedom (Welch and Satterthwaite)."""
    total = variance + more
    with np.errstate(invalid="ignore"):
        worth = total**2 / (variance**2 / freedom + more**2 / more_freedom)
    return total, np.clip(np.nan_to_num(worth, nan=1.0), 1, MOST_FREEDOM).astype(int)


# -----------------------------------------------------------------------------
# The common part, and what is left for each row.


class _Reading(NamedTuple):
    """What is judged; the rows' variances without that of the common part; and that part."""

    evidence: Evidence
    variance: NDArray[Any]
    freedom: NDArray[Any]
    drift: Drift | None


def _read(
    log: NDArray[Any],
    variance: NDArray[Any],
    freedom: NDArray[Any],
    against: Sequence[str | None],
    replicated: Replicates,
    alike: bool,
    settings: Settings,
) -> _Reading:
    """Return the evidence, with the common part read as what whole runs differ by."""
    usable = np.array([reason is None for reason in against], dtype=bool)
    log = np.where(np.isnan(log), 0.0, log)
    run, run_freedom = _run(replicated)
    drift, rest, adverse = None, log, 0.0
    of_run, of_run_freedom = 2 * run, run_freedom
    if alike and usable.sum() >= LEAST_ROWS:
        common = _weighted_median(log[usable], 1 / np.sqrt(variance[usable]))
        if not replicated.count:
            more, most_freedom = between_runs(log[usable] - common, variance[usable])
            variance, freedom = variance + more, np.minimum(freedom, most_freedom)
        # Of a median: pi / 2 times the variance of the mean.
        known = math.pi / 2 / float(np.sum(1 / variance[usable]))
        sd = math.sqrt(2 * run + known)
        anyhow = quantile(1 - _OFTEN, run_freedom) * sd
        most = quantile(1 - settings.alpha, run_freedom) * sd
        reading = (
            "machine" if abs(common) <= anyhow else "either" if abs(common) <= most else "change"
        )
        drift = Drift(bounded(common), reading)
        adverse = _OFTEN / 2  # where it goes the other way than the change
        if reading != "change":
            rest = log - common
            log = rest if reading == "machine" else log
            # As well known as the rows that tell it together.
            of_run, of_run_freedom = known, max(1, int(freedom[usable].sum()))
    own, own_freedom = _added(variance, freedom, of_run, of_run_freedom)
    evidence = Evidence(log, rest, np.sqrt(own), own_freedom, against, adverse)
    return _Reading(evidence, variance, freedom, drift)


def _weighted_median(values: NDArray[Any], weights: NDArray[Any]) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    half = reached[-1] / 2
    place = int(np.searchsorted(reached, half))
    if place + 1 < len(order) and reached[place] == half:
        return float((values[order[place]] + values[order[place + 1]]) / 2)
    return float(values[order[place]])


def _geomean(
    log: NDArray[Any], reading: _Reading, replicated: Replicates, settings: Settings
) -> Estimate | None:
    """Return the geometric mean of all ratios that can have a verdict, the common part in it."""
    usable = np.array([reason is None for reason in reading.evidence.against], dtype=bool)
    count = int(usable.sum())
    if not count:
        return None
    run, run_freedom = _run(replicated)
    own = np.array([float(np.sum(reading.variance[usable])) / count**2])
    own_freedom = np.array([int(np.sum(reading.freedom[usable]))])
    variance, freedom = _added(own, own_freedom, 2 * run, run_freedom)
    mean = np.array([float(np.mean(log[usable]))])
    return judge(Evidence(mean, mean, np.sqrt(variance), freedom, [None]), settings)[0]


# -----------------------------------------------------------------------------
# Another clock: cycles, where time follows it.


def compute_bound(rows: Sequence[Row]) -> NDArray[Any]:
    """Return of which rows it is known that their time follows the core's clock."""
    done = np.array([row.flops_executed or row.flops or 0.0 for row in rows], dtype=float)
    moved = np.array([row.bytes or 0.0 for row in rows], dtype=float)
    bound: NDArray[Any] = (moved > 0) & (done / _INTENSE >= moved)
    return bound


def _clocks(pairs: Sequence[Pair]) -> NDArray[Any]:
    """Return the logarithm of B's clock over A's; NaN where one is not known."""
    values = [(pair.b.clock_hz, pair.a.clock_hz) for pair in pairs]
    found = np.array(values, dtype=float).reshape(-1, 2).T
    with np.errstate(all="ignore"):
        logs: NDArray[Any] = np.log(found[0] / found[1])
    return np.where(np.isfinite(logs), logs, np.nan)


def _only_clocks(clocks: NDArray[Any]) -> bool:
    """Whether the second run's clock was another one."""
    known = clocks[~np.isnan(clocks)]
    return len(known) > 0 and abs(float(np.median(known))) > OTHER_CLOCK


def _agreed(time: Estimate, cycles: Estimate, bound: bool) -> Estimate:
    """Return the cycles' estimate; without a verdict where it may be the clock that gave it.

    A kernel that waits for memory takes the same time at half the clock, and half the cycles: its
    cycles tell nothing where its time does not tell the same.
    """
    if bound or cycles.verdict in (time.verdict, UNCLEAR):
        return cycles
    return msgspec.structs.replace(cycles, verdict=UNCLEAR, reason=_TWO_READINGS)


# -----------------------------------------------------------------------------
# Replicates of two runs: those of the store that repeat one of them.

# Twenty replicates tell a standard deviation to 16 %; more would only take time to read.
_RUNS: Final = 20
_ROWS: Final = 20_000
# Runs that are looked at for them.
_LOOKED_AT: Final = 200
# Replicates one behind the other differ by less than runs of different days do: twenty of them
# would promise more than holds tomorrow.
_PER_HOUR: Final = 4


def repeats(one: Side, other: Side) -> bool:
    """Whether two runs differ in nothing that is known to change times: neither in code.

    Machine, libraries, threads, variables, build, system and the code of this package are asked
    for; a run that does not say them all repeats no other.
    """
    code = one.environment.get("code")
    return (
        bool(code)
        and code == other.environment.get("code")
        and not any(found.counts for found in differences(one, other, ()))
    )


def replicates(store: Reader, a: Side, b: Side) -> list[list[Mapping[Any, float]]]:
    """Return runs that are repetitions of each other: seconds by key.

    Replicates of A with A itself, and those of B with B. Where B repeats A, the two are what is
    asked about, and only the others tell how far repetitions differ. Of the runs of an hour only a
    few count.

    Args:
        store: where the others are.
        a: the first run.
        b: the second one.
    """
    alike = repeats(a, b)
    sides = [a] if alike else [a, b]
    groups: list[list[Mapping[Any, float]]] = [[] for _ in sides]
    keys = {key(row) for side in (a, b) for row in side.rows}
    hours: dict[tuple[int, str], int] = {}
    read = 0
    for info in store.runs(limit=_LOOKED_AT):
        if info.id in (a.run_id, b.run_id) or info.status in ("running", "killed"):
            continue
        if read + info.measurements > _ROWS or not _may_repeat(info, sides):
            continue
        record = store.record(info.id)
        found = Side(name=info.id, rows=(), device=record.device, environment=record.environment)
        number = next((at for at, side in enumerate(sides) if repeats(side, found)), None)
        if number is None or len(groups[number]) == _RUNS:
            continue
        hour = number, info.created_utc[:13]
        if hours.get(hour, 0) == _PER_HOUR:
            continue
        read += info.measurements
        seconds = _seconds(read_side(info.id, store), keys)
        if seconds:
            groups[number].append(seconds)
            hours[hour] = hours.get(hour, 0) + 1
    if not alike:
        for side, group in zip(sides, groups, strict=True):
            if group:
                group.append(_seconds(side, keys))
    return groups


def _may_repeat(info: RunInfo, sides: Collection[Side]) -> bool:
    """Whether a run was measured on the machine of one of the sides."""
    return any(info.machine == machine_name(side.device) for side in sides)


def _seconds(side: Side, keys: Collection[Any]) -> dict[Any, float]:
    """Return a run's seconds by key, without what was disturbed."""
    return {
        name: row.median
        for row in side.rows
        if row.ok and row.median and not row.contended and (name := key(row)) in keys
    }

"""Two stored runs: ratios of medians, beside what runs of the same code differ by.

A ratio of two stored runs contains what the machine does over hours, which no repetition within a
run sees. Replicates tell it: runs of the same code, machine, libraries and settings in the store.
Their scatter gives each row a prediction interval, in which its ratio lies where nothing has
changed, and the smallest change that can be told from it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from pydlbench.compare.comparison import (
    FASTER,
    SAME,
    SLOWER,
    UNCLEAR,
    ComparedRow,
    Comparison,
    Estimate,
    Settings,
)
from pydlbench.compare.environment import differences
from pydlbench.compare.match import key, kinds_of, match
from pydlbench.compare.rows import Side, read_side
from pydlbench.compare.statistics import MOST_FREEDOM, Scatter, judge, pooled
from pydlbench.store.place import machine_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.compare.match import Matching, Pair
    from pydlbench.compare.rows import Row
    from pydlbench.store.reader import Reader

#: Standard deviation of a row's logarithm from run to run, assumed while fewer than
#: :data:`LEAST_RUNS` replicates tell it. On machines that others use, too, the same code's time
#: moves by 5 to 20 % from hour to hour, which is taken for the range of most runs.
RUN_SD: Final = 0.05
#: Fewer runs know a standard deviation too badly: Student's quantile would be several times the
#: normal one.
LEAST_RUNS: Final = 4
CONTENDED: Final = "other work disturbed it"
# A median's interval, as 95 % of a normal distribution: of two rounds it is five times as wide.
_OF_INTERVAL: Final = 2 * 1.96
# Of a row with itself.
_ITSELF: Final = Estimate(ratio=1.0, ci_low=1.0, ci_high=1.0, verdict=SAME)


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
    enough = _freedom(groups) >= LEAST_RUNS - 1
    log = np.log([pair.b.median / pair.a.median for pair in pairs])  # type: ignore[operator]  # both are timed
    scatter = _scatter(pairs, enough, _of_runs(pairs, groups))
    # Other work may be all that a change comes from. A disturbed time is an upper bound: B is
    # SLOWER than a bound of A, and FASTER than A if a bound of B is.
    against = [
        CONTENDED if (pair.b if change > 0 else pair.a).contended else None
        for pair, change in zip(pairs, log.tolist(), strict=True)
    ]
    estimates = [
        _certain(pair, estimate)
        for pair, estimate in zip(
            pairs, judge(log, scatter, against, settings, log + _clocks(pairs)), strict=True
        )
    ]
    usable = np.array([not _is_disturbed(pair) for pair in pairs], dtype=bool)
    geomean = None
    if usable.any():
        kept = [pair for pair, use in zip(pairs, usable, strict=True) if use]
        whole = _of_means(kept, groups) if enough else Scatter(*_assumed(1))
        geomean = judge(np.array([log[usable].mean()]), whole, [None], settings)[0]
    if (a.run_id, a.created_utc) == (b.run_id, b.created_utc):
        itself = [pair.a == pair.b for pair in pairs]
        estimates = [
            _ITSELF if same else estimate for same, estimate in zip(itself, estimates, strict=True)
        ]
        geomean = _ITSELF if all(itself) else geomean
    return Comparison(
        a=a,
        b=b,
        matching=matching,
        rows=[
            ComparedRow(*pair, estimate) for pair, estimate in zip(pairs, estimates, strict=True)
        ],
        geomean=geomean,
        differences=differences(a, b, pairs),
        settings=settings,
        replicates=sum(map(len, groups)),
        assumed_sd=None if enough else RUN_SD,
    )


def _is_disturbed(pair: Pair) -> bool:
    return bool(pair.a.contended or pair.b.contended)


def _certain(pair: Pair, estimate: Estimate) -> Estimate:
    """Return the estimate of a pair; of a disturbed one without a verdict, with the reason."""
    if not _is_disturbed(pair) or estimate.verdict in (SLOWER, FASTER):
        return estimate
    return msgspec.structs.replace(estimate, verdict=UNCLEAR, resolution=None, reason=CONTENDED)


def _freedom(groups: Sequence[Sequence[Mapping[Any, float]]]) -> int:
    """Return how many degrees of freedom replicates have beside the means of their groups."""
    return sum(max(len(seconds) - 1, 0) for seconds in groups)


def _assumed(rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.full(rows, math.sqrt(2) * RUN_SD), np.full(rows, MOST_FREEDOM)


def _of_runs(pairs: Sequence[Pair], groups: Sequence[Sequence[Mapping[Any, float]]]) -> Scatter:
    """Return the scatter of ratios of two runs, as replicates tell it row by row.

    Whatever moves a whole run is in every row; it is drawn once a run, so that a row's scatter is
    known no better than the runs are many, however many rows of its kind there are.
    """
    sums, freedom = np.zeros(len(pairs)), np.zeros(len(pairs))
    for seconds in groups:
        logs = _logs(pairs, seconds)
        count = np.sum(~np.isnan(logs), axis=0)
        mean = np.nansum(logs, axis=0) / np.maximum(count, 1)
        sums += np.nansum((logs - mean) ** 2, axis=0)
        freedom += np.maximum(count - 1, 0)
    sd, known = pooled(sums, freedom, kinds_of(pair.a for pair in pairs))
    return Scatter(math.sqrt(2) * sd, np.minimum(known, _freedom(groups)))


def _of_means(pairs: Sequence[Pair], groups: Sequence[Sequence[Mapping[Any, float]]]) -> Scatter:
    """Return the scatter of the ratio of two runs' means over rows."""
    sums, freedom = 0.0, 0
    for seconds in groups:
        logs = _logs(pairs, seconds)
        logs = logs[:, ~np.isnan(logs).all(axis=0)]
        rest = logs - np.nansum(logs, axis=0) / np.maximum(np.sum(~np.isnan(logs), axis=0), 1)
        rest = rest[~np.isnan(rest).all(axis=1)]  # a run may have none of these rows
        if len(rest) > 1:
            means = np.nanmean(rest, axis=1)
            sums += float(np.sum((means - means.mean()) ** 2))
            freedom += len(means) - 1
    sd = math.sqrt(2 * sums / freedom) if freedom else math.sqrt(2) * RUN_SD
    return Scatter(np.array([sd]), np.array([freedom or MOST_FREEDOM]))


def _logs(pairs: Sequence[Pair], seconds: Sequence[Mapping[Any, float]]) -> NDArray[Any]:
    """Return logarithms of replicates: runs x rows, NaN where a run has not the row."""
    keys = [[key(row) for row in pair] for pair in pairs]
    seconds_of = [
        [next((run[name] for name in names if name in run), math.nan) for names in keys]
        for run in seconds
    ]
    logs: NDArray[Any] = np.log(np.array(seconds_of, dtype=float).reshape(len(seconds), len(pairs)))
    return logs


def _scatter(pairs: Sequence[Pair], enough: bool, of_replicates: Scatter) -> Scatter:
    """Return the scatter that counts: of replicates, or the assumed one; at least the rows' own.

    Medians of replicates contain that of the rounds: the rows' own, which few rounds tell badly,
    counts no more than twice as much.
    """
    sd, freedom = _assumed(len(pairs))
    own = np.array([math.hypot(*map(_of_median, pair)) for pair in pairs])
    if enough:
        known = ~np.isnan(of_replicates.sd)
        own = np.where(known, np.minimum(own, 2 * of_replicates.sd), own)
        sd, freedom = (
            np.where(known, of_replicates.sd, sd),
            np.where(known, of_replicates.freedom, freedom),
        )
    else:
        sd = np.fmax(sd, of_replicates.sd)
    return Scatter(np.maximum(sd, own), freedom)


def _of_median(row: Row) -> float:
    """Return the standard deviation of the logarithm of a median, of its interval in the run."""
    if not row.median or not row.ci_high or row.ci_low is None:
        return 0.0
    # Zero, where an interval of few visits that lie far apart begins, has no logarithm: the upper
    # half counts twice.
    low = row.ci_low if row.ci_low > 0 else row.median**2 / row.ci_high
    return math.log(row.ci_high / low) / _OF_INTERVAL


def _clocks(pairs: Sequence[Pair]) -> NDArray[Any]:
    """Return the logarithm of B's clock over A's; NaN where one is not known."""
    values = [(pair.b.clock_hz, pair.a.clock_hz) for pair in pairs]
    clocks = np.array(values, dtype=float).reshape(-1, 2).T
    with np.errstate(all="ignore"):
        logs: NDArray[Any] = np.log(clocks[0] / clocks[1])
    return np.where(np.isfinite(logs), logs, np.nan)


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


def repeats(own: Side, other: Side) -> bool:
    """Whether two runs differ in nothing that is known to change times: neither in code.

    Machine, libraries, threads, variables, build, system and the code of this package are asked
    for; a run that does not say them all repeats no other.
    """
    code = own.environment.get("code")
    return (
        bool(code)
        and code == other.environment.get("code")
        and not any(difference.counts for difference in differences(own, other, ()))
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
    for number, _, seconds in repetitions(store, sides, keys, {a.run_id, b.run_id}):
        groups[number].append(seconds)
    if not alike:
        for side, group in zip(sides, groups, strict=True):
            if group:
                group.append(seconds_of(side, keys))
    return groups


def repetitions(
    store: Reader, sides: Sequence[Side], keys: Collection[Any], apart: Collection[str]
) -> Iterator[tuple[int, str, dict[Any, float]]]:
    """Yield stored runs that repeat one of some runs, the newest first: of each hour a few.

    Args:
        store: where they are.
        sides: the runs.
        keys: of the rows that are asked for.
        apart: runs that are left out, by name.

    Yields:
        Which side a run repeats, when it began, and its seconds by key.
    """
    machines = {machine_name(side.device) for side in sides}
    runs = [0] * len(sides)
    hours: dict[tuple[int, str], int] = {}
    read = 0
    for info in store.runs(limit=_LOOKED_AT):
        if info.id in apart or info.status in ("running", "killed"):
            continue
        if read + info.measurements > _ROWS or info.machine not in machines:
            continue
        record = store.record(info.id)
        side_of_run = Side(
            name=info.id, rows=(), device=record.device, environment=record.environment
        )
        number = next((at for at, side in enumerate(sides) if repeats(side, side_of_run)), None)
        if number is None or runs[number] == _RUNS:
            continue
        hour = number, info.created_utc[:13]
        if hours.get(hour, 0) == _PER_HOUR:
            continue
        read += info.measurements
        seconds = seconds_of(read_side(info.id, store), keys)
        if seconds:
            runs[number] += 1
            hours[hour] = hours.get(hour, 0) + 1
            yield number, info.created_utc, seconds


def seconds_of(side: Side, keys: Collection[Any]) -> dict[Any, float]:
    """Return a run's seconds by key, without what was disturbed."""
    return {
        name: row.median
        for row in side.rows
        if row.ok and row.median and not row.contended and (name := key(row)) in keys
    }

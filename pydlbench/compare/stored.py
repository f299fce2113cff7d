"""Two stored runs: ratios of medians, compared with the scatter between runs of the same code.

A machine changes over hours, which repetitions within a run do not show. Replicates do: runs of the
same code, machine, libraries and settings in the store, at least half an hour apart. Their scatter
gives each row a prediction interval, in which its ratio lies if nothing has changed, and the
smallest change that can be detected.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pydlbench.compare.comparison import (
    FASTER,
    MARGIN,
    SLOWER,
    UNCLEAR,
    WORTH_A_LOOK,
    ComparedRow,
    Comparison,
    Estimate,
)
from pydlbench.compare.environment import differences
from pydlbench.compare.rows import (
    Matching,
    Pair,
    Side,
    SideRow,
    key,
    kinds_of,
    match,
    read_side,
    side_of_documents,
)
from pydlbench.compare.statistics import (
    Scatter,
    Spread,
    freedom_of,
    judge,
    quantile,
    scatter_of,
    spread_of,
    welch,
)
from pydlbench.errors import UsageError
from pydlbench.records.measurement import LATER_LEVEL, OCCASIONS, Expected, Measurement
from pydlbench.records.run import MAX_SEARCHED_RUNS, OCCASION_DISTANCE, RunRecord, start_time
from pydlbench.store.place import machine_name
from pydlbench.store.store import Reader

#: Standard deviation of a row's logarithm from run to run, assumed with fewer than
#: :data:`MIN_RUNS` replicates. On shared machines the time of the same code moves by 5 to 20 % from
#: hour to hour, which is taken as the range of most runs.
RUN_SD: Final = 0.05
#: Minimum number of runs for a standard deviation: with fewer, Student's quantile would be several
#: times the normal one.
MIN_RUNS: Final = 4
CONTENDED: Final = "other work disturbed it"
# Width of a median's interval in standard deviations, as 95 % of a normal distribution. The
# interval of two rounds is five times as wide.
_INTERVAL_WIDTH: Final = 2 * 1.96
#: Neither A nor B has replicates.
NO_REPLICATES: Final[tuple[tuple[Mapping[Any, float], ...], ...]] = ((), ())


def compare_sides(
    first: Side, second: Side, store: Reader | None, margin: float = MARGIN
) -> Comparison:
    """Compare two runs with the replicates that a store has of them.

    Args:
        first: run A.
        second: run B.
        store: the store with replicates; None if there is none, and both are files.
        margin: ratios within 1 +- this count as the same.

    Raises:
        UsageError: both are the same run, or nothing in one is in the other.
    """
    if first.run_id and (first.run_id, first.created_utc) == (second.run_id, second.created_utc):
        raise UsageError(
            f"RUN: A and B are the same run, {first.run_id}; nearest: pydlbench compare last~1 last"
        )
    matching = match(first, second)
    groups = NO_REPLICATES if store is None else replicates(store, first, second, matching.pairs)
    return compare(first, second, matching, margin, groups)


def compare(
    a: Side,
    b: Side,
    matching: Matching,
    margin: float = MARGIN,
    groups: Sequence[Sequence[Mapping[Any, float]]] = NO_REPLICATES,
) -> Comparison:
    """Compare two stored runs.

    Args:
        a: the first run.
        b: the second run.
        matching: matched rows of the two runs.
        margin: ratios within 1 +- this count as the same.
        groups: replicates of A and of B, from :func:`replicates`.
    """
    pairs = matching.pairs
    sides = [pair.a for pair in pairs], [pair.b for pair in pairs]
    same = _same_rows(pairs)
    if same:  # replicates of either side are replicates of both
        spreads = [[spread(sides[0], runs) for runs in groups]] * 2
    else:
        spreads = [[spread(rows, runs)] for rows, runs in zip(sides, groups, strict=True)]
    errors = [np.array([_median_sd(row) for row in rows]) for rows in sides]
    scatter = _ratio_scatter(spreads, errors, [kinds_of(rows) for rows in sides], same=same)
    log = np.log([pair.b.median / pair.a.median for pair in pairs])  # type: ignore[operator]  # both are timed
    # A change may come from other work. A disturbed time is an upper bound: B can be SLOWER than a
    # disturbed A, and a disturbed B can be FASTER than A, but not the other way round.
    against = [
        CONTENDED if (pair.b if change > 0 else pair.a).contended else None
        for pair, change in zip(pairs, log.tolist(), strict=True)
    ]
    estimates = judge(log, scatter, against, margin, log + _clock_logs(pairs), worth=WORTH_A_LOOK)
    usable = np.array([not _is_disturbed(pair) for pair in pairs], dtype=bool)
    geomean = None
    if usable.any():
        means = [[rows.of_means(usable) for rows in side] for side in spreads]
        mean_errors = [np.sqrt([np.sum(error[usable] ** 2)]) / usable.sum() for error in errors]
        whole = _ratio_scatter(means, mean_errors, [np.array(["all"])] * 2, same=same)
        geomean = judge(np.array([log[usable].mean()]), whole, [None], margin, worth=WORTH_A_LOOK)[
            0
        ]
    return Comparison(
        a=a,
        b=b,
        matching=matching,
        rows=[
            ComparedRow(*pair, _without_doubt(pair, estimate))
            for pair, estimate in zip(pairs, estimates, strict=True)
        ],
        geomean=geomean,
        differences=differences(a, b, pairs),
        margin=margin,
        worth=WORTH_A_LOOK,
        replicates=sum(len(runs) for runs in groups if len(runs) > 1),
        assumed_sd=None if all(map(_is_known, spreads)) else RUN_SD,
    )


def _same_rows(pairs: Sequence[Pair]) -> bool:
    """Whether both sides measured the same problems with the same names and settings."""
    return all(key(pair.a) == key(pair.b) for pair in pairs)


def _is_disturbed(pair: Pair) -> bool:
    return bool(pair.a.contended or pair.b.contended)


def _without_doubt(pair: Pair, estimate: Estimate) -> Estimate:
    """Return the estimate of a pair; a disturbed pair that is not SLOWER or FASTER is UNCLEAR."""
    if not _is_disturbed(pair) or estimate.verdict in (SLOWER, FASTER):
        return estimate
    return msgspec.structs.replace(estimate, verdict=UNCLEAR, resolution=None, reason=CONTENDED)


# -----------------------------------------------------------------------------
# The scatter of the ratios of two runs if nothing has changed.


def _ratio_scatter(
    spreads: Sequence[Sequence[Spread]],
    errors: Sequence[NDArray[Any]],
    kinds: Sequence[NDArray[Any]],
    *,
    same: bool,
) -> Scatter:
    """Return the scatter of ratios.

    Args:
        spreads: spreads of the replicates of A's rows, and of the replicates of B's rows.
        errors: standard deviations, within the run, of the logarithms of A's medians and of B's
            medians.
        kinds: kinds of the rows of A, and of B; rows of one kind scatter alike.
        same: whether both sides have the same replicates.
    """
    first, second = map(_side_scatter, spreads, errors, kinds)
    freedom = first.freedom if same else welch(first, second)
    return Scatter(np.hypot(first.sd, second.sd), freedom)


def _side_scatter(spreads: Sequence[Spread], errors: NDArray[Any], kinds: NDArray[Any]) -> Scatter:
    """Return the scatter of a side's rows: of replicates, or assumed; at least the medians' errors.

    The scatter of replicates contains the error of their medians. The errors of the side itself are
    uncertain with few rounds, so they count up to twice the scatter.
    """
    sd, freedom = scatter_of(spreads, kinds)
    if _is_known(spreads):
        known = ~np.isnan(sd)
        errors = np.where(known, np.minimum(errors, 2 * sd), errors)
        sd, freedom = np.where(known, sd, RUN_SD), np.where(known, freedom, math.inf)
    else:
        sd, freedom = np.fmax(sd, RUN_SD), np.full(sd.shape, math.inf)
    return Scatter(np.maximum(sd, errors), freedom)


def _is_known(spreads: Sequence[Spread]) -> bool:
    """Whether there are enough replicates for a standard deviation."""
    return freedom_of(spreads) >= MIN_RUNS - 1


def _median_sd(row: SideRow) -> float:
    """Return the standard deviation of a median's logarithm, from its interval in the run."""
    if not row.median or not row.ci_high or row.ci_low is None:
        return 0.0
    # The interval of a few distant visits may begin at zero, which has no logarithm: in that case
    # the upper half counts twice.
    low = row.ci_low if row.ci_low > 0 else row.median**2 / row.ci_high
    return math.log(row.ci_high / low) / _INTERVAL_WIDTH


def _clock_logs(pairs: Sequence[Pair]) -> NDArray[Any]:
    """Return the logarithm of B's clock over A's clock; NaN where a clock is not known."""
    values = [(pair.b.clock_hz, pair.a.clock_hz) for pair in pairs]
    clocks = np.array(values, dtype=float).reshape(-1, 2).T
    with np.errstate(all="ignore"):
        logs: NDArray[Any] = np.log(clocks[0] / clocks[1])
    return np.where(np.isfinite(logs), logs, np.nan)


# -----------------------------------------------------------------------------
# Replicates: stored runs that repeat a run.

# Twenty replicates give a standard deviation within 16 %; more would only take time to read.
_MAX_RUNS: Final = 20
_MAX_ROWS: Final = 20_000


def repeats(own: Side, other: Side) -> bool:
    """Whether two runs have the same code, and no known difference that changes times.

    Machine, libraries, threads, variables, build, system and the code of this package are compared;
    a run that lacks one of them repeats no other.
    """
    code = own.environment.get("code")
    return (
        bool(code)
        and code == other.environment.get("code")
        and not any(difference.counts for difference in differences(own, other, ()))
    )


def replicates(
    store: Reader, a: Side, b: Side, pairs: Sequence[Pair]
) -> list[list[Mapping[Any, float]]]:
    """Return groups of runs that repeat each other: seconds by key.

    One group is A with its repetitions, the other B with its own. If B repeats A with the same
    rows, there is one group without both, which are compared.

    Args:
        store: store with the other runs.
        a: the first run.
        b: the second run.
        pairs: matched rows of the two runs.
    """
    if repeats(a, b) and _same_rows(pairs):
        keys = {key(pair.a) for pair in pairs}
        return [repetitions(store, a, keys, {a.run_id, b.run_id})]
    return [
        repetitions(store, a, {key(pair.a) for pair in pairs}, {b.run_id}),
        repetitions(store, b, {key(pair.b) for pair in pairs}, {a.run_id}),
    ]


def repetitions(
    store: Reader, side: Side, keys: Collection[Any], excluded: Collection[str] = ()
) -> list[Mapping[Any, float]]:
    """Return a run and the stored ones that repeat it, half an hour apart: seconds by key.

    The run itself comes first, then the others from the newest to the oldest. A run within half an
    hour of another one only adds the rows that the other lacks.

    Args:
        store: store with the other runs.
        side: the run.
        keys: keys of the requested rows.
        excluded: ids of runs to leave out; the run itself may be one of them.
    """
    own = {} if side.run_id in excluded else seconds_of(side, keys)
    runs = [(start_time(side.created_utc), own)] if own else []
    read = 0
    for info in store.runs(limit=MAX_SEARCHED_RUNS):
        if len(runs) == _MAX_RUNS:
            break
        if info.id in (side.run_id, *excluded) or info.status in ("running", "killed"):
            continue
        if read + info.measurements > _MAX_ROWS or info.machine != machine_name(side.device):
            continue
        start = start_time(info.created_utc)
        if start is None:
            continue
        near = next(
            (rows for time, rows in runs if time and abs(start - time) < OCCASION_DISTANCE), None
        )
        if near is not None and all(name in near for name in keys):
            continue
        record = store.record(info.id)
        other = Side(name=info.id, rows=(), device=record.device, environment=record.environment)
        if not repeats(side, other):
            continue
        read += info.measurements
        seconds = seconds_of(read_side(info.id, store), keys)
        if near is not None:
            near |= {name: time for name, time in seconds.items() if name not in near}
        elif seconds:
            runs.append((start, seconds))
    return [seconds for _, seconds in runs]


def seconds_of(side: Side, keys: Collection[Any]) -> dict[Any, float]:
    """Return the seconds of a run's undisturbed rows by key."""
    return {
        name: row.median
        for row in side.rows
        if row.ok and row.median and not row.contended and (name := key(row)) in keys
    }


def spread(rows: Sequence[SideRow], runs: Sequence[Mapping[Any, float]]) -> Spread:
    """Return the spread of the rows' times over independent runs.

    Args:
        rows: rows to look up in each run.
        runs: for each run, seconds by key, as :func:`repetitions` returns them.
    """
    names = [key(row) for row in rows]
    seconds = [[run.get(name, math.nan) for name in names] for run in runs]
    return spread_of(np.log(np.array(seconds, dtype=float).reshape(len(runs), len(rows))))


def add_predictions(
    run: RunRecord, rows: Sequence[Measurement], store: Reader
) -> list[Measurement]:
    """Return rows of a run with their prediction intervals.

    Args:
        run: record of the run.
        rows: all or some of its rows.
        store: store with runs of the same code, machine, libraries and settings.
    """
    side = side_of_documents("", run, [row.to_dict() for row in rows])
    runs = repetitions(store, side, {key(row) for row in side.rows})
    return [
        msgspec.structs.replace(row, expected_s=interval) if row.ok else row
        for row, interval in zip(rows, predict(side.rows, runs), strict=True)
    ]


def predict(rows: Sequence[SideRow], runs: Sequence[Mapping[Any, float]]) -> list[Expected | None]:
    """Return the prediction interval of each row's median in a later run.

    Args:
        rows: rows of a run.
        runs: seconds by key, from :func:`~pydlbench.compare.stored.repetitions`.

    Returns:
        None for a row with undisturbed times of fewer than
        :data:`~pydlbench.records.measurement.OCCASIONS` runs.
    """
    known = spread(rows, runs)
    scatter = scatter_of([known], kinds_of(rows))
    columns = (known.means, known.counts, scatter.sd, scatter.freedom)
    intervals: list[Expected | None] = []
    for mean, count, sd, freedom in zip(*(column.tolist() for column in columns), strict=True):
        if count < OCCASIONS:
            intervals.append(None)
            continue
        reach = quantile(LATER_LEVEL, int(freedom)) * sd * math.sqrt(1 + 1 / count)
        low, high = math.exp(mean - reach), math.exp(mean + reach)
        intervals.append(Expected(low=low, high=high, occasions=count))
    return intervals

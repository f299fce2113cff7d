"""Two stored runs: ratios of medians, beside what runs of the same code differ by.

A ratio of two stored runs contains what the machine does over hours, which no repetition within a
run sees. Replicates tell it: runs of the same code, machine, libraries and settings in the store,
half an hour apart or more. Their scatter gives each row a prediction interval, in which its ratio
lies where nothing has changed, and the smallest change that can be told from it.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from pydlbench.compare.comparison import (
    FASTER,
    MARGIN,
    SLOWER,
    UNCLEAR,
    ComparedRow,
    Comparison,
    Estimate,
)
from pydlbench.compare.environment import differences
from pydlbench.compare.match import key, kinds_of, match
from pydlbench.compare.rows import Side, read_side
from pydlbench.compare.statistics import (
    Scatter,
    freedom_of,
    judge,
    scatter_of,
    spread_of,
    welch,
)
from pydlbench.errors import UsageError
from pydlbench.store.place import machine_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.compare.match import Matching, Pair
    from pydlbench.compare.rows import Row
    from pydlbench.compare.statistics import Spread
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
#: No replicates, neither of A nor of B.
NONE: Final[tuple[tuple[Mapping[Any, float], ...], ...]] = ((), ())


def compare_sides(
    first: Side, second: Side, store: Reader | None, margin: float = MARGIN
) -> Comparison:
    """Compare two runs with the replicates that a store has of them.

    Args:
        first: run A.
        second: run B.
        store: that has them; None where there is none, and both are files.
        margin: ratios within 1 +- this count as the same.

    Raises:
        UsageError: both are the same run, or nothing in one is in the other.
    """
    if first.run_id and (first.run_id, first.created_utc) == (second.run_id, second.created_utc):
        raise UsageError(
            f"RUN: A and B are the same run, {first.run_id}; nearest: pydlbench compare last~1 last"
        )
    matching = match(first, second)
    groups = NONE if store is None else replicates(store, first, second, matching.pairs)
    return compare(first, second, matching, margin, groups)


def compare(
    a: Side,
    b: Side,
    matching: Matching,
    margin: float = MARGIN,
    groups: Sequence[Sequence[Mapping[Any, float]]] = NONE,
) -> Comparison:
    """Compare two stored runs.

    Args:
        a: the first one.
        b: the second one.
        matching: of both.
        margin: ratios within 1 +- this count as the same.
        groups: replicates, of :func:`replicates`.
    """
    pairs = matching.pairs
    sides = [pair.a for pair in pairs], [pair.b for pair in pairs]
    same = _same_rows(pairs)
    if same:  # replicates of either side tell of both
        spreads = [[spread(sides[0], runs) for runs in groups]] * 2
    else:
        spreads = [[spread(rows, runs)] for rows, runs in zip(sides, groups, strict=True)]
    own = [np.array([_of_median(row) for row in rows]) for rows in sides]
    scatter = _of_ratios(spreads, own, [kinds_of(rows) for rows in sides], same=same)
    log = np.log([pair.b.median / pair.a.median for pair in pairs])  # type: ignore[operator]  # both are timed
    # Other work may be all that a change comes from. A disturbed time is an upper bound: B is
    # SLOWER than a bound of A, and FASTER than A if a bound of B is.
    against = [
        CONTENDED if (pair.b if change > 0 else pair.a).contended else None
        for pair, change in zip(pairs, log.tolist(), strict=True)
    ]
    judged = judge(log, scatter, against, margin, log + _clocks(pairs))
    usable = np.array([not _is_disturbed(pair) for pair in pairs], dtype=bool)
    geomean = None
    if usable.any():
        means = [[each.of_means(usable) for each in side] for side in spreads]
        errors = [np.sqrt([np.sum(error[usable] ** 2)]) / usable.sum() for error in own]
        whole = _of_ratios(means, errors, [np.array(["all"])] * 2, same=same)
        geomean = judge(np.array([log[usable].mean()]), whole, [None], margin)[0]
    return Comparison(
        a=a,
        b=b,
        matching=matching,
        rows=[
            ComparedRow(*pair, _certain(pair, estimate))
            for pair, estimate in zip(pairs, judged, strict=True)
        ],
        geomean=geomean,
        differences=differences(a, b, pairs),
        margin=margin,
        replicates=sum(len(runs) for runs in groups if len(runs) > 1),
        assumed_sd=None if all(map(_is_known, spreads)) else RUN_SD,
    )


def _same_rows(pairs: Sequence[Pair]) -> bool:
    """Whether both sides measured the same with the same settings, by the same names."""
    return all(key(pair.a) == key(pair.b) for pair in pairs)


def _is_disturbed(pair: Pair) -> bool:
    return bool(pair.a.contended or pair.b.contended)


def _certain(pair: Pair, estimate: Estimate) -> Estimate:
    """Return the estimate of a pair; of a disturbed one without a verdict, with the reason."""
    if not _is_disturbed(pair) or estimate.verdict in (SLOWER, FASTER):
        return estimate
    return msgspec.structs.replace(estimate, verdict=UNCLEAR, resolution=None, reason=CONTENDED)


# -----------------------------------------------------------------------------
# The scatter of ratios of two runs where nothing has changed.


def _of_ratios(
    spreads: Sequence[Sequence[Spread]],
    own: Sequence[NDArray[Any]],
    kinds: Sequence[NDArray[Any]],
    *,
    same: bool,
) -> Scatter:
    """Return the scatter of ratios.

    Args:
        spreads: of the replicates of A's rows, and of those of B's.
        own: standard deviations of the logarithms of A's medians within the run, and of B's.
        kinds: which rows of A, and which of B, scatter alike.
        same: whether the same replicates tell of both.
    """
    first, second = map(_of_runs, spreads, own, kinds)
    freedom = first.freedom if same else welch(first, second)
    return Scatter(np.hypot(first.sd, second.sd), freedom)


def _of_runs(spreads: Sequence[Spread], own: NDArray[Any], kinds: NDArray[Any]) -> Scatter:
    """Return the scatter of a side's rows: that of replicates, or the assumed one; at least own.

    Medians of replicates contain that of the rounds: the rows' own, which few rounds tell badly,
    counts no more than twice as much.
    """
    sd, freedom = scatter_of(spreads, kinds)
    if _is_known(spreads):
        known = ~np.isnan(sd)
        own = np.where(known, np.minimum(own, 2 * sd), own)
        sd, freedom = np.where(known, sd, RUN_SD), np.where(known, freedom, math.inf)
    else:
        sd, freedom = np.fmax(sd, RUN_SD), np.full(sd.shape, math.inf)
    return Scatter(np.maximum(sd, own), freedom)


def _is_known(spreads: Sequence[Spread]) -> bool:
    """Whether replicates are enough to tell a scatter."""
    return freedom_of(spreads) >= LEAST_RUNS - 1


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
# Replicates: runs of the store that repeat a run.

# Twenty replicates tell a standard deviation to 16 %; more would only take time to read.
_RUNS: Final = 20
_ROWS: Final = 20_000
# Runs that are looked at for them.
_LOOKED_AT: Final = 200
# Runs behind one another share what the machine does then.
_APART: Final = dt.timedelta(minutes=30)


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


def replicates(
    store: Reader, a: Side, b: Side, pairs: Sequence[Pair]
) -> list[list[Mapping[Any, float]]]:
    """Return runs that are repetitions of each other: seconds by key.

    Those of A with A itself, and those of B with B. Where B repeats A with the same rows, the two
    are what is asked about, and only the others tell how far repetitions differ.

    Args:
        store: where the others are.
        a: the first run.
        b: the second one.
        pairs: their matched rows.
    """
    if repeats(a, b) and _same_rows(pairs):
        keys = {key(pair.a) for pair in pairs}
        return [repetitions(store, a, keys, {a.run_id, b.run_id})]
    return [
        repetitions(store, a, {key(pair.a) for pair in pairs}, {b.run_id}),
        repetitions(store, b, {key(pair.b) for pair in pairs}, {a.run_id}),
    ]


def repetitions(
    store: Reader, side: Side, keys: Collection[Any], apart: Collection[str] = ()
) -> list[Mapping[Any, float]]:
    """Return a run and the stored ones that repeat it, half an hour apart: seconds by key.

    The run itself comes first, then the others from the newest to the oldest. Rows that one of them
    lacks are those of a run within half an hour of it, which counts no further.

    Args:
        store: where the others are.
        side: the run.
        keys: of the rows that are asked for.
        apart: runs that are left out, by name; the run itself may be one of them.
    """
    own = {} if side.run_id in apart else seconds_of(side, keys)
    kept = [(_began(side.created_utc), own)] if own else []
    read = 0
    for info in store.runs(limit=_LOOKED_AT):
        if len(kept) == _RUNS:
            break
        if info.id in (side.run_id, *apart) or info.status in ("running", "killed"):
            continue
        if read + info.measurements > _ROWS or info.machine != machine_name(side.device):
            continue
        began = _began(info.created_utc)
        if began is None:
            continue
        near = next((rows for time, rows in kept if time and abs(began - time) < _APART), None)
        if near is not None and all(name in near for name in keys):
            continue
        record = store.record(info.id)
        other = Side(name=info.id, rows=(), device=record.device, environment=record.environment)
        if not repeats(side, other):
            continue
        read += info.measurements
        seconds = seconds_of(read_side(info.id, store), keys)
        if near is not None:
            near |= {name: each for name, each in seconds.items() if name not in near}
        elif seconds:
            kept.append((began, seconds))
    return [seconds for _, seconds in kept]


def _began(text: str) -> dt.datetime | None:
    """Return when a run began; None where that cannot be read: documents come from anywhere."""
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)


def seconds_of(side: Side, keys: Collection[Any]) -> dict[Any, float]:
    """Return a run's seconds by key, without what was disturbed."""
    return {
        name: row.median
        for row in side.rows
        if row.ok and row.median and not row.contended and (name := key(row)) in keys
    }


def spread(rows: Sequence[Row], runs: Sequence[Mapping[Any, float]]) -> Spread:
    """Return how far independent runs differ in some rows.

    Args:
        rows: the rows.
        runs: seconds by key, of :func:`repetitions`.
    """
    names = [key(row) for row in rows]
    seconds = [[run.get(name, math.nan) for name in names] for run in runs]
    return spread_of(np.log(np.array(seconds, dtype=float).reshape(len(runs), len(rows))))

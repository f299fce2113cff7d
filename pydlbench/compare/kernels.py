"""Two kernels that were timed in turn: the ratio of each row, and kernels that are not ranked."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Final

from pydlbench.compare.comparison import MARGIN, Comparison
from pydlbench.compare.interleaved import RerunPair, compare_interleaved
from pydlbench.compare.models import CONFIDENCE
from pydlbench.compare.rows import Matching, Pair, describe, key_without, side_of_documents
from pydlbench.models.user_model import is_user_model
from pydlbench.records.measurement import KernelSpec, Measurement, TimeSummary
from pydlbench.records.run import RunRecord

#: Note on a kernel of a user beside one of a library.
CALLED_ONCE: Final = (
    "before each sample of a kernel of your own its inputs are copied, so it takes a few "
    "microseconds longer than calls in a loop; to compare it with PyTorch's operator in the same "
    "way, call that in a file of yours"
)
# Settings that differ between the two kernels of a row.
_ACROSS: Final = ("backend", "mode", "timing")


def name_of(kernel: KernelSpec | Measurement) -> str:
    """Return the name by which a command line names a kernel: its file, or its backend."""
    mode = kernel.mode or ""
    return mode if is_user_model(mode) else kernel.backend


def compare_kernels(
    rows: Sequence[Measurement], run: RunRecord, margin: float | None = None
) -> Comparison | None:
    """Compare two kernels of the same layers that were timed in turn.

    Args:
        rows: rows of both; that of A comes first.
        run: record of the run that has timed them.
        margin: ratios within 1 +- this count as the same; None for the default.

    Returns:
        The comparison; None without rows of both.
    """
    names = list(dict.fromkeys(map(name_of, rows)))
    if len(names) != 2:  # A and B
        return None
    measured = [[row for row in rows if name_of(row) == name] for name in names]
    a, b = (
        side_of_documents(name, run, [row.to_dict() for row in own])
        for name, own in zip(names, measured, strict=True)
    )
    key = key_without(_ACROSS)
    own = [
        dict(zip(map(key, s.rows), m, strict=True)) for s, m in zip((a, b), measured, strict=True)
    ]
    places = [dict(zip(map(key, side.rows), side.rows, strict=True)) for side in (a, b)]
    shared = [name for name in own[0] if name in own[1]]
    pairs = [Pair(places[0][name], places[1][name]) for name in shared]
    rerun = [_pair(own[0][name], own[1][name]) for name in shared]
    once = sum(map(is_user_model, names)) == 1
    compared = compare_interleaved(
        *(a, b, Matching(pairs=pairs, only_a=[], only_b=[], untimed=[]), rerun),
        MARGIN if margin is None else margin,
        notes=(CALLED_ONCE,) if once and any(pair.logs for pair in rerun) else (),
        confidence=CONFIDENCE,
    )
    refused = (
        f"{mark} is not ranked: {describe(place[name])}: {rows_of[name].reason}"
        for mark, place, rows_of in zip("AB", places, own, strict=True)
        for name in shared
        if rows_of[name].status == "failed"
    )
    untimed = [pair for pair, again in zip(pairs, rerun, strict=True) if not again.logs]
    matching = dataclasses.replace(compared.matching, untimed=untimed)
    return dataclasses.replace(compared, matching=matching, refused=tuple(refused))


def _by_lap(time: TimeSummary) -> dict[int, float]:
    """Return the time of each repetition by the number of its lap."""
    laps = time.laps or range(len(time.visit_s))
    return dict(zip(laps, time.visit_s, strict=True))


def _pair(a: Measurement, b: Measurement) -> RerunPair:
    """Return the ratios of a pair's repetitions: none if a row has no time."""
    reasons = [
        f"{mark}: {row.reason}" for mark, row in (("A", a), ("B", b)) if row.status == "skipped"
    ]
    pair = RerunPair(
        algorithms=(a.algorithm, b.algorithm),
        libraries=(a.library, b.library),
        reason="; ".join(reasons) or None,
    )
    if a.time is None or b.time is None or not (a.ok and b.ok):
        return pair
    first, second = _by_lap(a.time), _by_lap(b.time)
    for lap in sorted(first.keys() & second.keys()):
        pair.logs[lap] = math.log(second[lap] / first[lap])
    for side, row in enumerate((a, b)):
        if row.time is not None:
            pair.seconds[side].extend(row.time.visit_s)
            pair.clocks[side].extend([row.clock_hz] if row.clock_hz else [])
    return pair

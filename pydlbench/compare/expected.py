"""What to expect of a row in another hour, from stored runs of the same code at other hours.

What a machine does over hours no repetition within a run sees. Where runs of some hours are stored,
their scatter tells it: each hour counts once, with the mean of its runs' logarithms, and rows of a
kind are as steady as they are together, but for those that scatter more than their kind.
"""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from pydlbench.compare.match import key, kind_of
from pydlbench.compare.rows import side_of_documents
from pydlbench.compare.statistics import pooled, quantile
from pydlbench.compare.stored import repetitions, seconds_of
from pydlbench.records.measurement import HOURS, Expected

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pydlbench.compare.rows import Row
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.store.reader import Reader

#: The share of other hours in which a row's median lies within the interval.
LEVEL: Final = 0.9


def with_expected(run: RunRecord, rows: Sequence[Measurement], store: Reader) -> list[Measurement]:
    """Return rows of a run with what is expected of them in another hour.

    Args:
        run: when, where and with what they were measured.
        rows: all or some of its rows.
        store: where runs of the same code, machine, libraries and settings are.
    """
    own = side_of_documents("", run, [row.to_dict() for row in rows])
    keys = [key(row) for row in own.rows]
    hours = defaultdict(list, {run.created_utc[:13]: [seconds_of(own, keys)]})
    for _, hour, seconds in repetitions(store, [own], keys, {own.run_id}):
        hours[hour].append(seconds)
    return [
        msgspec.structs.replace(row, expected_s=interval)
        for row, interval in zip(rows, expected(own.rows, hours.values()), strict=True)
    ]


def expected(
    rows: Sequence[Row], hours: Collection[Sequence[Mapping[Any, float]]]
) -> list[Expected | None]:
    """Return for each row in which interval its median lies in another hour.

    Args:
        rows: of a run.
        hours: of each hour the runs that began in it, seconds by key.

    Returns:
        None for a row with undisturbed times of fewer than
        :data:`~pydlbench.records.measurement.HOURS` hours.
    """
    logs = [_means(runs) for runs in hours]
    own = [[hour[name] for hour in logs if name in hour] for name in map(key, rows)]
    counts = np.array([len(means) for means in own])
    squares = [math.fsum((each - fmean(means)) ** 2 for each in means) for means in own]
    kinds = np.array([kind_of(row) for row in rows])
    sd, freedom = pooled(np.array(squares), np.maximum(counts - 1, 0), kinds)
    intervals: list[Expected | None] = []
    for means, deviation, known in zip(own, sd.tolist(), freedom.tolist(), strict=True):
        if len(means) < HOURS:
            intervals.append(None)
            continue
        # Whatever moves all rows of an hour is drawn once an hour.
        reach = quantile(LEVEL, min(int(known), len(logs) - 1)) * deviation
        reach *= math.sqrt(1 + 1 / len(means))
        low, high = (math.exp(fmean(means) + sign * reach) for sign in (-1, 1))
        intervals.append(Expected(low=low, high=high, hours=len(means)))
    return intervals


def _means(runs: Sequence[Mapping[Any, float]]) -> dict[Any, float]:
    """Return the mean logarithm of each row over the runs of an hour."""
    logs = defaultdict(list)
    for run in runs:
        for name, seconds in run.items():
            logs[name].append(math.log(seconds))
    return {name: fmean(own) for name, own in logs.items()}

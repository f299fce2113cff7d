"""Prediction intervals of a row's next measurement, from stored runs of the same code.

Repetitions within a run do not show how a machine changes over hours; the scatter of stored runs
at least half an hour apart does. Rows of one kind share their common scatter, except those that
scatter more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pydlbench.compare.match import key, kinds_of
from pydlbench.compare.rows import SideRow, side_of_documents
from pydlbench.compare.statistics import quantile, scatter_of
from pydlbench.compare.stored import repetitions, spread
from pydlbench.records.measurement import LATER_LEVEL, OCCASIONS, Expected, Measurement
from pydlbench.records.run import RunRecord
from pydlbench.store.reader import Reader


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

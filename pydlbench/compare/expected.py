"""What to expect of a row's next measurement, from stored runs of the same code.

What a machine does over hours no repetition within a run sees. Where runs half an hour apart or
more are stored, their scatter tells it. Rows of a kind are as steady as they are together, but for
those that scatter more than their kind.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.compare.match import key, kinds_of
from pydlbench.compare.rows import side_of_documents
from pydlbench.compare.statistics import quantile, scatter_of
from pydlbench.compare.stored import repetitions, spread
from pydlbench.records.measurement import LATER_LEVEL, OCCASIONS, Expected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.compare.rows import Row
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.store.reader import Reader


def with_expected(run: RunRecord, rows: Sequence[Measurement], store: Reader) -> list[Measurement]:
    """Return rows of a run with what is expected of them in a later one.

    Args:
        run: when, where and with what they were measured.
        rows: all or some of its rows.
        store: where runs of the same code, machine, libraries and settings are.
    """
    own = side_of_documents("", run, [row.to_dict() for row in rows])
    runs = repetitions(store, own, {key(row) for row in own.rows})
    return [
        msgspec.structs.replace(row, expected_s=interval) if row.ok else row
        for row, interval in zip(rows, expected(own.rows, runs), strict=True)
    ]


def expected(rows: Sequence[Row], runs: Sequence[Mapping[Any, float]]) -> list[Expected | None]:
    """Return for each row in which interval its median lies in a later run.

    Args:
        rows: of a run.
        runs: seconds by key, of :func:`~pydlbench.compare.stored.repetitions`.

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

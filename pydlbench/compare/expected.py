"""What to expect of a row's next measurement, from stored runs of the same code.

What a machine does over hours no repetition within a run sees. Where runs of some occasions are
stored, half an hour apart or more, their scatter tells it. Each occasion counts once, with the
first of its runs: a mean of several would scatter less than the single run that is expected. Rows
of a kind are as steady as they are together, but for those that scatter more than their kind.
"""

from __future__ import annotations

import datetime as dt
import math
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from pydlbench.compare.match import key, kinds_of
from pydlbench.compare.rows import side_of_documents
from pydlbench.compare.statistics import pooled, quantile
from pydlbench.compare.stored import repetitions, seconds_of
from pydlbench.records.measurement import LATER_LEVEL, OCCASIONS, Expected

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydlbench.compare.rows import Row
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.store.reader import Reader

# Runs behind one another share what the machine does then.
_APART: Final = dt.timedelta(minutes=30)


def with_expected(run: RunRecord, rows: Sequence[Measurement], store: Reader) -> list[Measurement]:
    """Return rows of a run with what is expected of them in a later one.

    Args:
        run: when, where and with what they were measured.
        rows: all or some of its rows.
        store: where runs of the same code, machine, libraries and settings are.
    """
    own = side_of_documents("", run, [row.to_dict() for row in rows])
    keys = {key(row) for row in own.rows}
    runs = [(run.created_utc, seconds_of(own, keys))]
    runs += [(when, each) for _, when, each in repetitions(store, [own], keys, {own.run_id})]
    return [
        msgspec.structs.replace(row, expected_s=interval) if row.ok else row
        for row, interval in zip(rows, expected(own.rows, occasions(runs)), strict=True)
    ]


def occasions(
    runs: Iterable[tuple[str, Mapping[Any, float]]],
) -> list[list[Mapping[Any, float]]]:
    """Return runs together that began within half an hour of the first of them.

    Args:
        runs: when each began, in ISO 8601, and its seconds by key.
    """
    together: list[list[Mapping[Any, float]]] = []
    began: dt.datetime | None = None
    for when, seconds in sorted(runs, key=lambda run: run[0]):
        time = dt.datetime.fromisoformat(when)
        if began is None or time - began >= _APART:
            began = time
            together.append([])
        together[-1].append(seconds)
    return together


def expected(
    rows: Sequence[Row], runs: Sequence[Sequence[Mapping[Any, float]]]
) -> list[Expected | None]:
    """Return for each row in which interval its median lies in a later run.

    Args:
        rows: of a run.
        runs: seconds by key, those of an occasion together.

    Returns:
        None for a row with undisturbed times of fewer than
        :data:`~pydlbench.records.measurement.OCCASIONS` occasions.
    """
    logs = [_first(together) for together in runs]
    own = [[occasion[name] for occasion in logs if name in occasion] for name in map(key, rows)]
    counts = np.array([len(each) for each in own])
    squares = [math.fsum((log - fmean(each)) ** 2 for log in each) for each in own]
    sd, freedom = pooled(np.array(squares), np.maximum(counts - 1, 0), kinds_of(rows))
    intervals: list[Expected | None] = []
    for each, deviation, known in zip(own, sd.tolist(), freedom.tolist(), strict=True):
        if len(each) < OCCASIONS:
            intervals.append(None)
            continue
        # Whatever moves all rows of an occasion is drawn once.
        reach = quantile(LATER_LEVEL, min(int(known), len(logs) - 1)) * deviation
        reach *= math.sqrt(1 + 1 / len(each))
        low, high = (math.exp(fmean(each) + sign * reach) for sign in (-1, 1))
        intervals.append(Expected(low=low, high=high, occasions=len(each)))
    return intervals


def _first(runs: Sequence[Mapping[Any, float]]) -> dict[Any, float]:
    """Return the logarithm of each row in the first of an occasion's runs that has it."""
    return {name: math.log(seconds) for run in reversed(runs) for name, seconds in run.items()}

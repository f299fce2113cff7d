"""The estimates of a run that is kept, summed again from its rows and shown as ``model`` does."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.compose import Plan
    from pydlbench.results import Measurement
    from pydlbench.results.store import Loaded

__all__ = ["show_estimates"]


def show_estimates(run: Loaded) -> None:
    """Print every estimate of a run.

    One whose kernels are not all in the run, or do not add up to what was kept (another version
    may have planned the step in another way), is a line with what was kept.
    """
    from pydlbench.results import Measurement

    every = [Measurement.from_dict(entry.document) for entry in run.table("layer")]
    for number, entry in enumerate(run.table("estimate")):
        text = _table(run, every, entry.document) or _summary(entry.document)
        print(f"\n{text}" if number else text, flush=True)


def _table(run: Loaded, every: Sequence[Measurement], document: Mapping[str, Any]) -> str | None:
    """Return the whole report, or None where the run's rows do not add up to the estimate."""
    from pydlbench.compose import estimate
    from pydlbench.models.counts import memory
    from pydlbench.report.model_table import render_model
    from pydlbench.report.style import Style

    wanted = _plan(document)
    # A file has null where there is no number.
    kept = document["estimate"].get("time_s") or math.nan
    if wanted is None:
        return None
    for rows in _rows(wanted, every, document.get("threads")):
        found = estimate(wanted, rows)
        if math.isclose(found.time.middle, kept, rel_tol=1e-9):
            return render_model(
                run.record,
                wanted,
                found,
                memory(wanted.model, wanted.phase, wanted.precision),
                libraries=sorted({one.library for one in rows.values() if one.library}),
                style=Style.of(sys.stdout),
            )
    return None


def _plan(document: Mapping[str, Any]) -> Plan | None:
    from pydlbench.compose import plan
    from pydlbench.models import build_model

    if "cache_bytes" not in document:
        return None
    model = build_model(document["model"], document["batch"], **document.get("options", {}))
    return plan(
        model,
        document["phase"],
        document["precision"],
        document.get("device", "cpu"),
        document["cache_bytes"],
    )


def _rows(
    wanted: Plan, every: Sequence[Measurement], threads: int | None
) -> Iterator[dict[Case, Measurement]]:
    """Yield what may be the rows of a plan: those in its order, then those of the same kernels."""
    if len(every) == len(wanted.cases):
        yield dict(zip(wanted.cases, every, strict=True))
    by_kernel: dict[Any, list[Measurement]] = {}
    for row in every:
        if threads is None or row.threads in (None, threads):
            by_kernel.setdefault(_kernel(row), []).append(row)
    found = {}
    for case in wanted.cases:
        rows = by_kernel.get(_kernel_of(case))
        if not rows:
            return
        # Poolings of one shape may differ in what they compute: the one of this name first.
        found[case] = next((row for row in rows if row.layer == case.layer.name), rows[0])
    yield found


def _kernel(row: Measurement) -> tuple[Any, ...]:
    return (
        *(row.problem, row.pass_, row.precision, row.propagation, row.cache, row.layout_request),
        *(row.backend, row.mode, row.device, row.fuse),
    )


def _kernel_of(case: Case) -> tuple[Any, ...]:
    return (
        *(case.layer.problem, case.pass_, case.precision, case.propagation, case.cache),
        *(case.layout, case.backend, case.mode, case.device, case.fuse),
    )


def _summary(document: Mapping[str, Any]) -> str:
    from pydlbench.results.columns import time_in, time_unit

    found = document["estimate"]
    words = f"{document['model']}  batch {document['batch']}  {document['phase']}"
    bounds = [found.get(name) for name in ("low", "high")]
    known = [value for value in bounds if isinstance(value, (int, float))]
    unit = time_unit(known or [1.0])
    between = " to ".join(time_in(unit, value) for value in known) or "unknown"
    return f"{words}  {document['precision']}  estimate {between}"

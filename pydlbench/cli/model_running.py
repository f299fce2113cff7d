"""Measures the kernels behind an estimate, and sums them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.backends.case import Case
    from pydlbench.cli.model_request import ModelRequest
    from pydlbench.cli.recording import Recorder
    from pydlbench.compose import Estimate, Plan
    from pydlbench.results import Measurement

__all__ = ["Summed", "measure", "summed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """What came of a model.

    Attributes:
        wanted: the plan.
        rows: a measurement for each of its cases.
        estimate: their sum.
        memory: bytes by what they are for.
        document: the JSON object, all of it but the run and the kernels' rows.
    """

    wanted: Plan
    rows: Mapping[Case, Measurement]
    estimate: Estimate
    memory: dict[str, int]
    document: dict[str, Any]


def measure(
    session: Any, wanted: Plan, recorder: Recorder, *, quiet: bool
) -> tuple[dict[Case, Measurement], bool]:
    """Measure a plan's cases.

    Args:
        session: to measure with.
        wanted: the plan.
        recorder: keeps every row as soon as it is finished.
        quiet: no progress.

    Returns:
        What was finished, and whether Ctrl-C came before all was.
    """
    from pydlbench.cli.interrupts import OneInterrupt
    from pydlbench.cli.progress import Progress

    progress = Progress(sys.stderr, quiet=quiet)
    rows: dict[Case, Measurement] = {}
    interrupted = False
    with OneInterrupt() as interrupts:
        try:
            try:
                for case, row in zip(
                    wanted.cases, session.measure(wanted.cases, progress=progress), strict=True
                ):
                    rows[case] = replace(row, samples_s=None)
                    recorder.layer(row)
            finally:
                interrupts.ignore()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            progress.close()
    return rows, interrupted


def summed(
    asked: ModelRequest, wanted: Plan, rows: Mapping[Case, Measurement], cache_bytes: int
) -> Summed:
    """Sum the kernels of a step.

    Args:
        asked: the step.
        wanted: its plan.
        rows: a measurement for each of the plan's cases.
        cache_bytes: of the device's last cache, as the plan was made with.
    """
    from pydlbench.compose import estimate
    from pydlbench.models.counts import memory

    found = estimate(wanted, rows)
    needs = memory(asked.model, asked.phase, asked.precision)
    document = {
        "model": asked.model.name,
        "batch": asked.model.batch,
        "phase": asked.phase,
        "precision": asked.precision,
        **found.to_dict(),
        "memory_bytes": needs,
        "options": dict(asked.variant),
        "device": asked.device,
        "threads": next((one.threads for one in rows.values() if one.threads), None),
        "cache_bytes": cache_bytes,
    }
    return Summed(wanted=wanted, rows=rows, estimate=found, memory=needs, document=document)

"""Products with so few rows that reading their weights is most of the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.commands import again
from pydlbench.diagnose.experiments import StepChange
from pydlbench.diagnose.finding import ALL, Hypothesis
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Observations

__all__ = ["find"]

# Of the step.
_LARGE: Final = 0.05


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield twice the batch, where weights are streamed from memory for few images."""
    found: dict[str, float] = {}
    for term in seen.plan.terms:
        row = seen.rows[term.hot]
        if term.work.layer.kind != "gemm" or row.roofline is None or row.time is None:
            continue
        if row.roofline.bound == "memory":
            found[term.work.node] = found.get(term.work.node, 0.0) + row.time.median
    seconds = sum(found.values())
    if seconds < _LARGE * seen.step_s:
        return
    batch = 2 * seen.model.batch
    names = sorted(found, key=lambda name: -found[name])[:3]
    yield Hypothesis(
        problem="small batch",
        symptom=f"{', '.join(names)}: weights are read from memory for {seen.model.batch} images "
        f"only, {format_percent(seconds / seen.step_s)} of the step",
        evidence=(f"{format_seconds(seconds)} in native rows that memory bounds",),
        cause="weights are read once per step, whatever the batch: more images share the cost",
        experiment=StepChange(what=f"batch {batch}", changes=(("batch", batch),), images=2),
        next=again(seen.changed(batch=batch)),
        parts=frozenset({ALL}),
        most_s=seconds,
    )

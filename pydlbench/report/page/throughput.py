"""Images per second of whole steps, wherever a run has measured one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydlbench.report.page.cleaning import positive
from pydlbench.report.page.markup import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.report.page.runs import PageRun
    from pydlbench.results import TimeSummary

__all__ = ["Rate", "rates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One framework's step.

    Attributes:
        model: its name.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        who: framework and mode.
        device: ``cpu`` or ``cuda:N``.
        seconds: of a step, the median.
        low: images per second at the slow end of the interval; None without one.
        high: at the fast end.
        n: samples, or rounds.
        contended: other work disturbed it.
        run: number of the run.
    """

    model: str
    batch: int
    phase: str
    precision: str
    who: str
    device: str
    seconds: float
    low: float | None
    high: float | None
    n: int
    contended: bool
    run: int

    @property
    def images_per_s(self) -> float:
        """Images over the median."""
        return self.batch / self.seconds


def rates(runs: Sequence[PageRun]) -> list[Rate]:
    """Return the steps of ``e2e``, ``check`` and ``diagnose``, in the order of the runs."""
    found = []
    for run in runs:
        for step in run.steps:
            case, record = step.record.case, step.record
            if record.time is None or not record.ok or not case.batch:
                continue
            words = (case.model, case.phase, case.precision, case.framework, case.mode, case.device)
            found.append(_rate(run, words, case.batch, record.time, record.contended))
        for check in run.checks:
            one = check.record
            if one is not None and one.batch:
                words = (one.model, one.phase, one.precision, one.framework, one.mode, "cpu")
                found.append(_rate(run, words, one.batch, one.measured, contended=False))
    return found


def _rate(
    run: PageRun,
    words: tuple[str | None, ...],
    batch: int,
    time: TimeSummary,
    contended: bool,
) -> Rate:
    model, phase, precision, framework, mode, device = (plain(word, 40) for word in words)
    low, high = positive(time.ci_low), positive(time.ci_high)
    return Rate(
        model=model,
        batch=batch,
        phase=phase,
        precision=precision,
        who=f"{framework} {mode}",
        device=device,
        seconds=time.median,
        low=batch / high if low and high else None,
        high=batch / low if low and high else None,
        n=time.n,
        contended=contended,
        run=run.number,
    )

"""Images per second of whole steps, wherever a run has measured one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.report.page.cleaning import positive
from pydlbench.report.page.markup import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.endtoend import StepCase
    from pydlbench.report.page.runs import PageRun
    from pydlbench.results import TimeSummary

__all__ = ["Rate", "framework_text", "options_text", "rates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One framework's step.

    Attributes:
        model: its name, with the options of a variant.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        who: framework and mode, with what is not as by default.
        device: ``cpu`` or ``cuda:N``.
        machine: product name of the processor.
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
    machine: str
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


def options_text(options: Mapping[str, Any]) -> str:
    """Return the options of a model's variant: ``lrn=off``; nothing of the model itself."""
    return " ".join(f"{name}={options[name]}" for name in sorted(options))


def framework_text(case: StepCase) -> str:
    """Return framework and mode of a step, and whatever of it is not as by default."""
    words = [case.framework, case.mode, case.layout if case.layout != "nhwc" else None]
    words += [case.feed if case.feed != "resident" else None, "fetch" if case.fetch else None]
    words += [case.cast if case.precision != "fp32" and case.cast != "mixed" else None]
    words += [None if case.dropout else "without dropout"]
    words += ["running statistics" if case.running_statistics else None]
    return " ".join(filter(None, words))


def rates(runs: Sequence[PageRun]) -> list[Rate]:
    """Return the steps of ``e2e``, ``check`` and ``diagnose``, in the order of the runs."""
    found = []
    for run in runs:
        for step in run.steps:
            case, record = step.record.case, step.record
            if record.time is None or not record.ok or not case.batch:
                continue
            model = f"{case.model} {options_text(case.options)}".strip()
            words = (model, case.phase, case.precision, framework_text(case), case.device)
            found.append(_rate(run, words, case.batch, record.time, record.contended))
        for check in run.checks:
            one = check.record
            if one is not None and one.batch:
                model = f"{one.model} {options_text(one.options)}".strip()
                words = (model, one.phase, one.precision, check.who, "cpu")
                found.append(_rate(run, words, one.batch, one.measured, contended=False))
    return found


def _rate(
    run: PageRun,
    words: tuple[str | None, ...],
    batch: int,
    time: TimeSummary,
    contended: bool,
) -> Rate:
    model, phase, precision, who, device = (plain(word, 60) for word in words)
    low, high = positive(time.ci_low), positive(time.ci_high)
    return Rate(
        model=model,
        batch=batch,
        phase=phase,
        precision=precision,
        who=who,
        device=device,
        machine=run.machine,
        seconds=time.median,
        low=batch / high if low and high else None,
        high=batch / low if low and high else None,
        n=time.n,
        contended=contended,
        run=run.number,
    )

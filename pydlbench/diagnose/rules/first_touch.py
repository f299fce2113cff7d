"""Memory that is touched for the first time in every step: each page costs a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.commands import faults_command
from pydlbench.diagnose.experiments import Rounds, StepChange
from pydlbench.diagnose.finding import WORTH, Hypothesis
from pydlbench.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.experiments import Experiment
    from pydlbench.diagnose.observations import Observations

__all__ = ["find"]

_PAGE: Final = 4096
# No fault costs more: the kernel clears a page in less than a microsecond, and the fault itself
# takes one or two on a virtual machine.
_MOST_PER_FAULT_S: Final = 5e-6
# Rounds without which there is no interval.
_ROUNDS: Final = 6
_CAUSE: Final = (
    "the C library gives large blocks back to the system when they are freed, and gets new ones "
    "for the next result: the kernel clears each page and maps it, while the step waits"
)


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield what huge pages, and pages that are kept, would save."""
    faults = seen.step.faults
    if faults is None or seen.case.on_gpu:
        return
    most = min(faults * _MOST_PER_FAULT_S, seen.step_s)
    if most < WORTH * seen.step_s:
        return
    symptom = f"{faults:.0f} page faults in each step: {format_bytes(faults * _PAGE)} of new memory"
    evidence = ["page faults counted by the kernel around the samples"]
    term = seen.term("allocation, first touch")
    if term is not None:
        share = format_percent(term.share)
        evidence.append(f"cross-check: {format_seconds(term.seconds)} ({share}): {term.how}")
    for experiment in (_HUGE, _kept(seen)):
        yield Hypothesis(
            problem="first touch of fresh memory",
            symptom=symptom,
            evidence=tuple(evidence),
            cause=_CAUSE,
            experiment=experiment,
            next=faults_command(seen.case),
            parts=frozenset({"allocation"}),
            most_s=most,
        )


_HUGE: Final = StepChange(
    what="huge pages (GLIBC_TUNABLES=glibc.malloc.hugetlb=1)", allocator="huge pages"
)
_KEPT: Final = StepChange(
    what="an allocator that keeps its pages (MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296)",
    allocator="kept pages",
)


def _kept(seen: Observations) -> Experiment:
    """An allocator that keeps its pages; the cross-check may have run the step with it already."""
    rounds = () if seen.check is None else seen.check.rounds
    if len(rounds) >= _ROUNDS:
        pairs = tuple((one.measured_s, one.kept_s) for one in rounds)
        return Rounds(what=_KEPT.what, pairs=pairs, again=_KEPT)
    return _KEPT

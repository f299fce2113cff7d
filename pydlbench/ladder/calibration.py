"""What steps take besides their operators, fitted to steps of networks of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pydlbench.backends.steps.device import WAYS
from pydlbench.ladder.rows import undisturbed
from pydlbench.records.forecast import CalibrationRecord
from pydlbench.records.step import StepPreparation
from pydlbench.steps.prepare import prepare_step
from pydlbench.timing.chunk import Request
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.records.forecast import CalibratedStep, Place
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session

# Steps in which page faults are counted, and those before by which the allocator learns what it
# gives back.
_COUNTED = 2
# Seconds of sampling of a step in a visit where nobody says otherwise, and bounds of its samples.
_STEP_S = 0.4
_LEAST, _MOST = 5, 60


def fitted(
    place: Place, phase: str, when: str, steps: Sequence[CalibratedStep]
) -> CalibrationRecord:
    """Fit the cost of a call and of a step to steps of networks of ours.

    Both are at least zero, and have the least sum of squares of the relative residuals.

    Args:
        place: where the steps ran.
        phase: of them.
        when: the time of day, in ISO 8601.
        steps: sums and times.

    Raises:
        ValueError: fewer than two.
    """
    if len(steps) < 2:
        raise ValueError(f"{len(steps)} steps fit no two costs")
    measured = [median(one.visits_s) for one in steps]
    known = [one.operators_s + (one.faults_s or 0.0) for one in steps]
    rest = [(m - k) / m for m, k in zip(measured, known, strict=True)]
    columns = [
        [one.calls / m for one, m in zip(steps, measured, strict=True)],
        [1 / m for m in measured],
    ]
    call_s, step_s = _least_squares(columns, rest)
    residuals = [
        (k + call_s * one.calls + step_s - m) / m
        for one, k, m in zip(steps, known, measured, strict=True)
    ]
    return CalibrationRecord(
        place=place,
        phase=phase,
        created_utc=when,
        call_s=call_s,
        step_s=step_s,
        residual=max(map(abs, residuals)),
        steps=tuple(
            msgspec.structs.replace(one, residual=residual)
            for one, residual in zip(steps, residuals, strict=True)
        ),
    )


def _least_squares(
    columns: Sequence[Sequence[float]], wanted: Sequence[float]
) -> tuple[float, float]:
    """Return two factors, none below zero, by which the columns' sum is nearest to the wanted."""
    first, second = columns
    aa, bb, ab = _dot(first, first), _dot(second, second), _dot(first, second)
    ay, by = _dot(first, wanted), _dot(second, wanted)
    determinant = aa * bb - ab * ab
    if determinant > 1e-12 * aa * bb:
        x, y = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
        if x >= 0 and y >= 0:
            return x, y
    # On the edge one of them is zero.
    candidates = [(max(0.0, ay / aa), 0.0), (0.0, max(0.0, by / bb))]

    def squares(pair: tuple[float, float]) -> float:
        x, y = pair
        return sum((w - x * a - y * b) ** 2 for w, a, b in zip(wanted, first, second, strict=True))

    return min(candidates, key=squares)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def visited_step(case: StepSpec, session: Session, seconds: float = _STEP_S) -> tuple[float, bool]:
    """Run a step in a process of its own.

    Args:
        case: the step.
        session: whose worker is ended before and after.
        seconds: of sampling.

    Returns:
        Seconds of a step, the median, on a GPU those of the host to enqueue it; and whether the
        cores were ours meanwhile.

    Raises:
        UnsupportedError: the framework has not what is asked for.
        WorkerError: the worker died.
    """
    worker = session.worker(case.framework, case.device)
    worker.close()
    kernel = prepare_step(case, session, preparation=StepPreparation(checks=False))
    try:
        way = WAYS[1] if case.on_gpu else ""
        once = median(kernel.sample(Request(samples=2, untimed=2, timing=way)).seconds)
        count = min(_MOST, max(_LEAST, int(seconds / max(once, 1e-6))))
        request = Request(samples=count, untimed=1, timing=way)
        chunk, ours = undisturbed(kernel, request, session)
        return median(chunk.enqueue_s if case.on_gpu else chunk.seconds), ours
    finally:
        kernel.release()
        worker.close()


def counted_faults(case: StepSpec, session: Session) -> float | None:
    """Run a step in a process of its own, and count the page faults that it has there.

    How many of its blocks are fresh depends on all that the process has given back before, so that
    it is made ready as one that is timed. What the step takes is not looked at.

    Args:
        case: the step, on a CPU.
        session: whose worker is ended before and after.

    Returns:
        Page faults of a step; None where nobody counts them.

    Raises:
        UnsupportedError: the framework has not what is asked for.
        WorkerError: the worker died.
    """
    worker = session.worker(case.framework, case.device)
    worker.close()
    try:
        kernel = prepare_step(case, session, preparation=StepPreparation(checks=False))
        return kernel.sample(Request(samples=_COUNTED, untimed=_COUNTED)).faults
    finally:
        worker.close()

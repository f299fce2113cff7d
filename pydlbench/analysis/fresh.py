"""A step in a process of its own: what it takes, and its page faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.analysis.rows import undisturbed
from pydlbench.backends.steps.device import WAYS
from pydlbench.records.step import StepPreparation
from pydlbench.steps.prepare import prepare_step
from pydlbench.timing.chunk import Request
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session

# Steps in which page faults are counted, and those before by which the allocator learns what it
# gives back.
_COUNTED = 2
# Seconds of sampling of a step in a visit where nobody says otherwise, and bounds of its samples.
_STEP_S = 0.4
_LEAST, _MOST = 5, 60


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

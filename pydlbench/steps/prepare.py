"""Prepares steps in their framework's process."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pydlbench.backends.steps import requests
from pydlbench.records.step import StepFacts, StepPreparation, StepSpec
from pydlbench.runner.session import Session
from pydlbench.words import FRAMEWORK_MODES, FRAMEWORKS
from pydlbench.workers.host import RemoteKernel


def prepare_step(
    step: StepSpec,
    session: Session,
    *,
    allocator: str | None = None,
    preparation: StepPreparation | None = None,
) -> RemoteKernel[StepFacts]:
    """Prepare a step in its framework's process; raises the error of that process.

    Args:
        step: the step.
        session: provides the workers.
        allocator: allocator of that process, see :meth:`pydlbench.runner.session.Session.worker`.
        preparation: the checks; None means all checks.

    Returns:
        A kernel to sample.
    """
    return session.worker(step.framework, step.device, allocator=allocator).build(
        requests.request_step,
        StepFacts,
        spec=step.to_dict(),
        preparation=preparation or StepPreparation(),
    )


def in_own_framework(steps: Sequence[StepSpec], session: Session) -> list[StepSpec]:
    """Return the steps of a user's model in the framework of the model.

    Modes become their counterparts. The user's code runs once for that, in a worker.

    Args:
        steps: steps of one model, in the framework of the worker.
        session: provides the worker.

    Raises:
        PydlbenchError: the user's code failed.
    """
    first = steps[0]
    worker = session.worker(first.framework, first.device)
    framework = worker.call(requests.request_framework, lambda _: None, spec=first.to_dict())
    if framework == first.framework or framework not in FRAMEWORKS:
        return list(steps)
    worker.close()  # it has both frameworks by now
    places = FRAMEWORK_MODES[first.framework]
    return [
        msgspec.structs.replace(
            step, framework=framework, mode=FRAMEWORK_MODES[framework][places.index(str(step.mode))]
        )
        for step in steps
    ]

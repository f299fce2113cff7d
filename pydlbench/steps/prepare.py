"""Steps made ready in their framework's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pydlbench.backends.steps import requests
from pydlbench.records.step import StepFacts, StepPreparation
from pydlbench.words import FRAMEWORK_MODES, FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.workers.host import RemoteKernel


def prepare_step(
    step: StepSpec,
    session: Session,
    *,
    allocator: str | None = None,
    preparation: StepPreparation | None = None,
) -> RemoteKernel[StepFacts]:
    """Have a step made ready in its framework's process; raises what is raised there.

    Args:
        step: the step.
        session: whose workers are used.
        allocator: of that process, see :meth:`pydlbench.runner.session.Session.worker`.
        preparation: with which checks; None is all of them.

    Returns:
        A kernel to sample.
    """
    worker = session.worker(step.framework, step.device, allocator=allocator)
    how = preparation or StepPreparation()
    return worker.build(requests.request_step, StepFacts, spec=step.to_dict(), preparation=how)


def settled(steps: Sequence[StepSpec], session: Session) -> list[StepSpec]:
    """Return steps of a model of the user's own in the framework that the model is of.

    Modes become their counterparts. The user's code runs once more for it, in a worker.

    Args:
        steps: of one model, in the framework whose worker is asked.
        session: whose worker.

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

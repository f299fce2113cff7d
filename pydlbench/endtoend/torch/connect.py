"""From a graph to a step of PyTorch that can be checked and timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pydlbench.backends.frameworks.kernel import HostClock
from pydlbench.endtoend.connection import Connection
from pydlbench.endtoend.torch import numbers
from pydlbench.endtoend.torch.inspection import Inspection
from pydlbench.endtoend.torch.net import Net
from pydlbench.endtoend.torch.steps import TorchStep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.endtoend.inputs import Batch
    from pydlbench.endtoend.step import StepCase
    from pydlbench.models.graph import Model
    from pydlbench.timing.chunk import Chunk, Request

__all__ = ["connect"]


class _Clock(HostClock):
    """The host's clock, with the step's switches set around its samples."""

    def __init__(self, step: TorchStep, cpus: Any) -> None:
        operator: Any = step  # it has no outputs by role, which the clock never asks for
        super().__init__(operator, cpus)
        self._case = step.case

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples."""
        with numbers.tensor_float(self._case):
            return super().sample(request)


def connect(
    backend: Any,
    model: Model,
    weights: Mapping[str, NDArray[Any]],
    case: StepCase,
    batch: Batch,
) -> Connection:
    """Build a step in PyTorch; it has been called once, so it is compiled.

    Args:
        backend: PyTorch's, which has set threads and arithmetic.
        model: the graph.
        weights: by name.
        case: how it is run.
        batch: images and labels.

    Raises:
        UnsupportedError: PyTorch has no such precision on this device.
        UsageError: a training phase without an optimizer.
    """
    numbers.check(case)
    net = Net(model)
    net.load(weights)
    step = TorchStep(net, case, batch)
    step.call()
    step.wait()
    notes = []
    if case.backward and case.mode == "compiled":
        notes.append("network and loss are compiled as one function, the optimizer is not")
    return Connection(
        subject=Inspection(step),
        clock=_Clock(step, backend.cpus),
        library=f"torch {torch.__version__}",
        notes=tuple(notes),
        gpu=_gpu(step.place) if case.on_gpu else None,
    )


def _gpu(place: torch.device) -> dict[str, Any]:
    facts = torch.cuda.get_device_properties(place)
    return {
        "name": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "memory_bytes": facts.total_memory,
    }

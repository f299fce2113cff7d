"""From a graph to a step of TensorFlow that can be checked and timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.backends.tensorflow.arithmetic import arithmetic
from pydlbench.backends.tensorflow.operator import Clock
from pydlbench.backends.tensorflow.refusals import translated
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.devices.cpu.read import read_cpu_facts
from pydlbench.endtoend.connection import Connection
from pydlbench.endtoend.tensorflow.inspection import Inspection
from pydlbench.endtoend.tensorflow.steps import TensorflowStep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.frameworks.kernel import HostClock
    from pydlbench.endtoend.inputs import Batch
    from pydlbench.endtoend.step import StepCase
    from pydlbench.models.graph import Model

__all__ = ["connect"]


def connect(
    backend: Any,
    model: Model,
    weights: Mapping[str, NDArray[Any]],
    case: StepCase,
    batch: Batch,
) -> Connection:
    """Build a step in TensorFlow; it has been called once, so it is traced and compiled.

    Args:
        backend: TensorFlow's, which has set threads and devices.
        model: the graph.
        weights: by name.
        case: how it is run.
        batch: images and labels.

    Raises:
        UnsupportedError: TensorFlow has no such precision, layout or operator on this device.
        UsageError: a training phase without an optimizer.
    """
    numbers = arithmetic(case.precision, case.on_gpu, frozenset(read_cpu_facts().isa))
    device = "/GPU:0" if case.on_gpu else "/CPU:0"  # the only visible one
    try:
        step = TensorflowStep(model, weights, case, batch, numbers, device)
        step.settle()
        step.call()
        step.wait()
    except tf.errors.OpError as error:
        raise translated(error, f"{case.model} ({case.mode})") from error
    clock: HostClock = Clock(step, backend.cpus, step.settle)
    return Connection(
        subject=Inspection(step),
        clock=clock,
        library=f"TensorFlow {tf.__version__}",
        gpu=_gpu() if case.on_gpu else None,
    )


def _gpu() -> dict[str, Any]:
    """Return what is known of the only visible GPU."""
    (device,) = tf.config.get_visible_devices("GPU")
    facts = tf.config.experimental.get_device_details(device)
    return {
        "name": facts.get("device_name", "unknown GPU"),
        "capability": ".".join(map(str, facts.get("compute_capability", ()))),
    }

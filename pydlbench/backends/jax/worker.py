"""What JAX's worker is asked for; see ``steps.registry.FrameworkWorker``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.backends.jax.calls import prepare_allocation, prepare_calls, record_calls
from pydlbench.backends.jax.inspection import JaxInspection
from pydlbench.backends.jax.step import JaxModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.steps.inputs import Batch
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec

__all__ = ["catalogue_model", "prepare_allocation", "prepare_calls", "record_calls", "runs_files"]

#: Whether files are run, and no modules.
runs_files: Final = False


def catalogue_model(
    model: Model,
    weights: Mapping[str, NDArray[Any]],
    case: StepSpec,
    batch: Batch,
    *,
    separate: bool = False,
) -> tuple[JaxModel, type[JaxInspection]]:
    """Build a model of the catalogue; passes of one kind of gradient are refused by its steps."""
    del separate
    return JaxModel(model, weights, case, batch), JaxInspection

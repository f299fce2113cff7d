"""What each framework can do with steps: the module ``worker`` in ``backends/<framework>``.

Every request takes the same path. The host builds a kernel in a worker process by naming a
function of :mod:`pydlbench.backends.steps.requests` (``request_step``, ``request_calls``...). That
function runs in the worker and is answered by a function that begins with ``serve``: steps by
:mod:`pydlbench.backends.steps.serving`, calls by the framework's own module, whose interface is
:class:`FrameworkWorker`. That module is imported in the framework's process only.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from numpy.typing import NDArray

from pydlbench.backends.steps.catalogue import CatalogueModel
from pydlbench.backends.steps.definition import StepModel
from pydlbench.backends.steps.device import DeviceOperators
from pydlbench.backends.steps.inputs import Batch
from pydlbench.backends.steps.timed_calls import LoggedOperators, OperatorsKernel
from pydlbench.models.graph import Model
from pydlbench.records.step import StepSpec


class FrameworkWorker(Protocol):
    """The module of a framework; a function that it does not define is not supported.

    Attributes:
        runs_files: whether all models are files, including models of the catalogue.
    """

    runs_files: bool

    def user_model(self, backend: Any, spec: StepSpec) -> StepModel:
        """Build a user model with the step of a case."""

    def catalogue_model(
        self,
        model: Model,
        weights: Mapping[str, NDArray[Any]],
        spec: StepSpec,
        batch: Batch,
        *,
        separate: bool = False,
    ) -> CatalogueModel:
        """Build a model of the catalogue.

        Args:
            model: the graph.
            weights: initial values, by name.
            spec: how the model is run.
            batch: images and labels.
            separate: whether single passes of one kind of gradient will be prepared.
        """

    def serve_call_list(self, backend: Any, spec: StepSpec) -> OperatorsKernel:
        """List the calls of a step; see ``requests.request_call_list``."""

    def serve_calls(
        self, backend: Any, spec: StepSpec, signatures: Sequence[str]
    ) -> OperatorsKernel | DeviceOperators:
        """Prepare calls; see ``requests.request_calls``.

        A framework whose capabilities say ``makes_calls`` also takes ``of_step``.
        """

    def serve_swaps(self, backend: Any, spec: StepSpec) -> OperatorsKernel:
        """Prepare the calls of a step's swaps; see ``requests.request_swaps``."""

    def serve_logged_calls(
        self, backend: Any, spec: StepSpec, signatures: Sequence[str]
    ) -> LoggedOperators:
        """Prepare logged calls; see ``requests.request_logged_calls``."""


def worker_of(framework: str) -> FrameworkWorker:
    """Return the module of a framework, which can be imported in its own process only."""
    return cast(
        "FrameworkWorker", importlib.import_module(f"pydlbench.backends.{framework}.worker")
    )

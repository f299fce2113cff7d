"""What each framework can, asked of its folder: a module ``worker`` in ``backends/<framework>``.

It is imported in that framework's process only. What it does not define, the framework has not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.steps.catalogue import CatalogueModel
    from pydlbench.backends.steps.definition import StepModel
    from pydlbench.backends.steps.device import DeviceOperators
    from pydlbench.backends.steps.inputs import Batch
    from pydlbench.backends.steps.timed_calls import LoggedOperators, OperatorsKernel
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec


class FrameworkWorker(Protocol):
    """The module of a framework; its functions say what of ``backends.steps.operations`` is.

    Attributes:
        runs_files: whether it runs files, models of the catalogue among them, and no modules.
    """

    runs_files: bool

    def user_model(self, backend: Any, spec: StepSpec) -> StepModel:
        """Build a model of the user's own with the step of a case."""

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
            weights: to start from, by name.
            spec: how it is run.
            batch: images and labels.
            separate: whether there will be passes of one kind of gradient.
        """

    def serve_call_list(self, backend: Any, spec: StepSpec) -> OperatorsKernel:
        """List the calls of a step; see ``requests.request_call_list``."""

    def serve_calls(
        self, backend: Any, spec: StepSpec, signatures: Sequence[str]
    ) -> OperatorsKernel | DeviceOperators:
        """Make calls ready; see ``requests.request_calls``.

        That of a framework whose steps ``makes_calls`` also takes ``of_step``.
        """

    def serve_logged_calls(
        self, backend: Any, spec: StepSpec, signatures: Sequence[str]
    ) -> LoggedOperators:
        """Make logged calls ready; see ``requests.request_logged_calls``."""


def worker_of(framework: str) -> FrameworkWorker:
    """Return the module of a framework; only in its own process can it be imported."""
    return cast(
        "FrameworkWorker", importlib.import_module(f"pydlbench.backends.{framework}.worker")
    )

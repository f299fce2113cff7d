"""An ONNX file as a step: one run of an onnxruntime session, on inputs made up from its graph.

The step is what a user's loop does: ``session.run(None, inputs)``, which allocates the outputs.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from pydlbench.backends.host_clock import HostClock
from pydlbench.devices.cpu.affinity import pinned
from pydlbench.errors import ModelError, UsageError
from pydlbench.models import build_model
from pydlbench.models.own import find_onnx, is_onnx
from pydlbench.records.step import Check, StepFacts, StepKernel
from pydlbench.steps.definition import Guarded
from pydlbench.steps.onnxruntime.errors import told
from pydlbench.steps.onnxruntime.file import parameters, read_graph, types_of
from pydlbench.steps.onnxruntime.inputs import made_inputs
from pydlbench.steps.onnxruntime.profile import profile
from pydlbench.steps.own import input_texts

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Sequence
    from pathlib import Path

    from pydlbench.backends.onnxruntime.backend import OnnxruntimeBackend
    from pydlbench.records.step import StepPreparation, StepSpec


class OnnxModel(Guarded):
    """An ONNX file in a session, with its inputs.

    A context manager: within it the calling thread stays on the first of the CPUs, as the others
    stay on theirs, and what onnxruntime raises names the file.

    Args:
        backend: has the settings of sessions.
        case: the step.

    Raises:
        UsageError: the file is none, or its inputs are not those that were asked for.
        UnsupportedError: inputs of types that no random values are made of.
        InsufficientMemoryError: the inputs have no room.
    """

    def __init__(self, backend: OnnxruntimeBackend, case: StepSpec) -> None:
        super().__init__()
        self.case = case
        self._backend = backend
        self._source = _source(case)
        self.session = self.opened(self.options())
        if not self.session.get_outputs():
            raise UsageError(f"{case.model}: it has no outputs, so that there is nothing to run")
        with told(case.model, UsageError):
            self.feeds = made_inputs(case, self.session.get_inputs())

    def options(self, mode: str | None = None) -> onnxruntime.SessionOptions:
        """Return the settings of a session in a mode; None is the step's."""
        return self._backend.options(mode or str(self.case.mode))

    def graph(self) -> Any:
        """Return the file's graph as it is written."""
        return read_graph(self.case.model, self._source)

    def opened(
        self, options: onnxruntime.SessionOptions, path: Path | None = None
    ) -> onnxruntime.InferenceSession:
        """Return a session of the file, or of one that was made of it.

        Raises:
            UsageError: it is no ONNX file, or needs an operator, a version or a file of weights
                that is not there.
        """
        with told(self.case.model, UsageError):
            return onnxruntime.InferenceSession(
                self._source if path is None else path, options, providers=["CPUExecutionProvider"]
            )

    def guards(self) -> tuple[contextlib.AbstractContextManager[None], ...]:
        """Tell what onnxruntime raises; pin the calling thread."""
        return told(self.case.model, ModelError), pinned(self._backend.cpus[0])

    @property
    def batch(self) -> int:
        """The first number of the first input's shape; 1 without any."""
        first = next(iter(self.feeds.values()), None)
        return 1 if first is None or not first.ndim else len(first)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs as ``--input`` takes them, by place; empty where one has no such type."""
        return input_texts((None, one.shape, one.dtype.name) for one in self.feeds.values())

    def run(self) -> list[Any]:
        """Run the step once."""
        found: list[Any] = self.session.run(None, self.feeds)
        return found


def _source(case: StepSpec) -> str | bytes:
    """Return the path of a file; of a network of the catalogue what would be in one.

    Raises:
        UsageError: no such file or network.
        UnsupportedError: a network that is not written as a file here.
    """
    if is_onnx(case.model):
        return str(find_onnx(case.model))
    from pydlbench.steps.onnxruntime.catalog import written

    return written(build_model(case.model, case.batch, **case.options), case.seed)


def prepare_step(
    backend: OnnxruntimeBackend, case: StepSpec, preparation: StepPreparation
) -> StepKernel:
    """Make the step of an ONNX file ready; see :func:`pydlbench.steps.operations.prepare_step`.

    Its check is that the outputs are finite: there is no graph of ours to hold them against.
    """
    begin = time.perf_counter()
    made = OnnxModel(backend, case)
    graph = made.graph()
    with made:
        found = made.run()
    setup_s = time.perf_counter() - begin
    begin = time.perf_counter()
    checks: tuple[Check, ...] = ()
    seen = None
    if preparation.checks:
        checks = (_finite(made, found),)
        with made:
            seen = profile(made, made.options(), [one.name for one in graph.node])
    shapes = [one.shape for one in found if isinstance(one, np.ndarray)]
    facts = StepFacts(
        library=backend.library,
        timing="steady",
        batch=made.batch,
        output=shapes[0] if shapes else (),
        inputs=made.inputs,
        parameters=parameters(graph),
        types=types_of(graph),
        setup_s=setup_s,
        checks=checks,
        checks_s=time.perf_counter() - begin,
        notes=("its threads spin between operators, as by default",)
        if len(backend.cpus) > 1
        else (),
        environment={**backend.describe(), "module": graph.name or "a graph"},
        profile=seen,
    )
    # It has no outputs by role, which the clock never asks for.
    timed: Any = SimpleNamespace(call=made.run, wait=lambda: None)
    return StepKernel(HostClock(timed, backend.cpus, lambda: made), facts)


def _finite(made: OnnxModel, found: Sequence[Any]) -> Check:
    """Say whether the outputs are finite."""
    names = [one.name for one in made.session.get_outputs()]
    wrong = [
        f"{name} is not finite"
        for name, one in zip(names, found, strict=True)
        if isinstance(one, np.ndarray) and one.dtype.kind == "f" and not np.isfinite(one).all()
    ]
    text = "; ".join(wrong[:3]) or f"{len(found)} of {len(found)} outputs are finite"
    return Check(name="output", status="failed" if wrong else "ok", detail=text)

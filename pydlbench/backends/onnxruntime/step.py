"""An ONNX file as a step: one run of an onnxruntime session on random inputs.

As in a user's loop, the step is ``session.run(None, inputs)``, which allocates the outputs.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from pydlbench.backends.onnxruntime.backend import OnnxruntimeBackend
from pydlbench.backends.onnxruntime.file import onnx_errors, parameters, read_graph, types_of
from pydlbench.backends.steps.trace import StepTracer
from pydlbench.backends.steps.user_model import FedModel, Tensors
from pydlbench.devices.cpu.affinity import pinned
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import (
    InsufficientMemoryError,
    ModelError,
    UnsupportedError,
    UsageError,
    nearest,
)
from pydlbench.models.user_model import find_onnx
from pydlbench.records.step import StepSpec
from pydlbench.records.user_model import UserInput, UserModelSpec
from pydlbench.units import format_bytes


def _output_arrays(value: Any) -> list[NDArray[Any]]:
    several = value if isinstance(value, list) else [value]
    return [each for each in several if isinstance(each, np.ndarray)]


_TENSORS: Final = Tensors(
    find=_output_arrays,
    make=lambda values, kind: values.astype(kind),
    dtype=lambda array: str(array.dtype.name),
    is_finite=lambda array: bool(np.isfinite(array).all()),
)


class OnnxModel(FedModel):
    """An ONNX file in a session, with its inputs.

    A context manager, which pins the calling thread to the first CPU, as the other threads are
    pinned, and translates onnxruntime's errors.

    Args:
        backend: backend with the settings of sessions.
        spec: definition of the step.

    Raises:
        UsageError: the file is not an ONNX file, or the requested inputs do not match.
        UnsupportedError: there are no random values of an input's type.
        InsufficientMemoryError: the inputs do not fit in memory.
    """

    tensors = _TENSORS

    def __init__(self, backend: OnnxruntimeBackend, spec: StepSpec) -> None:
        super().__init__(spec)
        self._backend = backend
        self._source = str(find_onnx(spec.model))
        self.session = self.open_session(self.options())
        if not self.session.get_outputs():
            raise UsageError(f"{spec.model}: it has no outputs, so that there is nothing to run")
        if len(backend.cpus) > 1:
            self.notes.append("its threads spin between operators, as by default")
        with onnx_errors(spec.model, UsageError):
            self.feeds = random_inputs(spec, self.session.get_inputs())

    def options(self, mode: str | None = None) -> onnxruntime.SessionOptions:
        """Return the settings of a session in a mode; None for the step's mode."""
        return self._backend.options(mode or str(self.spec.mode))

    @functools.cached_property
    def graph(self) -> Any:
        """The file's graph."""
        return read_graph(self.spec.model, self._source)

    def open_session(
        self, options: onnxruntime.SessionOptions, path: Path | None = None
    ) -> onnxruntime.InferenceSession:
        """Return a session of the file, or of a file that was derived from it.

        Raises:
            UsageError: the file is no ONNX file, or an operator, a version or a file of weights is
                missing.
        """
        with onnx_errors(self.spec.model, UsageError):
            return onnxruntime.InferenceSession(
                self._source if path is None else path, options, providers=["CPUExecutionProvider"]
            )

    def guards(self) -> tuple[contextlib.AbstractContextManager[None], ...]:
        """Return the contexts that translate errors, and pin the calling thread."""
        return onnx_errors(self.spec.model, ModelError), pinned(self._backend.cpus[0])

    def run(self) -> list[Any]:
        """Run the step once."""
        outputs: list[Any] = self.session.run(None, self.feeds)
        return outputs

    def synchronize(self) -> None:
        """Return immediately, as a run returns with its results."""

    def tracer(self, run: Callable[[], Any]) -> StepTracer:
        """Return the tracer of the step; see ``steps.definition.StepModel``."""
        from pydlbench.backends.onnxruntime.recording import tracer

        del run  # a session profiles all of its steps or none
        return tracer(self)

    def results(self, result: list[Any]) -> Mapping[str, Mapping[str, Any]]:
        """Return the outputs that are tensors, by name."""
        pairs = zip(self.session.get_outputs(), result, strict=True)
        return {"output": {each.name: x for each, x in pairs if isinstance(x, np.ndarray)}}

    def facts(self, result: list[Any]) -> dict[str, Any]:
        """Return facts of the file."""
        return {
            **super().facts(result),
            "parameters": parameters(self.graph),
            "types": types_of(self.graph),
            "environment": {"module": self.graph.name or "a graph"},
        }

    def inputs(self) -> Iterable[tuple[str | None, Any]]:
        """Return the inputs by position, as for ``--input``."""
        return ((None, value) for value in self.feeds.values())


# -----------------------------------------------------------------------------
# The inputs of an ONNX file, from its graph, --batch and --input.

# NumPy's types, by onnxruntime's names of them.
_DTYPES: Final = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(bool)": "bool",
}


def random_inputs(spec: StepSpec, wanted: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Return random inputs by name: in [-1, 1), integers 0 or 1 or below a limit of ``--input``.

    Args:
        spec: the step with its batch and inputs.
        wanted: name, shape and type of each input, as described by onnxruntime; a dimension that is
            not a number is dynamic.

    Raises:
        UsageError: a dimension is open or zero, or the request contradicts the file.
        UnsupportedError: there are no random values of a type.
        InsufficientMemoryError: the inputs do not fit in memory.
    """
    given = _inputs_by_name(spec, wanted)
    stream = np.random.default_rng(spec.seed)
    shapes = {each.name: _shape(spec, each, given.get(each.name)) for each in wanted}
    for name, shape in list(shapes.items())[:1]:
        if spec.batch not in (None, *shape[:1]):
            raise UsageError(
                f"--batch {spec.batch}: the input {name} of {spec.model} is "
                f"{'x'.join(map(str, shape))}; nearest: leave it out"
            )
    dtypes = {each.name: _dtype(spec, each) for each in wanted}
    _check_room(spec, shapes, dtypes)
    below = {name: user_input.below for name, user_input in given.items()}
    return {
        name: _TENSORS.random(shape, dtypes[name], stream, below.get(name))
        for name, shape in shapes.items()
    }


def _check_room(
    spec: StepSpec, shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, str]
) -> None:
    """Check that inputs fit in the available memory.

    Raises:
        InsufficientMemoryError: they do not fit; the message has their size.
    """
    size = sum(math.prod(shape) * np.dtype(dtypes[name]).itemsize for name, shape in shapes.items())
    available = read_cpu_facts().memory_available_bytes
    if available is not None and size > available:
        raise InsufficientMemoryError(
            f"{spec.model}: its inputs take {format_bytes(size)} of the {format_bytes(available)} "
            "that are free; try a smaller --batch or --input"
        )


def _inputs_by_name(spec: StepSpec, wanted: Sequence[Any]) -> dict[str, UserInput]:
    """Return the inputs of ``--input`` by name; inputs without names are assigned by position."""
    names = [each.name for each in wanted]
    given: dict[str, UserInput] = {}
    inputs = (spec.own or UserModelSpec()).inputs
    for item in inputs:
        if item.name is None:
            continue
        if item.name not in names:
            near = nearest(item.name, names, 1) or names[:1]
            raise UsageError(
                f"--input {item.text}: {spec.model} has no input {item.name}; nearest: {near[0]}"
            )
        given[item.name] = item
    missing = [name for name in names if name not in given]
    plain = [each for each in inputs if each.name is None]
    if len(plain) > len(missing):
        raise UsageError(
            f"--input {plain[len(missing)].text}: {spec.model} has {len(names)} inputs only: "
            f"{', '.join(names)}; nearest: leave it out"
        )
    return given | dict(zip(missing, plain, strict=False))


def _dtype(spec: StepSpec, wanted: Any) -> str:
    if wanted.type not in _DTYPES:
        raise UnsupportedError(
            f"{spec.model}: its input {wanted.name} is a {wanted.type}; random ones are made of "
            f"{', '.join(_DTYPES)}"
        )
    return _DTYPES[wanted.type]


def _shape(spec: StepSpec, wanted: Any, given: UserInput | None) -> tuple[int, ...]:
    """Return the shape of an input; the batch is the first dimension, if it is dynamic."""
    if 0 in wanted.shape:
        shape = "x".join(map(str, wanted.shape))
        raise UsageError(f"{spec.model}: its input {wanted.name} is {shape}, without any element")
    known = [size if isinstance(size, int) and size > 0 else None for size in wanted.shape]
    shape = "x".join(str(size or "?") for size in wanted.shape)
    dtype = _dtype(spec, wanted)
    # A suggestion, with the sizes that the file defines.
    usual = [spec.batch or 8] + [128] * len(known)
    sizes = "x".join(str(size or other) for size, other in zip(known, usual, strict=False))
    near = f"--input {sizes}" + (f":{dtype}" if dtype != "float32" else "")
    if given is not None:
        fits = len(given.shape) == len(known) and all(
            expected in (None, size) for expected, size in zip(known, given.shape, strict=True)
        )
        if not fits or given.dtype != dtype:
            raise UsageError(
                f"--input {given.text}: the input {wanted.name} of {spec.model} is {shape} of "
                f"{dtype}; nearest: {near}"
            )
        return given.shape
    if spec.batch is not None and known and known[0] is None:
        known[0] = spec.batch
    if None in known:
        batched = known[0] is None and None not in known[1:]
        raise UsageError(
            f"{spec.model}: its input {wanted.name} is {shape}, which leaves dimensions open; "
            f"nearest: {'--batch 8' if batched else near}"
        )
    return tuple(size for size in known if size is not None)

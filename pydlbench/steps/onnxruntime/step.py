"""An ONNX file as a step: one run of an onnxruntime session, on inputs made up from its graph.

The step is what a user's loop does: ``session.run(None, inputs)``, which allocates the outputs.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import onnxruntime

from pydlbench.backends.base import insufficient_memory, is_out_of_memory
from pydlbench.backends.host_clock import HostClock
from pydlbench.errors import (
    BackendMissingError,
    ModelError,
    PydlbenchError,
    UnsupportedError,
    UsageError,
    nearest,
)
from pydlbench.models.own import find_onnx
from pydlbench.records.own import OwnSpec
from pydlbench.records.step import Check, StepFacts, StepKernel
from pydlbench.steps.onnxruntime.profile import profile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from pydlbench.backends.onnxruntime.backend import OnnxruntimeBackend
    from pydlbench.records.own import OwnInput
    from pydlbench.records.step import StepPreparation, StepSpec

__all__ = ["OnnxModel", "prepare_step"]

# By onnxruntime's words.
_DTYPES: Final = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}
# What onnxruntime puts around its sentences: the error's number and name, and its place in the
# source.
_NUMBER: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE: Final = re.compile(r"/\S*onnxruntime\S*\.(?:h|cc):\d+ .*?\)\s+(?=[A-Z])")


class OnnxModel:
    """An ONNX file in a session, with its inputs.

    A context manager: within it the calling thread stays on the first of the CPUs, as the others
    stay on theirs, and what onnxruntime raises names the file.

    Args:
        backend: has the settings of sessions.
        case: the step.

    Raises:
        UsageError: the file is none, or its inputs are not those that were asked for.
        UnsupportedError: inputs of types that NumPy lacks.
    """

    def __init__(self, backend: OnnxruntimeBackend, case: StepSpec) -> None:
        self.case = case
        self._backend = backend
        self._path = str(find_onnx(case.model))
        self._contexts = contextlib.ExitStack()
        self.session = self.opened(backend.options(str(case.mode)))
        self.feeds = _made_inputs(case, self.session.get_inputs())

    def opened(self, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
        """Return a session of the file.

        Raises:
            UsageError: it is no ONNX file, or needs an operator, a version or a file of weights
                that is not there.
        """
        with _told(self.case.model, UsageError):
            return onnxruntime.InferenceSession(
                self._path, options, providers=["CPUExecutionProvider"]
            )

    def __enter__(self) -> Self:
        """Pin the calling thread."""
        self._contexts.enter_context(_told(self.case.model, ModelError))
        self._contexts.enter_context(_pinned(self._backend.cpus[0]))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let it go; tell what was raised."""
        self._contexts.__exit__(kind, error, trace)

    @property
    def batch(self) -> int:
        """The first number of the first input's shape; 1 without any."""
        first = next(iter(self.feeds.values()), None)
        return 1 if first is None or not first.ndim else len(first)

    def run(self) -> list[Any]:
        """Run the step once."""
        found: list[Any] = self.session.run(None, self.feeds)
        return found


def prepare_step(
    backend: OnnxruntimeBackend, case: StepSpec, preparation: StepPreparation
) -> StepKernel:
    """Make the step of an ONNX file ready; see :func:`pydlbench.steps.operations.prepare_step`.

    Its check is that the outputs are finite: there is no graph of ours to hold them against.
    """
    begin = time.perf_counter()
    made = OnnxModel(backend, case)
    graph = _graph(case.model)
    with made:
        found = made.run()
    setup_s = time.perf_counter() - begin
    begin = time.perf_counter()
    checks: tuple[Check, ...] = ()
    seen = None
    if preparation.checks:
        checks = (_finite(made, found),)
        with made:
            seen = profile(made, backend.options(str(case.mode)), [one.name for one in graph.node])
    shapes = [one.shape for one in found if isinstance(one, np.ndarray)]
    facts = StepFacts(
        library=backend.library,
        timing="steady",
        batch=made.batch,
        output=shapes[0] if shapes else (),
        parameters=_parameters(graph),
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


# -----------------------------------------------------------------------------
# What the file says of itself.


def _graph(model: str) -> Any:
    """Return the file's graph as it is written, its weights left where they are.

    Raises:
        BackendMissingError: the package that reads it is not installed.
    """
    try:
        import onnx
    except ImportError:
        raise BackendMissingError(
            "onnx, which reads ONNX files, is not installed; get it with: pip install '.[onnx]'"
        ) from None
    with _told(model, UsageError):
        return onnx.load(model, load_external_data=False).graph


def _parameters(graph: Any) -> int:
    """Return how many floating-point elements the file's weights have."""
    from onnx import TensorProto

    kinds = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    return sum(
        int(np.prod(one.dims, dtype=np.int64))
        for one in graph.initializer
        if one.data_type in kinds
    )


# -----------------------------------------------------------------------------
# Inputs: from the graph's own description, from --batch and from --input.


def _made_inputs(case: StepSpec, wanted: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Return random inputs by name: floating-point in [-1, 1), others 0 or 1.

    Args:
        case: with its batch, and what ``--input`` says.
        wanted: name, shape and type of each, as onnxruntime describes them; a dimension that is no
            number is dynamic.

    Raises:
        UsageError: a dimension is open, or what was asked for contradicts the file.
        UnsupportedError: a type that NumPy lacks.
    """
    given = _by_name(case, wanted)
    stream = np.random.default_rng(case.seed)
    shapes = {one.name: _shape(case, one, given.get(one.name)) for one in wanted}
    for name, shape in list(shapes.items())[:1]:
        if case.batch not in (None, *shape[:1]):
            raise UsageError(
                f"--batch {case.batch}: the input {name} of {case.model} is "
                f"{'x'.join(map(str, shape))}; nearest: leave it out"
            )
    return {one.name: _random(_dtype(case, one), shapes[one.name], stream) for one in wanted}


def _by_name(case: StepSpec, wanted: Sequence[Any]) -> dict[str, OwnInput]:
    """Return what ``--input`` says by the graph's names; those without one go by their place."""
    names = [one.name for one in wanted]
    found: dict[str, OwnInput] = {}
    inputs = (case.own or OwnSpec()).inputs
    for one in inputs:
        if one.name is None:
            continue
        if one.name not in names:
            near = nearest(one.name, names, 1) or names[:1]
            raise UsageError(
                f"--input {one.text}: {case.model} has no input {one.name}; nearest: {near[0]}"
            )
        found[one.name] = one
    left = [name for name in names if name not in found]
    plain = [one for one in inputs if one.name is None]
    if len(plain) > len(left):
        raise UsageError(
            f"--input {plain[len(left)].text}: {case.model} has {len(names)} inputs only: "
            f"{', '.join(names)}; nearest: leave it out"
        )
    return found | dict(zip(left, plain, strict=False))


def _dtype(case: StepSpec, wanted: Any) -> str:
    if wanted.type not in _DTYPES:
        raise UnsupportedError(
            f"{case.model}: its input {wanted.name} is a {wanted.type}; random ones are made of "
            f"{', '.join(_DTYPES)}"
        )
    return _DTYPES[wanted.type]


def _shape(case: StepSpec, wanted: Any, given: OwnInput | None) -> tuple[int, ...]:
    """Return the shape of an input; the batch is the first dimension, if that is dynamic."""
    known = [size if isinstance(size, int) and size > 0 else None for size in wanted.shape]
    said = "x".join(str(size or "?") for size in wanted.shape)
    dtype = _dtype(case, wanted)
    # What would do: numbers where the file has them.
    usual = [case.batch or 8] + [128] * len(known)
    sizes = "x".join(str(size or other) for size, other in zip(known, usual, strict=False))
    near = f"--input {sizes}" + (f":{dtype}" if dtype != "float32" else "")
    if given is not None:
        fits = len(given.shape) == len(known) and all(
            size in (None, asked) for size, asked in zip(known, given.shape, strict=True)
        )
        if not fits or given.dtype != dtype:
            raise UsageError(
                f"--input {given.text}: the input {wanted.name} of {case.model} is {said} of "
                f"{dtype}; nearest: {near}"
            )
        return given.shape
    if case.batch is not None and known and known[0] is None:
        known[0] = case.batch
    if None in known:
        batched = known[0] is None and None not in known[1:]
        raise UsageError(
            f"{case.model}: its input {wanted.name} is {said}, which leaves dimensions open; "
            f"nearest: {'--batch 8' if batched else near}"
        )
    return tuple(size for size in known if size is not None)


def _random(dtype: str, shape: Sequence[int], stream: np.random.Generator) -> NDArray[Any]:
    if np.dtype(dtype).kind == "f":
        return stream.uniform(-1, 1, shape).astype(dtype)
    return stream.integers(0, 2, shape).astype(dtype)


# -----------------------------------------------------------------------------
# Around onnxruntime's calls.


@contextlib.contextmanager
def _told(model: str, kind: type[PydlbenchError]) -> Iterator[None]:
    """Turn what is raised within into one line that names the file.

    Args:
        model: the file.
        kind: of the error; memory that ran out is one of its own.
    """
    try:
        yield
    except PydlbenchError:
        raise
    except Exception as error:  # onnxruntime's errors have no class in common but this
        if is_out_of_memory(error):
            raise insufficient_memory(error) from error
        text = _PLACE.sub("", _NUMBER.sub("", " ".join(str(error).split())))
        raise kind(f"{model}: {type(error).__name__}: {text[:400]}") from error


@contextlib.contextmanager
def _pinned(cpu: int) -> Iterator[None]:
    """Keep the calling thread on one CPU, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

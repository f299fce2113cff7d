"""The Numba backend: layers in compiled parallel loops."""

import copy
import dataclasses
import hashlib
import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numba
import numpy as np
from numba import prange
from numpy.typing import NDArray

from pydlbench.backends.base import KernelFacts
from pydlbench.backends.frameworks.backend import (
    FrameworkBackend,
    Variant,
    entry_of,
    wanted_variant,
)
from pydlbench.backends.frameworks.operands import arrange, plain
from pydlbench.backends.host_clock import Operator
from pydlbench.backends.numba import kernels
from pydlbench.backends.numba.kernels import parallel
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.errors import UnsupportedError
from pydlbench.ops.axis import Axis
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.timing.statistics import median

# -----------------------------------------------------------------------------
# Machine code of a kernel: the width of its vectors, and operands from memory.

_numba: Any = numba  # partly without types

# Packed arithmetic in single precision; fused multiply-adds are described first.
_PACKED = {
    "packed multiply-adds": r"vfn?m(?:add|sub)\d+ps",
    "packed instructions": r"v(?:add|sub|mul|max|min|cmp\w+)ps",
}
_OPERANDS = r"\s+(.*?%([xyz])mm\d.*)"
_BITS = {"z": 512, "y": 256, "x": 128}


def compiled_code(kernel: Any, arguments: Sequence[Any]) -> str:
    """Return the assembly of a compiled function.

    Args:
        kernel: a result of ``numba.njit`` that was called with arguments of these types.
        arguments: arguments of the call.

    Returns:
        The assembly; empty if the function was not compiled for these arguments.
    """
    types = tuple(_numba.typeof(argument) for argument in arguments)
    if not kernel.stats.cache_path:
        return str(kernel.inspect_asm().get(types, ""))
    # Numba's cache has no assembly, which is therefore stored next to it, by source and types.
    source = Path(kernel.py_func.__code__.co_filename)
    key = hashlib.sha256(f"{source.stat().st_mtime_ns} {types}".encode()).hexdigest()[:16]
    kept = Path(kernel.stats.cache_path) / f"{kernel.py_func.__name__}-{key}.s"
    if types in kernel.stats.cache_hits:
        return kept.read_text(encoding="utf-8") if kept.exists() else ""
    code = str(kernel.inspect_asm().get(types, ""))
    if code:
        kept.write_text(code, encoding="utf-8")
    return code


def describe_code(code: str) -> str | None:
    """Describe the width of a kernel's vectors, and how many operands come from memory.

    Args:
        code: assembly, in AT&T syntax.

    Returns:
        The description; None if there is no packed arithmetic in single precision.
    """
    for what, instruction in _PACKED.items():
        packed = re.findall(rf"\s{instruction}{_OPERANDS}", code)
        if packed:
            widest = max((register for _, register in packed), key=_BITS.__getitem__)
            operands = [text for text, register in packed if register == widest]
            loading = sum("(" in text for text in operands)
            return (
                f"{len(operands)} of the {len(packed)} {what} in its machine code are "
                f"{_BITS[widest]} bits wide, {loading} of these take an operand from memory"
            )
    return None


# -----------------------------------------------------------------------------
# The backend.

_llvm = importlib.import_module("llvmlite.binding")
_REFUSED_PRECISIONS = {
    "bf16": "Numba has no bf16 on the CPU",
    "fp16": "Numba has no fp16 arithmetic on the CPU",
}
# Timing of the kernel alone: maximum number of samples, minimum length of a sample, and maximum
# total time.
_MAX_SAMPLES = 7
_MIN_SAMPLE_S = 1e-3
_TOTAL_S = 0.5


@parallel
def _touch(y: NDArray[np.float32]) -> None:
    """Write one element on each thread."""
    for i in prange(y.size):
        y[i] = 0


class NumbaBackend(FrameworkBackend):
    """Numba on this process's CPUs.

    Args:
        cpus: logical CPUs that the process is pinned to; as many threads are used.

    Raises:
        UnsupportedError: ``NUMBA_NUM_THREADS`` allows fewer threads.
    """

    name = "numba"

    def __init__(self, cpus: Sequence[int]) -> None:
        super().__init__("cpu", cpus)
        self.library = f"Numba {numba.__version__}"
        allowed = int(_numba.config.NUMBA_NUM_THREADS)
        if allowed < len(self.cpus):
            raise UnsupportedError(
                f"NUMBA_NUM_THREADS={allowed} is fewer than the {len(self.cpus)} CPUs: unset it"
            )
        # OpenMP is preferred, as its threads are pinned by the worker's environment.
        _numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
        _numba.set_num_threads(len(self.cpus))
        _touch(np.empty(len(self.cpus), np.float32))  # starts the threads

    def describe(self) -> dict[str, Any]:
        """Return versions, threads and their layer, and LLVM's name of the CPU."""
        return {
            "name": "Numba",
            "version": numba.__version__,
            "llvm": ".".join(str(part) for part in _llvm.llvm_version_info),
            "numpy": np.__version__,
            "threads": _numba.get_num_threads(),
            "threading_layer": _numba.threading_layer(),
            "isa": _llvm.get_host_cpu_name(),
            "settings": {"fastmath": True, "parallel": True},
        }

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see the base class."""
        if spec.precision != "fp32":
            raise UnsupportedError(_REFUSED_PRECISIONS[spec.precision])
        if spec.mode is not None:
            raise UnsupportedError(
                f"numba has no mode {spec.mode}: its functions are always compiled"
            )
        if spec.fuse != "none":
            raise UnsupportedError(f"numba has no kernel for --fuse {spec.fuse}")
        return [entry_of("numba", VARIANTS, spec.layer, sides=(2,))(spec)]

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return the facts with the time of the kernel alone, and a description of its code."""
        facts = super().complete_facts(facts, operator, spec)
        assert isinstance(operator, HostOperator)
        alone = operator.with_reused_results()
        clock, whole = self.clock(alone), self.clock(operator)
        (first,) = clock.sample(ChunkRequest(samples=1)).seconds
        # Alternating, as clocks may change meanwhile.
        request = ChunkRequest(samples=1, inner=max(1, round(_MIN_SAMPLE_S / first)), untimed=1)
        pairs = [
            (clock.sample(request).seconds[0], whole.sample(request).seconds[0])
            for _ in range(max(1, min(_MAX_SAMPLES, int(_TOTAL_S / (4 * first)))))
        ]
        evidence: dict[str, Any] = {
            **facts.evidence,
            "kernel": facts.algorithm,
            "alone_s": median([kept for kept, _ in pairs]),
            "call_s": median([fresh for _, fresh in pairs]),
            "alone_by": "with its results allocated beforehand",
        }
        if code := describe_code(compiled_code(alone.kernel, alone.arguments)):
            evidence["detail"] = code
        return dataclasses.replace(facts, evidence=evidence)

    def empty(self, mode: str | None) -> Operator:  # noqa: ARG002 - there is one way to call
        """Return a parallel loop of one element per thread."""
        shape = (len(self.cpus),)
        return HostOperator(_touch, (), [(shape, np.float32)], "dst", lambda result: result)


def create(device: str) -> NumbaBackend:
    """Create the backend for the CPUs of this process.

    Raises:
        UnsupportedError: the device is a GPU, for which there are no kernels.
    """
    if device != "cpu":
        raise UnsupportedError(f"numba has no kernels for {device}; ask for --device cpu")
    return NumbaBackend(process_cpus())


# -----------------------------------------------------------------------------
# Layers as compiled kernels with their operands.

Array = NDArray[Any]
Inputs = dict[str, Array]
Result = tuple[tuple[int, ...], type[np.generic]]


class HostOperator:
    """A compiled kernel with its operands, called as in a user's code.

    Args:
        kernel: Compiled function, which takes the results and then the operands.
        operands: All other arguments of the kernel.
        results: Shape and type of each result; the main result comes first.
        role: Role of the main result.
        plain: Function that converts the main result to its plain layout.
    """

    def __init__(
        self,
        kernel: Callable[..., None],
        operands: Sequence[Any],
        results: Sequence[Result],
        role: str,
        plain: Callable[[Array], Array],
    ) -> None:
        self.kernel = kernel
        self._operands = tuple(operands)
        self._results = tuple(results)
        self._role = role
        self._plain = plain
        self._reused_results: tuple[Array, ...] | None = None
        self.call()  # compiles

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the kernel: its results, newly allocated unless reused, and operands."""
        kept = self._reused_results
        results = kept or tuple(np.empty(shape, kind) for shape, kind in self._results)
        return *results, *self._operands

    def call(self) -> tuple[Array, ...]:
        """Allocate the results and compute them."""
        arguments = self.arguments
        self.kernel(*arguments)
        return arguments[: len(self._results)]

    def wait(self) -> None:
        """Return immediately, as calls return with their results."""

    def with_reused_results(self) -> Self:
        """Return an operator of the same kernel that writes the same results in each call."""
        other = copy.copy(self)
        other._reused_results = self.call()  # noqa: SLF001 - of its own class
        return other

    def outputs(self) -> dict[str, Array]:
        """Run the kernel once on a main result filled with NaN, and return that result."""
        main, *others = self.arguments
        main.fill(np.nan)
        self.kernel(main, *others)
        return {self._role: self._plain(main)}


# -----------------------------------------------------------------------------
# Elements under the taps of a window.


def inputs_by_tap(axis: Axis) -> NDArray[np.int64]:
    """Return the input element by tap and output, shape (taps, outputs); -1 is padding."""
    taps, outputs = np.arange(axis.kernel)[:, None], np.arange(axis.out)
    met = outputs * axis.stride + taps * axis.dilation - axis.pad
    return np.where((met >= 0) & (met < axis.size), met, -1)


def outputs_by_tap(axis: Axis) -> NDArray[np.int64]:
    """Return outputs by tap and input element, shape (taps, inputs); -1 if there is no output."""
    met = inputs_by_tap(axis)
    back = np.full((axis.kernel, axis.size), -1)
    tap, output = np.nonzero(met >= 0)
    back[tap, met[tap, output]] = output
    return back


def spans_by_tap(axis: Axis, part: int) -> NDArray[np.int64]:
    """Return the ranges of outputs whose taps are not on padding.

    Args:
        axis: the axis.
        part: number of outputs in each part of the axis.

    Returns:
        First output, its input element, and number of outputs; shape (parts, taps, 3).
    """
    met = inputs_by_tap(axis)
    starts = range(0, axis.out, part)
    spans = np.zeros((len(starts), axis.kernel, 3), np.int64)
    for number, start in enumerate(starts):
        for tap in range(axis.kernel):
            inside = start + np.flatnonzero(met[tap, start : start + part] >= 0)
            if inside.size:
                spans[number, tap] = inside[0], met[tap, inside[0]], inside.size
    return spans


# -----------------------------------------------------------------------------
# Operators, with operands in the layouts of the kernels.

#: Number of outputs of a row that are accumulated together.
_OUTPUTS_PER_SPAN = 28


def _conv(layer: Layer, pass_: str, inputs: Inputs) -> HostOperator:
    """Build a convolution; groups precede their channels."""
    kernel: Callable[..., None]
    groups, role = layer.groups, layer.result(pass_)
    # Axes of weights that are (group, output channel, input channel, row, column).
    order = (0, 3, 4, 1, 2) if pass_ == "backward-data" else (0, 3, 4, 2, 1)
    outs, *others = layer.shapes()["weights"]
    sizes = groups, outs // groups, *others

    def arranged(name: str) -> Array:
        tensor = inputs[name]
        if name == "weights":
            return np.ascontiguousarray(tensor.reshape(sizes).transpose(order))
        batch, channels, rows, columns = tensor.shape
        return arrange(tensor, "nhwc").reshape(batch, rows, columns * groups, channels // groups)

    def plain_result(result: Array) -> Array:
        if role == "weights":
            return result.transpose(np.argsort(order)).reshape(layer.shapes()[role])
        batch, channels, rows, columns = layer.shapes()[role]
        return plain(result.reshape(batch, rows, columns, channels), "nhwc")

    down, across = layer.axes
    operands: tuple[Any, ...]
    if role == "weights":
        kernel = kernels.convolve_for_weights
        shape: tuple[int, ...] = tuple(sizes[axis] for axis in order)
        spans = spans_by_tap(across, across.out)
        operands = arranged("src"), arranged("dst"), inputs_by_tap(down), spans, across.stride
    else:
        kernel = kernels.convolve
        batch, channels, rows, columns = layer.shapes()[role]
        shape = batch, rows, columns * groups, channels // groups
        spans = spans_by_tap(across, _OUTPUTS_PER_SPAN)
        if pass_ == "forward":
            operands = (
                arranged("src"),
                arranged("weights"),
                inputs_by_tap(down),
                spans,
                1,
                across.stride,
            )
        else:
            swapped = np.ascontiguousarray(spans[..., [1, 0, 2]])
            operands = (
                arranged("dst"),
                arranged("weights"),
                outputs_by_tap(down),
                swapped,
                across.stride,
                1,
            )
    return HostOperator(kernel, operands, [(shape, np.float32)], role, plain_result)


def _gemm(layer: Layer, pass_: str, transposed: bool, inputs: Inputs) -> HostOperator:
    """Build a product whose weights are stored as (terms, columns), or transposed."""
    role = layer.result(pass_)
    swapped = transposed and role == "weights"
    # The kernels have one batch dimension.
    matrices = {name: array.reshape(-1, *array.shape[-2:]) for name, array in inputs.items()}
    if role == "weights":
        a, b = _transposed(matrices["src"]), matrices["dst"]
        if swapped:
            a, b = _transposed(b), _transposed(a)
    else:
        weights = matrices["weights"]
        if transposed:
            weights = _transposed(np.ascontiguousarray(_transposed(weights)))
        forward = pass_ == "forward"
        a, b = (matrices["src"], weights) if forward else (matrices["dst"], _transposed(weights))
    whole = layer.shapes()[role]
    rows, columns = whole[-2:]
    shape = (layer.batch_count, columns, rows) if swapped else (layer.batch_count, rows, columns)
    by_rows = transposed == (pass_ == "forward") and role != "weights"
    return HostOperator(
        kernels.product_of_rows if by_rows else kernels.product,
        (a, _transposed(b) if by_rows else b),
        [(shape, np.float32)],
        role,
        lambda result: (_transposed(result) if swapped else result).reshape(whole),
    )


def _pool(layer: Layer, pass_: str, propagation: str, inputs: Inputs) -> HostOperator:
    """Build a pooling; in training it also writes the positions of maxima."""
    role, forward = layer.result(pass_), pass_ == "forward"
    shapes = {
        name: (images, rows, columns, channels)
        for name, (images, channels, rows, columns) in layer.shapes().items()
    }
    given = arrange(inputs["src" if forward else "dst"], "nhwc")
    met = [inputs_by_tap(axis) for axis in layer.axes]
    read = met if forward else [outputs_by_tap(axis) for axis in layer.axes]
    results: list[Result] = [(shapes[role], np.float32)]
    if layer.mode == "avg":
        kernel: Callable[..., None] = kernels.average
        counts = np.outer(*(axis.elements_inside() for axis in layer.axes))
        if layer.count_include_pad:
            counts[:] = math.prod(layer.kernel)
        shares = (1 / counts).astype(np.float32)
        ones = np.ones(shapes["src"][1:3], np.float32)
        operands = [given, *read, *((shares, ones) if forward else (ones, shares))]
    elif not forward:
        kernel = kernels.maximum_backward
        places = np.empty(shapes["dst"], np.int32)
        maxima = np.empty(shapes["dst"], np.float32)
        kernels.maximum(maxima, places, arrange(inputs["src"], "nhwc"), *met)
        operands = [given, places, *read]
    else:
        kernel = kernels.maximum
        operands = [given, *read]
        if propagation == "training":
            results.append((shapes["dst"], np.int32))
        else:
            operands.insert(0, np.empty((0, 0, 0, 0), np.int32))
    return HostOperator(kernel, operands, results, role, lambda result: plain(result, "nhwc"))


def _transposed(matrices: Array) -> Array:
    return matrices.swapaxes(1, 2)


# -----------------------------------------------------------------------------
# Variants.


def _gemm_variant(spec: KernelSpec) -> Variant:
    if spec.layer.broadcast:
        raise UnsupportedError(
            f"numba: the kernel here multiplies two batches of as many matrices, not "
            f"{spec.layer.problem}"
        )
    # By default weights have the fastest layout for the pass: terms innermost.
    order = wanted_variant(spec) or ("transposed" if spec.pass_ == "forward" else "plain")
    transposed = order == "transposed"
    return Variant(
        algorithm="numba prange: blocked product",
        layout=f"src mk, weights {'nk' if transposed else 'kn'}, dst mn",
        variant="transposed" if transposed else "plain",
        build=partial(_gemm, spec.layer, spec.pass_, transposed),
    )


#: Variants by kind of layer, for images with two sides.
VARIANTS: Final[Mapping[str, Callable[[KernelSpec], Variant]]] = {
    "conv": lambda spec: Variant(
        algorithm="numba prange: direct convolution",
        layout=f"src nhwc, weights {'hwoi' if spec.pass_ == 'backward-data' else 'hwio'}, dst nhwc",
        variant="nhwc",
        build=partial(_conv, spec.layer, spec.pass_),
    ),
    "gemm": _gemm_variant,
    "pool": lambda spec: Variant(
        algorithm=f"numba prange: {spec.layer.mode} pooling",
        layout="src nhwc, dst nhwc",
        variant="nhwc",
        build=partial(_pool, spec.layer, spec.pass_, spec.propagation),
    ),
}

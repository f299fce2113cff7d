"""Compare every element of every result with the op's forward pass, or with its gradient.

The formula of a tensor also computes a piece of it: a result needs only some whole axes of its
operands, or is a sum over the pieces. Recurrent layers are one piece, because each step depends on
all steps before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.ops.op import Layer
from pydlbench.verification import arithmetic
from pydlbench.verification.arithmetic import EXACT, Rounded, gradients
from pydlbench.verification.checksums import (
    Deviation,
    ElementComparison,
    KernelRun,
    Piece,
    element_name,
    pieces,
    sums_over,
    worse,
    worst_of,
)
from pydlbench.verification.inputs import kept_elements, significand_bits, smallest_normal
from pydlbench.verification.threads import in_threads

Inputs = Mapping[str, NDArray[Any] | Rounded]
Formula = Callable[[Layer, Any], Mapping[str, Rounded]]


# -----------------------------------------------------------------------------
# Formulas: from the tensors of a pass, or pieces of them, to its results.


def forward(layer: Layer, t: Any) -> dict[str, Rounded]:
    """Return the results of the forward pass by role."""
    result = layer.entry.reference(arithmetic, layer, t)
    return result if isinstance(result, dict) else {"dst": result}


def gradient(layer: Layer, t: Any, pass_: str = "backward-data") -> dict[str, Rounded]:
    """Differentiate the forward pass with respect to the tensors that a pass writes."""
    wanted = layer.writes(pass_)
    operands = SimpleNamespace(**vars(t))
    for role in wanted:
        operand = getattr(t, role)
        setattr(operands, role, Rounded(operand.value, watched=True))
    result = forward(layer, operands)["dst"]
    slopes = gradients(result, t.dst, [getattr(operands, role) for role in wanted])
    return dict(zip(wanted, slopes, strict=True))


def _dropout(layer: Layer, t: Any) -> dict[str, Rounded]:
    role, given = ("dst", t.src) if hasattr(t, "src") else ("src", t.dst)
    return {role: arithmetic.where(t.kept, given / layer.keep, 0.0)}


def _softmax_gradient(_: Layer, t: Any) -> dict[str, Rounded]:
    return {"src": t.result * (t.dst - (t.dst * t.result).sum(-1, keepdims=True))}


def _log_softmax_gradient(_: Layer, t: Any) -> dict[str, Rounded]:
    return {"src": t.dst - arithmetic.exp(t.result) * t.dst.sum(-1, keepdims=True)}


def _cross_entropy(layer: Layer, t: Any) -> dict[str, Rounded]:
    results = forward(layer, t)
    return results | {"loss": results["loss"].scale(len(t.src) / layer.batch)}


def _cross_entropy_gradient(layer: Layer, t: Any) -> dict[str, Rounded]:
    chosen = np.zeros(t.dst.shape)
    chosen[range(len(chosen)), t.labels.astype(np.intp)] = 1
    return {"src": (t.dst - chosen) / layer.batch}


def _layernorm_gradient(layer: Layer, t: Any) -> dict[str, Rounded]:
    mean, variance = (sums.reshape(*t.src.shape[:-1], 1) for sums in (t.mean, t.variance))
    inverse = 1 / arithmetic.sqrt(variance + layer.epsilon)
    distance, inner = t.src * inverse - mean * inverse, t.dst * t.weights
    shift = inner.mean(-1, keepdims=True)
    slope = (inner * distance).mean(-1, keepdims=True)
    rows = tuple(range(t.src.value.ndim - 1))
    return {
        "src": inverse * (inner - (shift + distance * slope)),
        "weights": (t.dst * distance).sum(rows),
        "bias": t.dst.sum(rows),
    }


def _weight_decay(layer: Layer, t: Any) -> dict[str, Rounded]:
    return {"gradient": t.gradient + layer.decay * t.weights}


#: Formulas by op and pass, other than the op's forward pass and its derivative.
_FORMULAS: Final[Mapping[tuple[str, str], Formula]] = {
    ("dropout", "forward"): _dropout,
    ("dropout", "backward-data"): _dropout,
    ("softmax", "backward-data"): _softmax_gradient,
    ("log-softmax", "backward-data"): _log_softmax_gradient,
    ("softmax-xent", "forward"): _cross_entropy,
    ("softmax-xent", "backward-data"): _cross_entropy_gradient,
    ("layernorm", "backward-data"): _layernorm_gradient,
    ("l2", "backward-weights"): _weight_decay,
    ("bias", "backward-weights"): lambda layer, t: gradient(layer, t, "backward-weights"),
}
_ROWS: Final = (2, 3)
_COLUMNS: Final = (1,)
#: Axes that are not cut, by op: a result depends on all their elements.
_UNCUT_AXES: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("softmax", "log-softmax", "layernorm", "rmsnorm"), _ROWS),
    **dict.fromkeys(("lrn", "softmax-xent", "concat"), _COLUMNS),
}


# -----------------------------------------------------------------------------
# Pieces.


def image_view(layer: Layer, role: str, tensor: Any) -> Any:
    """Return a view of a tensor with the axes of the images, some of which have one element."""
    op = layer.entry
    if layer.kind != "pointwise" or op.form == "weights" or len(tensor.shape) > 1:
        return tensor
    if op.form == "rows" and role not in op.trained:
        return tensor.reshape(layer.batch, layer.channels, layer.height, 1)
    axis = {"labels": 0, "loss": 0}.get(role, 3 if op.form == "rows" else 1)
    return tensor.reshape(*(-1 if number == axis else 1 for number in range(4)))


def _at(shape: Sequence[int], cut: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return the part of a tensor that a piece of the images corresponds to."""
    return tuple(slice(0, 1) if n == 1 else part for n, part in zip(shape, cut, strict=True))


def _part(layer: Layer, role: str, tensor: Any, cut: tuple[slice, ...]) -> Any:
    view = image_view(layer, role, tensor)
    part = view[_at(view.shape, cut)]
    if len(tensor.shape) == 1:
        part = part.reshape(-1)
    if role == "labels" or isinstance(part, Rounded):
        return part
    return Rounded(part)


#: Number of elements of a piece; smaller pieces are dominated by the overhead of NumPy's functions.
_PIECE_ELEMENTS: Final = 1 << 17


def evaluate(
    layer: Layer, inputs: Inputs, formula: Formula, whole: tuple[int, ...] = ()
) -> Iterator[tuple[str, tuple[slice, ...], Rounded]]:
    """Evaluate a formula piece by piece: role, slices of the view, and numbers.

    Args:
        layer: Layer of the pass.
        inputs: Tensors that the formula reads, by role.
        formula: Function of a layer and its tensors or pieces of them.
        whole: Axes that are not cut.
    """
    absent = {
        role: np.broadcast_to(np.float32(0), shape)
        for role, shape in layer.shapes().items()
        if role not in inputs and role in layer.reads("forward") and layer.op in ("concat", "bias")
    }
    tensors = {**absent, **inputs}
    largest = max((x for x in tensors.values() if isinstance(x, np.ndarray)), key=lambda x: x.size)
    shape = largest.shape
    views = _views(layer)
    totals: dict[str, Rounded] = {}

    def results(place: tuple[slice, ...]) -> tuple[tuple[slice, ...], Mapping[str, Rounded]]:
        cut = tuple(slice(None) if axis in whole else part for axis, part in enumerate(place))
        t = SimpleNamespace(**{role: _part(layer, role, x, cut) for role, x in tensors.items()})
        if layer.op == "dropout":
            t.kept = kept_elements(shape, cut, layer.keep)
        return cut, formula(layer, t)

    for cut, by_role in in_threads(results, pieces(largest, _PIECE_ELEMENTS, whole)):
        for role, numbers in by_role.items():
            view = views[role].shape
            at = _at(view, cut)
            summed = [
                axis for axis, n in enumerate(view) if n == 1 != shape[axis] and axis not in whole
            ]
            if not summed:
                yield role, at, numbers
                continue
            total = totals.setdefault(role, Rounded(np.zeros(view), np.zeros(view)))
            total.value[at] += numbers.value.reshape(total.value[at].shape)
            total.square[at] += np.reshape(numbers.square, total.square[at].shape)
            length = math.prod(shape[axis] for axis in summed)
            total.length = max(total.length, numbers.length, length)
            total.transcendental |= numbers.transcendental
    for role, numbers in totals.items():
        yield role, (slice(None),) * numbers.value.ndim, numbers


def _views(layer: Layer) -> dict[str, Any]:
    """Return tensors without memory, by role, whose axes are the axes of the images."""
    shapes = layer.shapes()
    return {role: image_view(layer, role, np.broadcast_to(0, shapes[role])) for role in shapes}


def expected_pieces(layer: Layer, pass_: str, propagation: str, inputs: Inputs) -> Iterator[Piece]:
    """Yield the expected results of a pass; the pieces cover each element once.

    Raises:
        KeyError: An input is missing.
    """
    given = {role: inputs[role] for role in layer.reads(pass_, propagation)}
    training = pass_ != "forward" or propagation == "training"
    formula = _FORMULAS.get((layer.op, pass_), forward if pass_ == "forward" else gradient)
    if layer.kind == "recurrent":
        t = SimpleNamespace(**{role: Rounded(array) for role, array in given.items()})
        for role, numbers in formula(layer, t).items():
            yield make_piece(role, (slice(None),) * numbers.value.ndim, numbers)
        return
    if layer.op == "batchnorm" and training:
        results = _batchnorm(layer, pass_, given)
    else:
        results = evaluate(layer, given, formula, _UNCUT_AXES.get(layer.op, ()))
    views = _views(layer)
    for role, cut, numbers in results:
        yield make_piece(role, cut, numbers.reshape(views[role][cut].shape))


#: Errors may be this many times as large where intermediate results are rounded to the storage
#: format: the largest of thousands of such errors are five standard deviations off.
TAIL_FACTOR: Final = 3.0


def make_piece(role: str, cut: tuple[slice, ...], numbers: Rounded, tail: float = 1.0) -> Piece:
    """Make a piece of expected values, whose errors may be ``tail`` times as large as usual."""
    return Piece(
        role=role, cut=cut, value=numbers.value, size=tail * numbers.size, terms=numbers.terms
    )


# -----------------------------------------------------------------------------
# Batch normalisation: first sums over whole channels, then the images.

_PIXELS: Final = (0, 2, 3)
#: Kernels sum differences from some value, by Welford's updates or to keep the digits of the
#: variance. Their last additions round numbers as large as an element, which is sqrt(M) times the
#: size of the terms of the mean. With a factor of four, the tolerance is 8 units of an element.
_SHIFT_FACTOR: Final = 4


def _batchnorm(
    layer: Layer, pass_: str, inputs: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[slice, ...], Rounded]]:
    """Evaluate a batch normalisation in training, piece by piece."""
    count = layer.batch * layer.height * layer.width
    average, power = (sums.reshape(-1) / count for sums in sums_over(inputs["src"], _PIXELS))
    if pass_ == "forward":
        # The terms of the variance are the mean square and the squared mean: many kernels subtract
        # one from the other. The fourth moment is about twice the squared mean square.
        square = 2 * power**2 / count + average**4
        results = {
            "mean": Rounded(average, _SHIFT_FACTOR**2 * power / count, count),
            "variance": Rounded(power - average**2, square, count),
        }
        new = results | {"variance": results["variance"].scale(count / max(1, count - 1))}
        sums, formula = results.copy(), forward
        for name, numbers in new.items():
            old = Rounded(inputs[f"running_{name}"])
            updated = (1 - layer.momentum) * old + layer.momentum * numbers
            results[f"running_{name}"] = updated
    else:
        mean, given = inputs["mean"].astype(np.float64), inputs["dst"]
        shift, energy = (sums.reshape(-1) for sums in sums_over(given, _PIXELS))
        products = np.einsum("nchw,nchw->c", given, inputs["src"], dtype=np.float64)
        # The sum of gradient times (element - mean), sized by the mean square of the differences.
        distance = power - 2 * mean * average + mean**2
        slope = Rounded(products - mean * shift, energy * (power + mean**2 + distance), count)
        inverse = 1 / arithmetic.sqrt(Rounded(inputs["variance"]) + layer.epsilon)
        results = {"weights": slope * inverse, "bias": Rounded(shift, energy, count)}
        sums = {"slope": results["weights"], "shift": results["bias"], "inverse": inverse}
        formula = _batchnorm_gradient
    for role, numbers in results.items():
        yield role, (slice(None),) * 4, numbers
    yield from evaluate(layer, {**inputs, **sums}, formula)


def _batchnorm_gradient(layer: Layer, t: Any) -> dict[str, Rounded]:
    mean, slope, shift, inverse, weights = (
        array.reshape(-1, 1, 1) for array in (t.mean, t.slope, t.shift, t.inverse, t.weights)
    )
    count = layer.batch * layer.height * layer.width
    projection = (t.src - mean) * (inverse * slope / count) + shift / count
    return {"src": weights * inverse * (t.dst - projection)}


# -----------------------------------------------------------------------------


def check_elements(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare the results of a pass with the reference; see :func:`compare`."""
    expected = expected_pieces(layer, run.pass_, run.propagation, run.inputs)
    narrow = significand_bits(run.precision) <= _MAX_STEPWISE_BITS

    def scaled() -> Iterator[Piece]:
        for piece in expected:
            stepwise = layer.kind == "recurrent" or (narrow and not layer.in_float32(piece.role))
            yield replace(piece, size=(TAIL_FACTOR if stepwise else 1.0) * piece.size)

    return compare(layer, run, scaled())


#: Frameworks round every intermediate result to formats with at most this many significand bits.
_MAX_STEPWISE_BITS: Final = 11


def compare(
    layer: Layer, run: KernelRun, expected: Iterable[Piece]
) -> dict[str, ElementComparison]:
    """Compare results with expected pieces.

    Below the smallest normal number of the precision, results have fewer digits, so rounded results
    are compared relative to at least that number. (In float16 it is 6e-5, and the gradients of a
    softmax over 1000 classes are smaller.)

    Returns:
        The comparison of each result that is present.
    """
    results = run.results
    comparisons: dict[str, ElementComparison] = {}

    def deviation(piece: Piece) -> Deviation:
        view = image_view(layer, piece.role, results[piece.role])
        got = view[piece.cut]
        if np.array_equal(got, piece.value):
            return _NO_DEVIATION
        scale = np.abs(piece.value)
        scale += piece.size
        if piece.terms != EXACT:
            stored = "fp32" if layer.in_float32(piece.role) else run.precision
            np.maximum(scale, smallest_normal(stored), out=scale)
        return worst_of(
            got, piece.value, scale, _namer(piece, view.shape, results[piece.role].shape)
        )

    present = (piece for piece in expected if piece.role in results)
    for piece, worst in in_threads(lambda piece: (piece, deviation(piece)), present):
        before = comparisons.get(piece.role)
        comparisons[piece.role] = ElementComparison(
            terms=max(piece.terms, before.terms if before else EXACT),
            points=piece.value.size + (before.points if before else 0),
            checksums=0,
            worst=worse(worst, before.worst if before else _NO_DEVIATION),
        )
    return comparisons


_NO_DEVIATION = Deviation(error=0.0, where="", got=0.0, expected=0.0)


def _namer(
    piece: Piece, view: tuple[int, ...], shape: tuple[int, ...]
) -> Callable[[Sequence[int]], str]:
    """Return a function that names the elements of a piece by their index in the whole tensor."""
    first = [cut.start or 0 for cut in piece.cut]

    def name(at: Sequence[int]) -> str:
        place = np.ravel_multi_index([low + i for low, i in zip(first, at, strict=True)], view)
        return element_name(piece.role, [int(index) for index in np.unravel_index(place, shape)])

    return name

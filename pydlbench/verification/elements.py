"""Layers against the forward pass of the table, or its gradient: every element of every result.

A piece of a tensor is computed by the formula of the whole, since no result needs more of it than
some axes, or is a sum of what the pieces give. Recurrent layers are one piece: each step computes
with the errors of all steps before.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.verification import arithmetic
from pydlbench.verification.arithmetic import EXACT, Rounded, gradients
from pydlbench.verification.checksums import (
    Comparison,
    Deviation,
    Piece,
    element_name,
    larger,
    pieces,
    sums_over,
    worst_of,
)
from pydlbench.verification.inputs import kept_elements, significand_bits, smallest_normal
from pydlbench.verification.threads import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer
    from pydlbench.verification.checksums import Computed

    Inputs = Mapping[str, NDArray[Any] | Rounded]
    Formula = Callable[[Layer, Any], Mapping[str, Rounded]]


# -----------------------------------------------------------------------------
# Formulas: from the tensors of a pass, or some pieces of them, to its results.


def forward(layer: Layer, t: Any) -> dict[str, Rounded]:
    """Return what the forward pass gives."""
    result = layer.entry.reference(arithmetic, layer, t)
    return result if isinstance(result, dict) else {"dst": result}


def gradient(layer: Layer, t: Any, pass_: str = "backward-data") -> dict[str, Rounded]:
    """Return the gradients of the forward pass that a pass gives."""
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
    return results | {"loss": results["loss"].scaled(len(t.src) / layer.batch)}


def _cross_entropy_gradient(layer: Layer, t: Any) -> dict[str, Rounded]:
    chosen = np.zeros(t.dst.shape)
    chosen[range(len(chosen)), t.labels.astype(np.intp)] = 1
    return {"src": (t.dst - chosen) / layer.batch}


def _layernorm_gradient(layer: Layer, t: Any) -> dict[str, Rounded]:
    mean, variance = (each.reshape(*t.src.shape[:-1], 1) for each in (t.mean, t.variance))
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


def _decayed(layer: Layer, t: Any) -> dict[str, Rounded]:
    return {"gradient": t.gradient + layer.decay * t.weights}


#: By op and pass, where it is not the forward pass of the table or the gradient of that.
_FORMULAS: Final[Mapping[tuple[str, str], Formula]] = {
    ("dropout", "forward"): _dropout,
    ("dropout", "backward-data"): _dropout,
    ("softmax", "backward-data"): _softmax_gradient,
    ("log-softmax", "backward-data"): _log_softmax_gradient,
    ("softmax-xent", "forward"): _cross_entropy,
    ("softmax-xent", "backward-data"): _cross_entropy_gradient,
    ("layernorm", "backward-data"): _layernorm_gradient,
    ("l2", "backward-weights"): _decayed,
    ("bias", "backward-weights"): lambda layer, t: gradient(layer, t, "backward-weights"),
}
_ROWS: Final = (2, 3)
_COLUMNS: Final = (1,)
#: Axes that a result needs as a whole, by op.
_WHOLE: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("softmax", "log-softmax", "layernorm", "rmsnorm"), _ROWS),
    **dict.fromkeys(("lrn", "softmax-xent", "concat"), _COLUMNS),
}


# -----------------------------------------------------------------------------
# Pieces.


def in_place(layer: Layer, role: str, tensor: Any) -> Any:
    """Return a view of a tensor whose axes are those of the images, each of them or one long."""
    op = layer.entry
    if layer.kind != "pointwise" or op.form == "weights" or len(tensor.shape) > 1:
        return tensor
    if op.form == "rows" and role not in op.trained:
        return tensor.reshape(layer.batch, layer.channels, layer.height, 1)
    axis = {"labels": 0, "loss": 0}.get(role, 3 if op.form == "rows" else 1)
    return tensor.reshape(*(-1 if number == axis else 1 for number in range(4)))


def _at(shape: Sequence[int], cut: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return where a tensor of a shape lies in place of a piece."""
    return tuple(slice(0, 1) if n == 1 else there for n, there in zip(shape, cut, strict=True))


def _part(layer: Layer, role: str, tensor: Any, cut: tuple[slice, ...]) -> Any:
    view = in_place(layer, role, tensor)
    part = view[_at(view.shape, cut)]
    if len(tensor.shape) == 1:
        part = part.reshape(-1)
    if role == "labels" or isinstance(part, Rounded):
        return part
    return Rounded(part)


#: Elements of a piece; of fewer, the time between NumPy's functions is a large part.
_PIECE: Final = 1 << 17


def evaluate(
    layer: Layer, inputs: Inputs, formula: Formula, whole: tuple[int, ...] = ()
) -> Iterator[tuple[str, tuple[slice, ...], Rounded]]:
    """Yield what a formula gives, piece by piece: role, place (of the view) and numbers.

    Args:
        layer: What is computed.
        inputs: What the formula reads, by role.
        formula: Of a layer and its tensors, all of them or pieces.
        whole: Axes that it needs as a whole.
    """
    absent = {
        role: np.broadcast_to(np.float32(0), shape)
        for role, shape in layer.shapes().items()
        if role not in inputs and role in layer.reads("forward") and layer.op in ("concat", "bias")
    }
    tensors = {**absent, **inputs}
    largest = max(
        (each for each in tensors.values() if isinstance(each, np.ndarray)), key=lambda x: x.size
    )
    shape = largest.shape
    views = _views(layer)
    totals: dict[str, Rounded] = {}

    def results(place: tuple[slice, ...]) -> tuple[tuple[slice, ...], Mapping[str, Rounded]]:
        cut = tuple(slice(None) if axis in whole else there for axis, there in enumerate(place))
        t = SimpleNamespace(**{role: _part(layer, role, x, cut) for role, x in tensors.items()})
        if layer.op == "dropout":
            t.kept = kept_elements(shape, cut, layer.keep)
        return cut, formula(layer, t)

    for cut, made in in_threads(results, pieces(largest, _PIECE, whole)):
        for role, numbers in made.items():
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
            total.bent |= numbers.bent
    for role, numbers in totals.items():
        yield role, (slice(None),) * numbers.value.ndim, numbers


def _views(layer: Layer) -> dict[str, Any]:
    """Return by role a tensor of no memory whose axes are those of the images."""
    shapes = layer.shapes()
    return {role: in_place(layer, role, np.broadcast_to(0, shapes[role])) for role in shapes}


def expected_pieces(layer: Layer, pass_: str, propagation: str, inputs: Inputs) -> Iterator[Piece]:
    """Yield what a pass should give, piece by piece, until all elements of all results are there.

    Raises:
        KeyError: An input is missing.
    """
    given = {role: inputs[role] for role in layer.reads(pass_, propagation)}
    training = pass_ != "forward" or propagation == "training"
    formula = _FORMULAS.get((layer.op, pass_), forward if pass_ == "forward" else gradient)
    if layer.kind == "recurrent":
        t = SimpleNamespace(**{role: Rounded(array) for role, array in given.items()})
        for role, numbers in formula(layer, t).items():
            yield piece(role, (slice(None),) * numbers.value.ndim, numbers)
        return
    if layer.op == "batchnorm" and training:
        results = _batchnorm(layer, pass_, given)
    else:
        results = evaluate(layer, given, formula, _WHOLE.get(layer.op, ()))
    views = _views(layer)
    for role, cut, numbers in results:
        yield piece(role, cut, numbers.reshape(views[role][cut].shape))


#: How much larger errors may be where a result is one of thousands that are roundings of roundings:
#: the largest of them are five standard deviations off.
TAIL: Final = 3.0


def piece(role: str, cut: tuple[slice, ...], numbers: Rounded, tail: float = 1.0) -> Piece:
    """Return a piece of what numbers should be, their errors ``tail`` times as large as usual."""
    return Piece(
        role=role, cut=cut, value=numbers.value, size=tail * numbers.size, terms=numbers.terms
    )


# -----------------------------------------------------------------------------
# Batch normalisation: sums over whole channels, and then the images.

_PIXELS: Final = (0, 2, 3)
#: Kernels sum differences from some value, by Welford's updates or to keep the digits of the
#: variance. Their last few additions round numbers as large as an element, which is sqrt(M) times
#: the size of the mean's own terms; counted four times, the tolerance is 8 units of an element.
_SHIFTED: Final = 4


def _batchnorm(
    layer: Layer, pass_: str, inputs: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[slice, ...], Rounded]]:
    """Yield the results of training."""
    count = layer.batch * layer.height * layer.width
    average, power = (sums.reshape(-1) / count for sums in sums_over(inputs["src"], _PIXELS))
    if pass_ == "forward":
        # Terms of the variance are the squares of the elements, of which the squares are about
        # twice that of their mean, and that of the mean: many kernels subtract one from the other.
        square = 2 * power**2 / count + average**4
        results = {
            "mean": Rounded(average, _SHIFTED**2 * power / count, count),
            "variance": Rounded(power - average**2, square, count),
        }
        new = results | {"variance": results["variance"].scaled(count / max(1, count - 1))}
        sums, formula = results.copy(), forward
        for name, numbers in new.items():
            old = Rounded(inputs[f"running_{name}"])
            moved = (1 - layer.momentum) * old + layer.momentum * numbers
            results[f"running_{name}"] = moved
    else:
        mean, given = inputs["mean"].astype(np.float64), inputs["dst"]
        shift, energy = (sums.reshape(-1) for sums in sums_over(given, _PIXELS))
        products = np.einsum("nchw,nchw->c", given, inputs["src"], dtype=np.float64)
        # Of a gradient and an element less the mean: the mean square stands for that of each.
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
        each.reshape(-1, 1, 1) for each in (t.mean, t.slope, t.shift, t.inverse, t.weights)
    )
    count = layer.batch * layer.height * layer.width
    taken = (t.src - mean) * (inverse * slope / count) + shift / count
    return {"src": weights * inverse * (t.dst - taken)}


# -----------------------------------------------------------------------------


# -----------------------------------------------------------------------------


def check_elements(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare the results of a pass with the reference; see :func:`compare`."""
    expected = expected_pieces(layer, computed.pass_, computed.propagation, computed.inputs)
    narrow = significand_bits(computed.precision) <= _FEW_BITS

    def scaled() -> Iterator[Piece]:
        for each in expected:
            in_steps = layer.kind == "recurrent" or (narrow and not layer.in_float32(each.role))
            yield replace(each, size=(TAIL if in_steps else 1.0) * each.size)

    return compare(layer, computed, scaled())


#: Frameworks round each result of a formula to formats of so few bits.
_FEW_BITS: Final = 11


def compare(layer: Layer, computed: Computed, expected: Iterable[Piece]) -> dict[str, Comparison]:
    """Compare results with what they should be, piece by piece.

    Below the smallest normal number of the precision results have fewer digits, so what is rounded
    is measured against that number at least. (In float16 it is 6e-5: the gradients of a softmax
    over 1000 classes are smaller.)

    Returns:
        What was found for each of the results that are there.
    """
    results = computed.results
    comparisons: dict[str, Comparison] = {}

    def deviation(piece: Piece) -> Deviation:
        view = in_place(layer, piece.role, results[piece.role])
        got = view[piece.cut]
        if np.array_equal(got, piece.value):
            return _NOTHING
        scale = np.abs(piece.value)
        scale += piece.size
        if piece.terms != EXACT:
            stored = "fp32" if layer.in_float32(piece.role) else computed.precision
            np.maximum(scale, smallest_normal(stored), out=scale)
        return worst_of(
            got, piece.value, scale, _namer(piece, view.shape, results[piece.role].shape)
        )

    there = (each for each in expected if each.role in results)
    for piece, worst in in_threads(lambda each: (each, deviation(each)), there):
        before = comparisons.get(piece.role)
        comparisons[piece.role] = Comparison(
            terms=max(piece.terms, before.terms if before else EXACT),
            points=piece.value.size + (before.points if before else 0),
            checksums=0,
            worst=larger(worst, before.worst if before else _NOTHING),
        )
    return comparisons


_NOTHING = Deviation(error=0.0, where="", got=0.0, expected=0.0)


def _namer(
    piece: Piece, view: tuple[int, ...], shape: tuple[int, ...]
) -> Callable[[Sequence[int]], str]:
    """Name the elements of a piece by their place in the whole tensor."""
    first = [cut.start or 0 for cut in piece.cut]

    def name(at: Sequence[int]) -> str:
        place = np.ravel_multi_index([low + i for low, i in zip(first, at, strict=True)], view)
        return element_name(piece.role, [int(index) for index in np.unravel_index(place, shape)])

    return name

"""Compare every element of every result with the op's forward pass, or with its gradient.

The formula of a tensor also computes a piece of it: a result needs only some whole axes of its
operands, or is a sum over the pieces. Recurrent layers are one piece, because each step depends on
all steps before.

Copies, maxima, reductions and gathers have checks of their own, and so has attention, which is
checked some rows of its scores at a time.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.ops.images import per_channel
from pydlbench.ops.op import Layer
from pydlbench.verification import arithmetic
from pydlbench.verification.arithmetic import EXACT, TRANSCENDENTAL, Rounded, gradients
from pydlbench.verification.checksums import (
    CHECKSUM_UNIT,
    Deviation,
    ElementComparison,
    KernelRun,
    Piece,
    contract,
    element_name,
    pieces,
    sums_over,
    worse,
    worst_of,
)
from pydlbench.verification.inputs import (
    kept_elements,
    largest,
    query_blocks,
    significand_bits,
    smallest_normal,
)
from pydlbench.verification.threads import in_threads

Inputs = Mapping[str, NDArray[Any] | Rounded]
Formula = Callable[[Layer, Any], Mapping[str, Rounded]]
#: Axes of images that sums per channel are over.
_PIXELS: Final = (0, 2, 3)


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
    # The incoming gradient of a loss is one.
    incoming = getattr(t, "dst", Rounded(np.ones(result.shape)))
    slopes = gradients(result, incoming, [getattr(operands, role) for role in wanted])
    return dict(zip(wanted, slopes, strict=True))


def _dropout(layer: Layer, t: Any) -> dict[str, Rounded]:
    role, given = ("dst", t.src) if hasattr(t, "src") else ("src", t.dst)
    return {role: arithmetic.where(t.kept, given / layer.keep, 0.0)}


def _cross_entropy(layer: Layer, t: Any) -> dict[str, Rounded]:
    results = forward(layer, t)
    return results | {"loss": results["loss"].scale(len(t.src) / layer.batch)}


def _labels_gradient(layer: Layer, t: Any) -> dict[str, Rounded]:
    chosen = np.arange(layer.channels) == t.labels.reshape(-1, 1)
    return {"src": Rounded(chosen.reshape(-1, layer.channels, 1, 1)) * (-1 / layer.batch)}


def _cross_entropy_gradient(layer: Layer, t: Any) -> dict[str, Rounded]:
    chosen = np.zeros(t.dst.shape)
    chosen[range(len(chosen)), t.labels.astype(np.intp)] = 1
    return {"src": (t.dst - chosen) / layer.batch}


def _normalised_gradient(
    layer: Layer, t: Any, rows: tuple[int, ...], weights: Any = 1
) -> tuple[Rounded, Rounded]:
    """Return the gradient of the source of a normalisation, and its normalised source.

    Args:
        layer: the normalisation.
        t: tensors of the pass.
        rows: shape of the source as rows with a mean and variance each.
        weights: weights in a shape that broadcasts to the source.
    """
    mean, variance = (sums.reshape(*rows[:-1], 1) for sums in (t.mean, t.variance))
    inverse = 1 / arithmetic.sqrt(variance + layer.epsilon)
    distance, inner = t.src.reshape(rows) * inverse - mean * inverse, t.dst * weights
    inner = inner.reshape(rows)
    shift = inner.mean(-1, keepdims=True)
    slope = (inner * distance).mean(-1, keepdims=True)
    source = inverse * (inner - (shift + distance * slope))
    return source.reshape(t.src.shape), distance.reshape(t.src.shape)


def _layernorm_gradient(layer: Layer, t: Any) -> dict[str, Rounded]:
    source, distance = _normalised_gradient(layer, t, t.src.shape, t.weights)
    rows = tuple(range(t.src.value.ndim - 1))
    return {"src": source, "weights": (t.dst * distance).sum(rows), "bias": t.dst.sum(rows)}


def _groupnorm_gradient(layer: Layer, t: Any) -> dict[str, Rounded]:
    rows = len(t.src), layer.groups, t.src.value.size // (len(t.src) * layer.groups)
    if not layer.factors:
        return {"src": _normalised_gradient(layer, t, rows)[0]}
    source, distance = _normalised_gradient(layer, t, rows, per_channel(t.weights))
    return {
        "src": source,
        "weights": (t.dst * distance).sum(_PIXELS),
        "bias": t.dst.sum(_PIXELS),
    }


#: Formulas by op and pass, other than the op's forward pass and its derivative.
_FORMULAS: Final[Mapping[tuple[str, str], Formula]] = {
    ("dropout", "forward"): _dropout,
    ("dropout", "backward-data"): _dropout,
    ("softmax", "backward-data"): lambda layer, t: {
        "src": t.result * (t.dst - (t.dst * t.result).sum(layer.axis, keepdims=True))
    },
    ("log-softmax", "backward-data"): lambda layer, t: {
        "src": t.dst - arithmetic.exp(t.result) * t.dst.sum(layer.axis, keepdims=True)
    },
    ("softmax-xent", "forward"): _cross_entropy,
    ("softmax-xent", "backward-data"): _cross_entropy_gradient,
    ("nll", "backward-data"): _labels_gradient,
    ("layernorm", "backward-data"): _layernorm_gradient,
    ("groupnorm", "backward-data"): _groupnorm_gradient,
    # A sum: the gradient does not depend on the source.
    ("cumsum", "backward-data"): lambda layer, t: {
        "src": arithmetic.cumsum(t.dst, layer.axis, from_end=True)
    },
    ("l2", "backward-weights"): lambda layer, t: {"gradient": t.gradient + layer.decay * t.weights},
    ("bias", "backward-weights"): lambda layer, t: gradient(layer, t, "backward-weights"),
}
#: Ops whose gradient does not depend on the tensors that only the forward pass reads.
_LINEAR: Final = ("concat", "bias", "rope")
_ROWS: Final = (2, 3)
_COLUMNS: Final = (1,)
#: Axes that are not cut, by op: a result depends on all their elements.
_UNCUT_AXES: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("layernorm", "rmsnorm", "add-rmsnorm", "rope"), _ROWS),
    "glu": (3,),
    "groupnorm": (1, 2, 3),
    **dict.fromkeys(("lrn", "softmax-xent", "nll", "concat"), _COLUMNS),
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
    return part if role == "labels" or isinstance(part, Rounded) else Rounded(part)


#: Number of elements of a piece; smaller pieces are dominated by the overhead of NumPy's functions.
_PIECE_ELEMENTS: Final = 1 << 17


#: Chooses some of the pieces.
Choice = Callable[[Sequence[tuple[slice, ...]]], Sequence[tuple[slice, ...]]]


def choice(rng: np.random.Generator, points: int) -> Choice:
    """Return a choice of about ``points`` elements: first and last piece, and random others."""
    count = max(2, points // _PIECE_ELEMENTS)

    def first_last_and_random(places: Sequence[tuple[slice, ...]]) -> Sequence[tuple[slice, ...]]:
        if len(places) <= count:
            return places
        between = 1 + rng.choice(len(places) - 2, count - 2, replace=False)
        return [places[i] for i in (0, *sorted(between), len(places) - 1)]

    return first_last_and_random


def evaluate(
    layer: Layer,
    inputs: Inputs,
    formula: Formula,
    whole: tuple[int, ...] = (),
    selected: Choice | None = None,
) -> Iterator[tuple[str, tuple[slice, ...], Rounded]]:
    """Evaluate a formula piece by piece: role, slices of the view, and numbers.

    Args:
        layer: Layer of the pass.
        inputs: Tensors that the formula reads, by role.
        formula: Function of a layer and its tensors or pieces of them.
        whole: Axes that are not cut.
        selected: Chooses the pieces; None: all. Sums over pieces need all.
    """
    absent = {
        role: np.broadcast_to(np.float32(0), shape)
        for role, shape in layer.shapes().items()
        if role not in inputs and role in layer.reads("forward") and layer.op in _LINEAR
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

    places = list(pieces(largest, _PIECE_ELEMENTS, whole))
    for cut, by_role in in_threads(results, selected(places) if selected else places):
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


def expected_pieces(
    layer: Layer, pass_: str, propagation: str, inputs: Inputs, selected: Choice | None = None
) -> Iterator[Piece]:
    """Yield the expected results of a pass; the pieces cover each element once.

    With ``selected``, results of the size of the largest tensor have only the chosen pieces.

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
        results = _batchnorm(layer, pass_, given, selected)
    else:
        along = (layer.axis,) if "axis" in layer.fields else ()
        sizes = {role: math.prod(shape) for role, shape in layer.shapes().items()}
        # Results that are smaller may be sums over pieces.
        largest = max(sizes[role] for role in given)
        if any(sizes[role] != largest for role in layer.writes(pass_, propagation)):
            selected = None
        results = evaluate(layer, given, formula, _UNCUT_AXES.get(layer.op, along), selected)
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
#: Kernels sum differences from some value, by Welford's updates or to keep the digits of the
#: variance. Their last additions round numbers as large as an element, which is sqrt(M) times the
#: size of the terms of the mean. With a factor of four, the tolerance is 8 units of an element.
_SHIFT_FACTOR: Final = 4


def _batchnorm(
    layer: Layer, pass_: str, inputs: Mapping[str, Any], selected: Choice | None
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
    yield from evaluate(layer, {**inputs, **sums}, formula, selected=selected)


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
    selected = None if run.points is None else choice(run.rng, run.points)
    expected = expected_pieces(layer, run.pass_, run.propagation, run.inputs, selected)
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


_TINY: Final = np.finfo(np.float64).tiny
#: Error scale of exact values.
_NO_ERROR: Final = np.zeros(())


def check_exact(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare a result whose elements are copies of input elements, or zeros: exact."""
    (role,) = run.results
    single = layer.with_batch(1)

    def expected() -> Iterator[Piece]:
        # One image at a time if there is a batch.
        for image in range(layer.batch):
            here = slice(None) if layer.entry.batch is None else slice(image, image + 1)
            inputs = {name: array[here] for name, array in run.inputs.items()}
            value = single.entry.reference(np, single, SimpleNamespace(**inputs))
            value = value[role] if isinstance(value, dict) else value
            for first, *rest in pieces(value):
                place = first if layer.entry.batch is None else here
                cut = place, *rest
                yield Piece(
                    role=role, cut=cut, value=value[(first, *rest)], size=_NO_ERROR, terms=EXACT
                )

    return compare(layer, run, expected())


def check_order(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare sorted elements or running extremes; of equal elements any index may be chosen."""
    (source,) = run.inputs.values()
    axis = layer.axis

    def expected() -> Iterator[Piece]:
        t = SimpleNamespace(src=source)
        right = layer.entry.reference(np, layer, t)
        if "indices" in run.results:
            given = run.results["indices"]
            places = np.clip(np.nan_to_num(given), 0, source.shape[axis] - 1).astype(np.intp)
            valid = np.take_along_axis(source, places, axis) == right["dst"]
            if layer.op == "sort":
                ordered = np.sort(places, axis)
                repeated = np.diff(ordered, axis=axis) == 0
                valid &= ~repeated.any(axis, keepdims=True)
            else:
                along = np.arange(source.shape[axis]).reshape(-1, *(1,) * (3 - axis))
                valid &= places <= along
            right["indices"] = np.where(valid & (places == given), places, right["indices"])
        for role in run.results:
            value = right[role].astype(np.float64)
            whole = (slice(None),) * value.ndim
            yield Piece(role=role, cut=whole, value=value, size=_NO_ERROR, terms=EXACT)

    return compare(layer, run, expected())


def check_windows(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare copies of windows, their sums, or sampled images, one image at a time."""
    if (layer.op, run.pass_) == ("unfold", "forward"):
        return check_exact(layer, run)
    (role,) = run.results
    single = layer.with_batch(1)

    def expected() -> Iterator[Piece]:
        for image in range(layer.batch):
            here = slice(image, image + 1)
            t = SimpleNamespace(**{name: Rounded(x[here]) for name, x in run.inputs.items()})
            if run.pass_ == "forward":
                numbers = forward(single, t)[role]
            else:
                t.src = Rounded(np.zeros(single.shapes()["src"]))
                numbers = gradient(single, t)[role]
            yield make_piece(role, (here, *(slice(None),) * (numbers.value.ndim - 1)), numbers)

    return compare(layer, run, expected())


def check_transform(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare a Fourier transform; errors grow with the logarithm of its length."""
    value = layer.reference(run.inputs)["dst"]
    squares = np.square(run.inputs["src"], dtype=np.float64)
    squares = squares if layer.op == "real" else squares.sum(-1)  # of pairs
    axes = tuple(range(-layer.over, 0))
    size = np.sqrt(squares.sum(axes, keepdims=True))
    length = math.prod(layer.src[-layer.over :])
    # The inverse reads half of its terms.
    size = 2 * size / length if layer.op == "inverse-real" else size[..., None]
    whole = (slice(None),) * value.ndim
    terms = max(1, math.ceil(math.log2(length)))
    size = np.broadcast_to(size, value.shape)
    return compare(layer, run, [Piece(role="dst", cut=whole, value=value, size=size, terms=terms)])


def check_distance(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare distances; kernels may subtract products from squares, and then take the root."""
    batch, rows, width = layer.src
    step = max(1, _PIECE_ELEMENTS // (layer.src2[1] * width))
    energies = [np.square(run.inputs[role], dtype=np.float64).sum(-1) for role in ("src", "src2")]

    def expected() -> Iterator[Piece]:
        for image, first in itertools.product(range(batch), range(0, rows, step)):
            here, part = slice(image, image + 1), slice(first, first + step)
            given = {"src": run.inputs["src"][here, part], "src2": run.inputs["src2"][here]}
            value = layer.reference(given)["dst"]
            energy = energies[0][here, part, None] + energies[1][here, None]
            size = energy / np.maximum(value, _TINY)
            cut = (here, part, slice(None))
            yield Piece(role="dst", cut=cut, value=value, size=size, terms=width + TRANSCENDENTAL)

    return compare(layer, run, expected())


def check_reduction(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare all elements of a reduction; maxima, minima and products of signs are exact."""
    if layer.op in ("max", "min", "prod"):
        return check_exact(layer, run)
    if layer.op == "logsumexp":
        return compare(layer, run, _sums_of_exponentials(layer, run))
    if "indices" in layer.writes("forward"):
        return compare(layer, run, _extremes(layer, run))
    axes = [i for i, (n, out) in enumerate(zip(layer.src, layer.dst, strict=True)) if n != out]
    terms = math.prod(layer.src) // math.prod(layer.dst)
    source = run.inputs["src"]
    value, squares = sums_over(np.abs(source) if layer.op == "norm1" else source, axes)
    size = np.sqrt(squares)
    if layer.op == "mean":
        value, size = value / terms, size / terms
    elif layer.op == "norm":
        value, terms = size, terms + TRANSCENDENTAL
    elif layer.op in ("var", "std"):
        # Kernels may subtract the squared mean from the mean square.
        size = squares / terms
        value = np.maximum(size - np.square(value / terms), 0)
        if layer.op == "std":
            value = np.sqrt(value)
            size, terms = value + size / np.maximum(value, _TINY), terms + TRANSCENDENTAL
    whole = (slice(None),) * value.ndim
    sums = Piece(role="dst", cut=whole, value=value, size=size, terms=terms)
    return compare(layer, run, [sums])


def _kept_parts(layer: Layer) -> Iterator[tuple[slice, ...]]:
    """Yield slices of a reduction's source and result along the longest dimension that is kept."""
    kept = [n if n == out else 0 for n, out in zip(layer.src, layer.dst, strict=True)]
    axis = int(np.argmax(kept))
    step = max(1, _PIECE_ELEMENTS * kept[axis] // math.prod(layer.src))
    for first in range(0, max(1, kept[axis]), step):
        cut = [slice(None)] * len(kept)
        cut[axis] = slice(first, first + step) if kept[axis] else slice(None)
        yield tuple(cut)


def _sums_of_exponentials(layer: Layer, run: KernelRun) -> Iterator[Piece]:
    for cut in _kept_parts(layer):
        part = Rounded(run.inputs["src"][cut])
        yield make_piece("dst", cut, forward(layer, SimpleNamespace(src=part))["dst"])


def _extremes(layer: Layer, run: KernelRun) -> Iterator[Piece]:
    """Yield expected extremes and indices: a result's own where libraries may choose equal ones."""
    (axis,) = (i for i, n in enumerate(layer.src) if n != layer.dst[i])
    find = np.argmin if "min" in layer.op else np.argmax
    for cut in _kept_parts(layer):
        source = run.inputs["src"][cut]
        first = find(source, axis, keepdims=True)
        expected = {"dst": np.take_along_axis(source, first, axis), "indices": first}
        if "indices" in run.results:
            given = run.results["indices"].reshape(layer.dst)[cut]
            places = np.clip(np.nan_to_num(given), 0, layer.src[axis] - 1).astype(np.intp)
            equal = np.take_along_axis(source, places, axis) == expected["dst"]
            expected["indices"] = np.where(equal & (places == given), places, first)
        for role in run.results:
            value = expected[role].astype(np.float64)
            yield Piece(role=role, cut=cut, value=value, size=_NO_ERROR, terms=EXACT)


def check_gather(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare all rows: copied rows are exact, others are sums."""
    if layer.op in ("rows", "put-rows-in-place"):
        return check_exact(layer, run)
    whole = {role: array for role, array in run.inputs.items() if role != "indices"}
    indices = run.inputs["indices"]
    own = indices.shape[-1] if indices.ndim == 3 else 1  # an index for each column

    def expected() -> Iterator[Piece]:
        for first in range(0, layer.width, _GATHERED_COLUMNS):
            columns = slice(first, min(first + _GATHERED_COLUMNS, layer.width))
            given = {role: array[..., columns].astype(float) for role, array in whole.items()}
            width = columns.stop - first
            sizes = {"index_width": width} if own > 1 else {}
            part = layer.replace(width=width, **sizes)
            here = {"indices": indices[..., columns] if own > 1 else indices}
            ones = {role: np.ones_like(array) for role, array in given.items()}
            squares = {role: np.square(array) for role, array in given.items()}
            value, square, terms = (
                part.reference(here | numbers)["dst"] for numbers in (given, squares, ones)
            )
            cut = (*(slice(None),) * (value.ndim - 1), columns)
            size = np.sqrt(square)
            yield Piece(role="dst", cut=cut, value=value, size=size, terms=int(terms.max()))

    return compare(layer, run, expected())


#: Number of columns of a table that are compared at a time.
_GATHERED_COLUMNS: Final = 64

# -----------------------------------------------------------------------------
# Maxima of windows, and their gradient.

#: Maximum number of comparisons of the backward pass; of a larger layer only some images are
#: compared.
_COMPARISONS: Final = 40_000_000
_SIDES: Final = (2, 3, 4)


def choose(rng: np.random.Generator, count: int, affordable: int) -> NDArray[np.intp]:
    """Choose some of many images or heads, including the first and the last.

    A kernel that starts late or stops early fails there.
    """
    if count <= max(2, affordable):
        return np.arange(count)
    inner = rng.permutation(np.arange(1, count - 1))[: max(0, affordable - 2)]
    return np.sort(np.concatenate([[0, count - 1], inner]))


def check_maxima(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare a max pooling with the reference.

    The maximum over padding alone is minus infinity, or the lowest finite number. The gradient of a
    large layer is compared element by element in some images, and by the sum over each channel in
    all of them.
    """
    if run.pass_ != "forward":
        return _check_gradient(layer, run)
    if any(axis.used_outputs() < axis.out for axis in layer.axes):
        least = -largest(run.precision)
        results = {
            role: np.where(array <= least, -np.inf, array) for role, array in run.results.items()
        }
        run = replace(run, results=results)
    return check_exact(layer, run)


def _check_gradient(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    output, inputs = run.results["src"], run.inputs
    per_image = layer.flops("backward-data") // layer.batch
    single = layer.with_batch(1)

    def expected() -> Iterator[Piece]:
        for image in choose(run.rng, layer.batch, _COMPARISONS // per_image):
            here = slice(image, image + 1)
            given = {role: array[here] for role, array in inputs.items()}
            for role, cut, numbers in evaluate(single, given, gradient, _SIDES[: layer.sides]):
                yield make_piece(role, (here, *cut[1:]), numbers)

    ((role, compared),) = compare(layer, run, expected()).items()
    worst = worse(compared.worst, _channel_sums(layer, inputs["dst"], output))
    return {role: replace(compared, checksums=math.prod(output.shape[:2]), worst=worst)}


def _channel_sums(layer: Layer, gradient_: NDArray[Any], output: NDArray[Any]) -> Deviation:
    """Compare the sum over each channel of each image: no gradient is lost or counted twice.

    The gradient of a window of padding alone is dropped.
    """
    got, got_energy = sums_over(output, range(2, output.ndim))
    factors = {
        number: (np.array(axis.elements_inside(), ndmin=2).T > 0).astype(np.float64)
        for number, axis in enumerate(layer.axes, start=2)
    }
    expected, energy = contract(gradient_, factors, factors)
    return worst_of(
        got,
        expected,
        CHECKSUM_UNIT * np.sqrt(got_energy + energy),
        lambda at: "checksum of " + element_name("src", [at[0], at[1], *":" * layer.sides]),
    )


#: Errors may be this many times as large as elsewhere: kernels round scores, weights, their
#: gradients, and the result that the backward pass reads, to the storage format.
_SCORES_FACTOR: Final = 1.5 * TAIL_FACTOR
#: Maximum number of multiply-adds of the reference; of a larger layer only some heads are compared.
_COMPARED_MACS: Final = 1_000_000_000


def check_attention(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare the results of a pass with the reference.

    The heads of queries that share keys and values are compared together. Of a large layer only
    some such groups are compared, always with the first and the last; the other elements are only
    checked to be finite.
    """
    count = layer.batch * layer.kv_heads
    groups = choose(run.rng, count, _COMPARED_MACS * count // layer.flops(run.pass_))
    compared = compare(layer, run, _expected(layer, run, groups))
    if len(groups) == count:
        return compared
    return {
        role: replace(found, worst=worse(found.worst, _unwritten(role, run.results[role])))
        for role, found in compared.items()
    }


def _expected(layer: Layer, run: KernelRun, groups: NDArray[np.intp]) -> Iterator[Piece]:
    formula = forward if run.pass_ == "forward" else gradient
    for image, shared in zip(*np.unravel_index(groups, (layer.batch, layer.kv_heads)), strict=True):
        totals: dict[str, Rounded] = {}
        for head, rows, t in query_blocks(layer, run.inputs, int(image), int(shared)):
            tensors = {role: Rounded(array) for role, array in t.items()}
            results = formula(layer, SimpleNamespace(**tensors, first=rows.start))
            for role, numbers in results.items():
                if role in ("dst", "query"):
                    yield make_piece(
                        role,
                        (*_single(image, head), rows, slice(None)),
                        numbers,
                        _SCORES_FACTOR,
                    )
                else:
                    totals[role] = totals[role] + numbers if role in totals else numbers
        for role, numbers in totals.items():
            yield make_piece(
                role,
                (*_single(image, shared), slice(None), slice(None)),
                numbers,
                _SCORES_FACTOR,
            )


def _single(*places: int) -> tuple[slice, ...]:
    return tuple(slice(int(place), int(place) + 1) for place in places)


def _unwritten(role: str, output: NDArray[Any]) -> Deviation:
    """Return an error of NaN if any element is not finite, else of zero."""
    finite = all(bool(np.isfinite(output[cut]).all()) for cut in pieces(output))
    error = 0.0 if finite else math.nan
    return Deviation(error=error, where=role, got=error, expected=0.0)

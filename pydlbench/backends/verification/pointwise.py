"""Memory-bound layers against the reference: every element of every result."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.backends.verification.checksums import (
    EXACT,
    F64,
    TRANSCENDENTAL,
    Comparison,
    Deviation,
    Piece,
    element_name,
    larger,
    per_channel,
    pieces,
    size_of_miss,
    sums_over,
    whole_columns,
    worst_of,
)
from pydlbench.backends.verification.elements import by_element, elements
from pydlbench.backends.verification.inputs import UNIT_ROUNDOFF, smallest_normal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.verification.checksums import Computed
    from pydlbench.ops.op import Layer

    Inputs = Mapping[str, NDArray[Any]]


# -----------------------------------------------------------------------------
# Factors of channels, and images behind one another.


def _term(role: str, cut: tuple[slice, ...], value: NDArray[Any], terms: int) -> Piece:
    """Return a piece whose elements are single terms, rounded as sums of so many are."""
    return Piece(role=role, cut=cut, value=value, size=np.abs(value), terms=terms)


def scale_gradient(layer: Layer, inputs: Inputs) -> Iterator[Piece]:
    """The gradient times the factors: one term; and the factors': a sum over each map."""
    for cut in pieces(inputs["src"]):
        value = _exact(inputs["dst"][cut]) * _exact(inputs["src2"][cut[:2]])
        yield _term("src", cut, value, 1)
    for image in range(layer.batch):
        here = slice(image, image + 1)
        products = _exact(inputs["src"][here]) * _exact(inputs["dst"][here])
        yield Piece(
            role="src2",
            cut=(here, slice(None), slice(None), slice(None)),
            value=products.sum(axis=(2, 3), keepdims=True),
            size=np.sqrt(np.square(products).sum(axis=(2, 3), keepdims=True)),
            terms=layer.height * layer.width,
        )


def concat(layer: Layer, inputs: Inputs, pass_: str) -> Iterator[Piece]:
    """Images behind one another, or taken apart: exact."""
    first = 0
    for role in layer.reads("forward"):
        joined = slice(first, first + layer.shapes()[role][1])
        first = joined.stop
        given = inputs[role] if pass_ == "forward" else inputs["dst"][:, joined]
        for cut in pieces(given):
            value = given[cut]
            to = cut
            if pass_ == "forward":
                channels = slice(cut[1].start + joined.start, cut[1].stop + joined.start)
                to = cut[0], channels, *cut[2:]
            yield _term("dst" if pass_ == "forward" else role, to, value, EXACT)


def _exact(values: NDArray[Any]) -> F64:
    return values.astype(np.float64)


# -----------------------------------------------------------------------------
# Layers that sum over a whole tensor: gradients of biases, weight norms, softmax and its loss.


_ALL = (slice(None),)


def channel_sums(images: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sum over each channel of NCHW images, and that of the squares."""
    sums, squares = sums_over(images, (0, 2, 3))
    return sums[0, :, 0, 0], squares[0, :, 0, 0]


def bias_gradient(layer: Layer, inputs: Inputs) -> Iterator[Piece]:
    """The sum over a channel, of as many terms as it has elements."""
    sums, squares = channel_sums(inputs["dst"])
    terms = layer.batch * layer.height * layer.width
    yield Piece(role="bias", cut=_ALL, value=sums, size=np.sqrt(squares), terms=terms)


def weight_norm(layer: Layer, inputs: Inputs) -> Iterator[Piece]:
    """Half the sum of all squares."""
    total = fourths = 0.0
    for cut in pieces(inputs["weights"]):
        squares = np.square(inputs["weights"][cut].astype(np.float64)) / 2
        total += float(squares.sum())
        fourths += float(np.square(squares).sum())
    yield Piece(
        role="dst",
        cut=_ALL,
        value=np.array([total]),
        size=np.sqrt([fourths]),
        terms=layer.channels,
    )


def cross_entropy(layer: Layer, inputs: Inputs) -> Iterator[Piece]:
    """Probabilities, each one term over a sum of all classes; and the mean over the rows.

    The loss of a row is the logarithm of a sum, less the logit of its label, both relative to the
    largest logit.
    """
    labels = inputs["labels"].astype(np.int64)
    loss = squares = 0.0
    for cut in whole_columns(inputs["src"].shape):
        logits = inputs["src"][cut].astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        powers = np.exp(shifted)
        sums = powers.sum(axis=1, keepdims=True)
        value = powers / sums
        terms = layer.channels + TRANSCENDENTAL
        yield Piece(role="dst", cut=cut, value=value, size=value, terms=terms)
        rows = np.arange(len(shifted))
        chosen = shifted[rows, labels[cut[0]], 0, 0]
        logarithms = np.log(sums[:, 0, 0, 0])
        loss += float(np.sum(logarithms - chosen))
        squares += float(np.sum(logarithms**2 + chosen**2))
    yield Piece(
        role="loss",
        cut=_ALL,
        value=np.array([loss / layer.batch]),
        size=np.sqrt([squares]) / layer.batch,
        terms=layer.batch + layer.channels + TRANSCENDENTAL,
    )


def softmax_gradient(layer: Layer, inputs: Inputs) -> Iterator[Piece]:
    """The probability, less one at the label, over the batch: two terms."""
    labels = inputs["labels"].astype(np.int64)
    for cut in whole_columns(inputs["dst"].shape):
        probabilities = inputs["dst"][cut].astype(np.float64)
        chosen = np.zeros_like(probabilities)
        chosen[np.arange(len(chosen)), labels[cut[0]]] = 1
        value = (probabilities - chosen) / layer.batch
        size = np.hypot(probabilities, chosen) / layer.batch
        yield Piece(role="src", cut=cut, value=value, size=size, terms=2)


# -----------------------------------------------------------------------------
# What works along the last axis: softmax, its logarithm, and normalisations.


#: How much more than a softmax its logarithm may be off: what oneDNN's own test grants it
#: (``trh_coeff_log`` in tests/benchdnn/softmax/softmax.cpp of oneDNN 3; 4 in 2020). With a factor
#: of one all others are right, and oneDNN's AVX-512 kernel of 2023 is not: 33 units where 18 are
#: allowed, in float32 rows of three.
_LOGARITHM: Final = 5


def softmax(layer: Layer, inputs: Inputs) -> Iterator[Piece]:
    """Probabilities: each one term over a sum of the row; or their logarithms: three terms."""
    terms = layer.width + TRANSCENDENTAL
    for cut in _whole_rows(layer):
        logits = _exact(inputs["src"][cut])
        most = logits.max(axis=-1, keepdims=True)
        powers = np.exp(logits - most)
        sums = powers.sum(axis=-1, keepdims=True)
        if layer.op == "softmax":
            value = size = powers / sums
        else:
            value = logits - most - np.log(sums)
            size = _LOGARITHM * np.sqrt(logits**2 + most**2 + np.log(sums) ** 2)
        yield Piece(role="dst", cut=cut, value=value, size=size, terms=terms)


def softmax_slope(layer: Layer, inputs: Inputs) -> Iterator[Piece]:
    """``result (dst - sum(dst result))``, of logarithms ``dst - exp(result) sum(dst)``."""
    terms = layer.width + TRANSCENDENTAL
    for cut in _whole_rows(layer):
        given, result = _exact(inputs["dst"][cut]), _exact(inputs["result"][cut])
        if layer.op == "softmax":
            products = given * result
            value = result * (given - products.sum(axis=-1, keepdims=True))
            size = result * np.sqrt(given**2 + np.square(products).sum(axis=-1, keepdims=True))
        else:
            power = np.exp(result)
            value = given - power * given.sum(axis=-1, keepdims=True)
            size = np.sqrt(given**2 + power**2 * np.square(given).sum(axis=-1, keepdims=True))
        yield Piece(role="src", cut=cut, value=value, size=size, terms=terms)


def normalised_rows(layer: Layer, inputs: Inputs, pass_: str, propagation: str) -> Iterator[Piece]:
    """Normalised rows and their statistics, or the gradients; those of weights are sums over rows.

    What is computed of a row is measured against what the same formula misses by in float32.
    """
    backward = pass_ == "backward-data"
    formula = _ROW_GRADIENTS[layer.op] if backward else layer.entry.reference
    summed = layer.entry.trained if backward else ()
    sums = {role: np.zeros(layer.width) for role in summed}
    squares = {role: np.zeros(layer.width) for role in summed}
    terms = layer.width + TRANSCENDENTAL
    for cut, rows in _whole_rows_numbered(layer):
        exact, narrow = (
            _of_rows(formula, layer, inputs, cut, rows, dtype) for dtype in (np.float64, np.float32)
        )
        for role in layer.writes(pass_, propagation):
            if role in summed:
                sums[role] += exact[role].sum(axis=(0, 1, 2))
                squares[role] += np.square(exact[role]).sum(axis=(0, 1, 2))
                continue
            yield Piece(
                role=role,
                cut=cut if role in ("src", "dst") else (rows,),
                value=exact[role],
                size=size_of_miss(narrow[role], exact[role], UNIT_ROUNDOFF["float32"]),
                terms=terms,
            )
    count = layer.batch * layer.channels * layer.height
    for role, value in sums.items():
        size = np.sqrt(squares[role])
        yield Piece(role=role, cut=_ALL, value=value, size=size, terms=count + TRANSCENDENTAL)


def _of_rows(
    formula: Callable[..., Any],
    layer: Layer,
    inputs: Inputs,
    cut: tuple[slice, ...],
    rows: slice,
    dtype: Any,
) -> dict[str, NDArray[Any]]:
    """Return what a formula makes of some rows, by role."""
    tensors = {}
    for role, tensor in inputs.items():
        if role in ("src", "dst"):
            tensors[role] = tensor[cut].astype(dtype)
        elif role in layer.entry.trained:
            tensors[role] = tensor.astype(dtype)
        else:  # one number for each row
            tensors[role] = tensor[rows].astype(dtype).reshape(1, -1, layer.height, 1)
    results = formula(np, layer, SimpleNamespace(**tensors))
    return results if isinstance(results, dict) else {"dst": results}


def _rmsnorm_gradient(_: Any, layer: Layer, t: Any) -> dict[str, Any]:
    """Return the gradient of rows, and what is added up to that of the weights."""
    inverse = 1 / np.sqrt(np.square(t.src).mean(axis=-1, keepdims=True) + layer.epsilon)
    source, inner = t.src * inverse, t.dst * t.weights
    mean = (inner * source).mean(axis=-1, keepdims=True)
    return {"src": inverse * (inner - source * mean), "weights": t.dst * source}


def _layernorm_gradient(_: Any, layer: Layer, t: Any) -> dict[str, Any]:
    """Return the gradient of rows, and what is added up to those of weights and bias."""
    inverse = 1 / np.sqrt(t.variance + layer.epsilon)
    distance, inner = (t.src - t.mean) * inverse, t.dst * t.weights
    shift = inner.mean(axis=-1, keepdims=True)
    slope = (inner * distance).mean(axis=-1, keepdims=True)
    return {
        "src": inverse * (inner - (shift + distance * slope)),
        "weights": t.dst * distance,
        "bias": t.dst,
    }


_ROW_GRADIENTS: Final = {"rmsnorm": _rmsnorm_gradient, "layernorm": _layernorm_gradient}


def _whole_rows(layer: Layer) -> Iterator[tuple[slice, ...]]:
    """Cut images into pieces that have all elements of their rows."""
    return (cut for cut, _ in _whole_rows_numbered(layer))


def _whole_rows_numbered(layer: Layer) -> Iterator[tuple[tuple[slice, ...], slice]]:
    """Yield such pieces, each with the numbers of its rows."""
    some = max(1, _PIECE // (layer.height * layer.width))
    for image in range(layer.batch):
        for first in range(0, layer.channels, some):
            last = min(first + some, layer.channels)
            rows = (image * layer.channels + first, image * layer.channels + last)
            yield (
                (slice(image, image + 1), slice(first, last), slice(None), slice(None)),
                slice(rows[0] * layer.height, rows[1] * layer.height),
            )


#: Elements of such a piece, unless a channel has more.
_PIECE: Final = 1 << 16


# -----------------------------------------------------------------------------
# Local response normalisation against the definition.


def lrn(layer: Layer, inputs: Mapping[str, NDArray[Any]], pass_: str) -> Iterator[Piece]:
    """Images over a power of their neighbourhood, and the gradient.

    Forward is one term, whose power hides a sum over the neighbourhood. Backward is that of the
    gradient and one of each neighbour.
    """
    terms = layer.local_size + TRANSCENDENTAL
    for cut in whole_columns(inputs["src"].shape):
        source = inputs["src"][cut].astype(np.float64)
        scale = layer.alpha / layer.local_size
        base = layer.k + scale * _neighbours(source**2, layer.local_size)
        power = base**-layer.beta
        if pass_ == "forward":
            value = source * power
            yield _term("dst", cut, value, terms)
            continue
        gradient = inputs["dst"][cut].astype(np.float64)
        ratio = gradient * source * power / base
        factor = 2 * layer.beta * scale * source
        size = np.hypot(gradient * power, factor * np.sqrt(_neighbours(ratio**2, layer.local_size)))
        value = gradient * power - factor * _neighbours(ratio, layer.local_size)
        yield Piece(role="src", cut=cut, value=value, size=size, terms=terms)


def _neighbours(images: F64, count: int) -> F64:
    """Sum over ``count`` channels around each one; there is nothing beyond the first and last."""
    channels = images.shape[1]
    half = count // 2
    result = images.copy()
    for distance in range(1, min(half, channels - 1) + 1):
        result[:, distance:] += images[:, :-distance]
        result[:, :-distance] += images[:, distance:]
    return result


# -----------------------------------------------------------------------------
# Batch normalisation against the definition: inference, training and the gradients.


_SHIFTED = 4


def batchnorm(layer: Layer, inputs: Inputs, propagation: str) -> Iterator[Piece]:
    """Normalised images, and in training the statistics.

    A normalised element is the scaled source, the scaled mean and the bias. In training all of them
    depend on sums over a channel, so these count as its terms, and what an error of the variance
    makes of it is one more.
    """
    if propagation == "inference":
        mean, variance = (inputs[role].astype(np.float64) for role in ("mean", "variance"))
        spread = np.zeros_like(variance)
        terms = 3 + TRANSCENDENTAL
    else:
        mean, mean_size, variance, spread = _statistics(layer, inputs["src"])
        terms = _elements(layer) + TRANSCENDENTAL
        for role, value, size in (("mean", mean, mean_size), ("variance", variance, spread)):
            yield Piece(role=role, cut=_ALL, value=value, size=size, terms=terms)
        yield from _running(layer, inputs, mean, mean_size, variance, spread)
    scale = inputs["weights"].astype(np.float64) / np.sqrt(variance + layer.epsilon)
    slope = scale * spread / (variance + layer.epsilon) / 2
    for cut in pieces(inputs["src"]):
        source = inputs["src"][cut].astype(np.float64)
        centre, factor = per_channel(mean, cut[1]), per_channel(scale, cut[1])
        shift = per_channel(inputs["bias"], cut[1])
        squares = (source * factor) ** 2 + (centre * factor) ** 2 + shift**2
        squares += ((source - centre) * per_channel(slope, cut[1])) ** 2
        value = (source - centre) * factor + shift
        yield Piece(role="dst", cut=cut, value=value, size=np.sqrt(squares), terms=terms)


def batchnorm_gradient(layer: Layer, inputs: Inputs) -> Iterator[Piece]:
    """The gradients of bias and scale, which are sums over channels, and that of the source."""
    source, gradient = inputs["src"], inputs["dst"]
    mean = inputs["mean"].astype(np.float64)
    inverse = 1 / np.sqrt(inputs["variance"].astype(np.float64) + layer.epsilon)
    count = _elements(layer)
    terms = count + TRANSCENDENTAL
    shift, shift_squares = channel_sums(gradient)
    slope = np.zeros(layer.channels)
    slope_squares = np.zeros(layer.channels)
    for cut in pieces(source):
        given = gradient[cut].astype(np.float64)
        here = source[cut].astype(np.float64)
        slope[cut[1]] += (given * (here - per_channel(mean, cut[1]))).sum(axis=(0, 2, 3))
        slope_squares[cut[1]] += ((given * here) ** 2).sum(axis=(0, 2, 3))
    slope *= inverse
    shift_size = np.sqrt(shift_squares)
    slope_size = inverse * np.sqrt(slope_squares + mean**2 * shift_squares)
    yield Piece(role="weights", cut=_ALL, value=slope, size=slope_size, terms=terms)
    yield Piece(role="bias", cut=_ALL, value=shift, size=shift_size, terms=terms)
    scale = inputs["weights"].astype(np.float64) * inverse
    # The squared terms that are the same all over a channel, and those that grow with the source.
    constant = (shift**2 + shift_squares + (mean * inverse * slope) ** 2) / count**2
    growing = (slope**2 + slope_size**2) * inverse**2 / count**2
    for cut in pieces(source):
        given = gradient[cut].astype(np.float64)
        here = source[cut].astype(np.float64)
        distance = (here - per_channel(mean, cut[1])) * per_channel(inverse, cut[1])
        value = given - (per_channel(shift, cut[1]) + distance * per_channel(slope, cut[1])) / count
        squares = given**2 + per_channel(constant, cut[1])
        squares += here**2 * per_channel(growing, cut[1])
        factor = per_channel(scale, cut[1])
        size = np.abs(factor) * np.sqrt(squares)
        yield Piece(role="src", cut=cut, value=factor * value, size=size, terms=terms)


def _statistics(layer: Layer, images: NDArray[Any]) -> tuple[F64, F64, F64, F64]:
    """Return mean and biased variance of each channel, each with the size of its terms.

    Kernels sum differences from some value, by Welford's updates or to keep the digits of the
    variance. Their last few additions round numbers as large as an element, which is sqrt(M) times
    the size of the mean's own terms; counted four times, the tolerance is 12 units of an element.

    Terms of the variance are the squares of the elements and that of the mean: many kernels
    subtract one from the other.
    """
    count = _elements(layer)
    sums, squares = channel_sums(images)
    mean = sums / count
    variance, fourths = np.zeros(layer.channels), np.zeros(layer.channels)
    for cut in pieces(images):
        here = images[cut].astype(np.float64)
        variance[cut[1]] += ((here - per_channel(mean, cut[1])) ** 2).sum(axis=(0, 2, 3))
        here *= here
        fourths[cut[1]] += (here * here).sum(axis=(0, 2, 3))  # a fourth power takes far longer
    spread = np.sqrt(fourths / count**2 + mean**4)
    return mean, _SHIFTED * np.sqrt(squares) / count, variance / count, spread


def _running(
    layer: Layer, inputs: Inputs, mean: F64, mean_size: F64, variance: F64, spread: F64
) -> Iterator[Piece]:
    """Yield the running statistics, moved towards those of the batch."""
    count = _elements(layer)
    unbiased = count / max(1, count - 1)
    for role, value, size in (
        ("running_mean", mean, mean_size),
        ("running_variance", variance * unbiased, spread * unbiased),
    ):
        old = (1 - layer.momentum) * inputs[role].astype(np.float64)
        new = layer.momentum * value
        yield Piece(
            role=role,
            cut=_ALL,
            value=old + new,
            size=np.sqrt(old**2 + new**2 + (layer.momentum * size) ** 2),
            terms=count + TRANSCENDENTAL,
        )


def _elements(layer: Layer) -> int:
    """Return the elements of a channel."""
    return layer.batch * int(layer.height * layer.width)


def check_pointwise(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare the results of a pass with the reference; see :func:`compare`."""
    expected = expected_pieces(layer, computed.pass_, computed.propagation, computed.inputs)
    return compare(layer, computed, expected)


def compare(layer: Layer, computed: Computed, expected: Iterable[Piece]) -> dict[str, Comparison]:
    """Compare results with what they should be, piece by piece.

    Below the smallest normal number of the precision results have fewer digits, so what is rounded
    is measured against that number at least. (In float16 it is 6e-5: the gradients of a softmax
    over 1000 classes are smaller.)

    Returns:
        What was found for each of the results that are there.
    """
    results = computed.results
    found: dict[str, Comparison] = {}
    for piece in expected:
        if piece.role not in results:
            continue
        scale = np.abs(piece.value) + piece.size
        if piece.terms != EXACT:
            stored = "fp32" if layer.in_float32(piece.role) else computed.precision
            scale = np.maximum(scale, smallest_normal(stored))
        worst = worst_of(results[piece.role][piece.cut], piece.value, scale, _namer(piece))
        before = found.get(piece.role)
        found[piece.role] = Comparison(
            terms=piece.terms,
            points=piece.value.size + (before.points if before else 0),
            checksums=0,
            worst=larger(worst, before.worst if before else _NOTHING),
        )
    return found


def expected_pieces(layer: Layer, pass_: str, propagation: str, inputs: Inputs) -> Iterator[Piece]:
    """Yield what a pass should give, piece by piece, until all elements of all results are there.

    Raises:
        KeyError: An input is missing.
    """
    step = layer.op, pass_
    if by_element(layer, pass_):
        return elements(layer, pass_, inputs)
    if step == ("batchnorm", "forward"):
        return batchnorm(layer, inputs, propagation)
    if layer.op in _ROW_GRADIENTS:
        return normalised_rows(layer, inputs, pass_, propagation)
    return _OF_LAYER[step](layer, inputs)


_OF_LAYER: Final[Mapping[tuple[str, str], Callable[[Layer, Inputs], Iterator[Piece]]]] = {
    ("bias", "backward-weights"): bias_gradient,
    ("lrn", "forward"): partial(lrn, pass_="forward"),
    ("lrn", "backward-data"): partial(lrn, pass_="backward-data"),
    ("batchnorm", "backward-data"): batchnorm_gradient,
    ("scale", "backward-data"): scale_gradient,
    ("concat", "forward"): partial(concat, pass_="forward"),
    ("concat", "backward-data"): partial(concat, pass_="backward-data"),
    ("softmax-xent", "forward"): cross_entropy,
    ("softmax-xent", "backward-data"): softmax_gradient,
    ("softmax", "forward"): softmax,
    ("softmax", "backward-data"): softmax_slope,
    ("log-softmax", "forward"): softmax,
    ("log-softmax", "backward-data"): softmax_slope,
    ("l2", "forward"): weight_norm,
}

_NOTHING = Deviation(error=0.0, where="", got=0.0, expected=0.0)


def _namer(piece: Piece) -> Callable[[Sequence[int]], str]:
    """Name the elements of a piece by their place in the whole tensor."""
    first = [cut.start or 0 for cut in piece.cut]

    def name(at: Sequence[int]) -> str:
        return element_name(piece.role, [low + i for low, i in zip(first, at, strict=True)])

    return name

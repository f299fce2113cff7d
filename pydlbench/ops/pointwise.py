"""Memory-bound ops: activations, softmax, losses, and the steps of optimizers.

Some have a forward pass only: the gradient of an addition is the incoming gradient itself, for both
of its sources, and optimizers have no gradient.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from pydlbench.errors import UsageError
from pydlbench.ops.images import (
    BATCH,
    FLAT,
    HEIGHT,
    WEIGHTS,
    WIDTH,
    image_shape,
    in_rows,
    in_rows_of_logits,
    in_sources,
    in_weights,
    per_channel,
    pointwise_op,
    settle_width,
)
from pydlbench.ops.normalisations import NORMALISATIONS
from pydlbench.ops.op import NO_CUDA_KERNEL, Field, Layer, Op, Pass, Shape, in_place_op

# -----------------------------------------------------------------------------
# Activations.


def _settle_hardtanh(values: dict[str, Any]) -> None:
    settle_width(values)
    low, high = values["low"], values["high"]
    if low >= high:
        raise UsageError(f"low={low:g}: not below high={high:g}; nearest: {high - 1:g}")


def _with_slopes(layer: Layer, role: str) -> Shape:
    if role == "weights":
        return (1,) if layer.shared else (layer.channels,)
    return image_shape(layer)


def _softplus(np: Any, x: Any) -> Any:
    return np.logaddexp(0, x)


def _activation(
    name: str,
    forward: int,
    backward: int,
    formula: Callable[[Any, Any], Any],
    *,
    spread: bool = True,
    **options: Any,
) -> Op:
    """Return an activation with the given FLOPs per element, forward and backward."""
    return pointwise_op(
        name,
        {
            "forward": Pass(reads=("src",), writes=("dst",), flops=forward),
            "backward-data": Pass(reads=("src", "dst"), writes=("src",), flops=backward),
        },
        lambda np, _, t: formula(np, t.src),
        elementwise=True,
        spread=spread,
        **options,
    )


#: Factors of the exponential linear function that is a SELU.
SELU: Final = (1.6732632423543772, 1.0507009873554805)

_ACTIVATIONS: Final = (
    _activation("relu", 1, 1, lambda np, x: np.maximum(x, 0), spread=False),
    # Two comparisons; the gradient passes if both hold.
    _activation("relu6", 2, 2, lambda np, x: np.clip(x, 0, 6)),
    # An addition, two comparisons, a product and a division; backward two comparisons, a division,
    # an addition and a product (A. Howard et al., Searching for MobileNetV3, 2019, section 5.2).
    _activation("hardswish", 5, 5, lambda np, x: x * np.clip(x / 6 + 0.5, 0, 1)),
    # An addition, two comparisons and a division; backward two comparisons and a division.
    _activation("hardsigmoid", 4, 3, lambda np, x: np.clip(x / 6 + 0.5, 0, 1)),
    # A sign, an exponential, an addition, a division; backward of the result: a difference and
    # two products.
    _activation("sigmoid", 4, 3, lambda np, x: np.sigmoid(x)),
    # Backward of the result: a square, a difference and a product.
    _activation("tanh", 1, 3, lambda np, x: np.tanh(x)),
    # An exponential, an addition, a logarithm; backward a sigmoid and a product.
    _activation("softplus", 3, 5, _softplus),
    # ``-softplus(-x)``, with as many FLOPs.
    _activation("logsigmoid", 3, 5, lambda np, x: -_softplus(np, -x), no_gpu=NO_CUDA_KERNEL),
    # ``factor * x`` above zero, else ``factor * alpha * (exp(x) - 1)``, without the factors a
    # comparison, an exponential, a subtraction; backward a product instead of the subtraction.
    # With both factors it is a SELU (G. Klambauer et al., 2017).
    pointwise_op(
        "elu",
        {
            "forward": Pass(reads=("src",), writes=("dst",), flops=3),
            "backward-data": Pass(reads=("src", "dst"), writes=("src",), flops=3),
        },
        lambda np, s, t: (
            s.factor * np.where(t.src > 0, t.src, s.alpha * np.expm1(np.minimum(t.src, 0)))
        ),
        (
            Field(name="alpha", spelling="alpha", type="real", default=1.0, minimum=0, above=True),
            Field(name="factor", spelling="by", type="real", default=1.0, minimum=0, above=True),
        ),
        elementwise=True,
        spread=True,
    ),
    # A sigmoid and a product; backward a sigmoid, and 1 + src (1 - sigmoid) times two factors.
    _activation("silu", 5, 9, lambda np, x: x * np.sigmoid(x)),
    # A softplus, a tanh, a product; backward both, a sigmoid of the same exponential, a square,
    # a difference, two products, an addition and a product.
    _activation("mish", 5, 11, lambda np, x: x * np.tanh(_softplus(np, x))),
    # Scaling, the error function, an addition, two products; backward the first four, the
    # density (a square, two products, an exponential), a product, an addition and a product.
    _activation("gelu", 5, 11, lambda np, x: x * (1 + np.erf(x / math.sqrt(2))) / 2),
    # A polynomial of five, a tanh, an addition, two products; backward the polynomial and its
    # derivative of three, a tanh and 1 - tanh^2 (two), the two summands (two and three), their
    # sum and a product (D. Hendrycks and K. Gimpel, 2016).
    _activation(
        "gelu-tanh",
        9,
        18,
        lambda np, x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    ),
    # Two comparisons; the gradient passes between ``low`` and ``high``.
    pointwise_op(
        "hardtanh",
        {
            "forward": Pass(reads=("src",), writes=("dst",), flops=2),
            "backward-data": Pass(reads=("src", "dst"), writes=("src",), flops=2),
        },
        lambda np, s, t: np.clip(t.src, s.low, s.high),
        (
            Field(name="low", spelling="alpha", type="signed", default=-1.0),
            Field(name="high", spelling="beta", type="signed", default=1.0),
        ),
        settle=_settle_hardtanh,
        elementwise=True,
        spread=True,
    ),
    # ``src`` where it is positive, else ``src * weights``, with one weight per channel, or a single
    # one for all. A comparison and a product, as in ``elementwise:leaky-relu``; backward the same
    # for the source, and a product and an addition for the weights (K. He et al., 2015).
    pointwise_op(
        "prelu",
        {
            "forward": Pass(reads=("src", "weights"), writes=("dst",), flops=2),
            "backward-data": Pass(
                reads=("src", "dst", "weights"), writes=("src", "weights"), flops=4
            ),
        },
        lambda np, _, t: np.where(t.src > 0, t.src, t.src * per_channel(t.weights)),
        (Field(name="shared", spelling="shared", type="flag", default=False, minimum=0),),
        dims=_with_slopes,
        trained=("weights",),
        no_gpu=NO_CUDA_KERNEL,
    ),
)

# -----------------------------------------------------------------------------
# Softmax and losses.


def _softmax_passes(forward: int, backward: int) -> dict[str, Pass]:
    """Return passes with the given FLOPs per element; the gradient reads the result."""
    return {
        "forward": Pass(reads=("src",), writes=("dst",), flops=forward),
        "backward-data": Pass(reads=("result", "dst"), writes=("src",), flops=backward),
    }


def _exponentials(np: Any, x: Any, axis: int) -> tuple[Any, Any, Any]:
    """Return differences to the maximum along an axis, their exponentials and the sum of these."""
    differences = x - x.max(axis, keepdims=True)
    powers = np.exp(differences)
    return differences, powers, powers.sum(axis, keepdims=True)


def _softmax(np: Any, layer: Layer, t: Any) -> Any:
    _, powers, total = _exponentials(np, t.src, layer.axis)
    return powers / total


def _log_softmax(np: Any, layer: Layer, t: Any) -> Any:
    differences, _, total = _exponentials(np, t.src, layer.axis)
    return differences - np.log(total)


def _cross_entropy(np: Any, layer: Layer, t: Any) -> Any:
    differences, powers, total = _exponentials(np, t.src, 1)
    probabilities, logs = powers / total, differences - np.log(total)
    rows = len(t.src)  # perhaps a part of the batch only
    loss = -logs.reshape(rows, layer.channels)[range(rows), t.labels.astype(int)].mean()
    return {"dst": probabilities, "loss": loss.reshape(1)}


# The axis of the images: 1 are the channels, 2 the height, 3 the width.
_AXIS: Final = Field(name="axis", spelling="axis", default=3, minimum=1, maximum=3)


def _loss(
    name: str,
    forward: int,
    backward: int,
    formula: Callable[[Any, Any, Any, Layer], Any],
    *fields: Field,
) -> Op:
    """Return the mean loss of predictions ``src`` and targets ``src2``; its own gradient is one."""
    return pointwise_op(
        name,
        {
            "forward": Pass(reads=("src", "src2"), writes=("dst",), flops=forward),
            "backward-data": Pass(reads=("src", "src2"), writes=("src",), flops=backward),
        },
        lambda np, s, t: formula(np, t.src, t.src2, s).sum(keepdims=True) * (1 / s.channels),
        fields,
        sizes=WEIGHTS,
        dims=in_weights,
        exact=frozenset(("dst",)),
        no_gpu=NO_CUDA_KERNEL,
    )


def _smooth(np: Any, x: Any, y: Any, layer: Layer) -> Any:
    distance = (x - y) * np.sign(x - y)
    square = distance * distance * (0.5 / layer.beta)
    return np.where(distance > layer.beta, distance - layer.beta / 2, square)


_LOSSES: Final = (
    # A difference, its square, the sum; backward a difference and two factors.
    _loss("mse", 3, 3, lambda _np, x, y, _: (x - y) * (x - y)),
    # A difference, its amount, the sum; backward its sign, and a factor.
    _loss("l1", 3, 3, lambda np, x, y, _: (x - y) * np.sign(x - y)),
    # Differences up to ``beta`` need a square and a factor, too; Huber's loss differs by a factor.
    _loss(
        "smooth-l1",
        6,
        5,
        _smooth,
        Field(name="beta", spelling="beta", type="real", default=1.0, minimum=0, above=True),
    ),
    # (1 - target) src, less the logarithm of a sigmoid; backward a sigmoid, less the target.
    _loss("bce-logits", 8, 6, lambda np, x, y, _: (1 - y) * x + _softplus(np, -x)),
    # The mean of the scores of ``batch`` rows at their labels, negated.
    pointwise_op(
        "nll",
        {
            "forward": Pass(
                reads=("src", "labels"),
                writes=("dst",),
                flops=lambda s: s.batch,
                touched=lambda s: {"src": s.batch},
            ),
            "backward-data": Pass(
                reads=("src", "labels"), writes=("src",), touched=lambda _: {"src": 0}
            ),
        },
        lambda _np, s, t: (
            -t.src.reshape(len(t.labels), s.channels)[
                range(len(t.labels)), t.labels.astype(int)
            ].sum(keepdims=True)
            * (1 / s.batch)
        ),
        sizes=FLAT,
        dims=in_rows_of_logits,
        form="flat",
        exact=frozenset(("dst",)),
        no_gpu=NO_CUDA_KERNEL,
    ),
)

_SOFTMAXES: Final = (
    # Maximum, difference, exponential, sum, quotient; backward a product and a sum over the row, a
    # difference and a product.
    pointwise_op(
        "softmax",
        _softmax_passes(5, 4),
        _softmax,
        (_AXIS,),
        dims=in_rows,
        form="rows",
    ),
    # Instead of the quotient, the logarithm of the row's sum is subtracted; backward a sum over the
    # row, an exponential, a product and a difference.
    pointwise_op(
        "log-softmax",
        _softmax_passes(5, 4),
        _log_softmax,
        (_AXIS,),
        dims=in_rows,
        form="rows",
    ),
    # Probabilities ``dst`` and the mean cross entropy ``loss`` of ``batch`` rows of ``channels``
    # logits with integer ``labels``; backward-data is ``(probability - (channel == label)) /
    # batch``, with the probabilities as its ``dst``.
    pointwise_op(
        "softmax-xent",
        {
            # Maximum, difference, exponential, sum, quotient.
            "forward": Pass(reads=("src", "labels"), writes=("dst", "loss"), flops=5),
            "backward-data": Pass(reads=("dst", "labels"), writes=("src",), flops=1),
        },
        _cross_entropy,
        sizes=FLAT,
        dims=in_rows_of_logits,
        form="flat",
        exact=frozenset(("loss",)),
    ),
)

# -----------------------------------------------------------------------------
# Sums, factors, concat, dropout.


def _sources(layer: Layer) -> Sequence[str]:
    """Return the roles of the concatenated tensors."""
    return ("src", *(f"src{number}" for number in range(2, len(layer.sources) + 1)))


def _settle_concat(values: dict[str, Any]) -> None:
    settle_width(values)
    sources, channels = values["sources"], values["channels"]
    if len(sources) < 2:
        raise UsageError(f"sources={sources}: at least two, each of at least 1 channel")
    values["channels"] = sum(sources)
    if channels not in (None, sum(sources)):
        raise UsageError(
            f"channels={channels}: not the sum of the sources; nearest: {sum(sources)}"
        )


def _settle_halves(values: dict[str, Any]) -> None:
    settle_width(values)
    if values["width"] % 2:
        width = values["width"]
        raise UsageError(f"width={width}: rows have two halves; nearest: {width + 1}")


def _turned(np: Any, layer: Layer, t: Any) -> Any:
    half = layer.width // 2
    turned = np.concatenate([-t.src[..., half:], t.src[..., :half]], -1)
    return t.src * t.cosines + turned * t.sines


def _with_both_halves(layer: Layer, role: str) -> Shape:
    *outer, width = image_shape(layer)
    return (*outer, 2 * width) if role == "src" else (*outer, width)


def _settle_sort(values: dict[str, Any]) -> None:
    settle_width(values)
    along = values[_SIZE_OF_AXIS[values["axis"]]]
    if values["k"] == along:
        values["k"] = 0
    if values["k"] > along:
        raise UsageError(f"k={values['k']}: more than there are; nearest: {along}")


#: Fields of sizes by axis.
_SIZE_OF_AXIS: Final = {1: "channels", 2: "height", 3: "width"}


def _chosen(layer: Layer) -> int:
    return int(layer.k or image_shape(layer)[layer.axis])


def _in_order(layer: Layer, role: str) -> Shape:
    sizes = list(image_shape(layer))
    if role != "src":
        sizes[layer.axis] = _chosen(layer)
    return tuple(sizes)


def sort_flops(elements: int, chosen: int) -> int:
    """Return the FLOPs of a choice of the largest elements in order.

    Each element is compared on each level of a tree of ``chosen`` leaves.
    """
    return elements * max(1, math.ceil(math.log2(chosen))) if chosen else 0


def _sort(np: Any, layer: Layer, t: Any) -> Any:
    order = np.argsort(-t.src, layer.axis, kind="stable")
    largest = np.take(order, range(_chosen(layer)), layer.axis)
    return {"dst": np.take_along_axis(t.src, largest, layer.axis), "indices": largest}


def _running(name: str) -> Op:
    """Return the op of the largest or smallest element up to each one, with its index."""

    def reference(np: Any, layer: Layer, t: Any) -> Any:
        extreme = np.maximum if name == "cummax" else np.minimum
        values = extreme.accumulate(t.src, layer.axis)
        along = np.arange(t.src.shape[layer.axis])
        along = along.reshape(-1, *(1,) * (3 - layer.axis))
        # The last one of equal elements, as in PyTorch.
        places = np.where(t.src == values, along, 0)
        return {"dst": values, "indices": np.maximum.accumulate(places, layer.axis)}

    return pointwise_op(
        name,
        {"forward": Pass(reads=("src",), writes=("dst", "indices"), flops=1)},
        reference,
        (_AXIS,),
        dims=lambda layer, _: image_shape(layer),
        form="rows",
        no_gpu=NO_CUDA_KERNEL,
    )


_OTHERS: Final = (
    # The first half of each row times the sigmoid of the second (Y. Dauphin et al., 2017). A
    # sigmoid and a product; backward the sigmoid, a product for the first half, and a difference
    # and three products for the second.
    pointwise_op(
        "glu",
        {
            "forward": Pass(
                reads=("src",), writes=("dst",), flops=lambda s: 5 * math.prod(image_shape(s))
            ),
            "backward-data": Pass(
                reads=("src", "dst"), writes=("src",), flops=lambda s: 9 * math.prod(image_shape(s))
            ),
        },
        lambda np, s, t: t.src[..., : s.width] * np.sigmoid(t.src[..., s.width :]),
        dims=_with_both_halves,
        form="rows",
        no_gpu=NO_CUDA_KERNEL,
    ),
    # The ``k`` largest elements along an axis in descending order, by default all, and their
    # indices.
    pointwise_op(
        "sort",
        {
            "forward": Pass(
                reads=("src",),
                writes=("dst", "indices"),
                flops=lambda s: sort_flops(math.prod(image_shape(s)), _chosen(s)),
            )
        },
        _sort,
        (_AXIS, Field(name="k", spelling="k", default=0, minimum=0)),
        dims=_in_order,
        settle=_settle_sort,
        form="rows",
        no_gpu=NO_CUDA_KERNEL,
    ),
    _running("cummax"),
    _running("cummin"),
    pointwise_op(
        "bias",
        {
            "forward": Pass(reads=("src", "bias"), writes=("dst",), flops=1),
            "backward-weights": Pass(reads=("dst",), writes=("bias",), flops=1),
        },
        lambda _np, _s, t: t.src + per_channel(t.bias),
        trained=("bias",),
    ),
    # ``src2`` has one factor for each channel of each image, as in squeeze-and-excitation.
    # Backward a product for the images, and a product and an addition for the factors.
    pointwise_op(
        "scale",
        {
            "forward": Pass(reads=("src", "src2"), writes=("dst",), flops=1),
            "backward-data": Pass(reads=("src", "src2", "dst"), writes=("src", "src2"), flops=3),
        },
        lambda _np, _s, t: t.src * t.src2,
        dims=lambda layer, role: (
            (layer.batch, layer.channels, 1, 1) if role == "src2" else image_shape(layer)
        ),
    ),
    pointwise_op(
        "add",
        {"forward": Pass(reads=("src", "src2"), writes=("dst",), flops=1)},
        lambda _np, _s, t: t.src + t.src2,
        elementwise=True,
    ),
    # ``silu(src) * src2``, the gate and the other half of a SwiGLU. A sigmoid and two products;
    # backward those of ``silu``, the activation once more, and a product for each of the sources
    # (N. Shazeer, GLU Variants Improve Transformer, 2020).
    pointwise_op(
        "swiglu",
        {
            "forward": Pass(reads=("src", "src2"), writes=("dst",), flops=6),
            "backward-data": Pass(reads=("src", "src2", "dst"), writes=("src", "src2"), flops=12),
        },
        lambda np, _, t: t.src * np.sigmoid(t.src) * t.src2,
        elementwise=True,
        spread=True,
        no_gpu=NO_CUDA_KERNEL,
    ),
    # Rotary position embedding: both halves of each row, as a complex number per pair of elements,
    # are turned by an angle that depends on the position (``height``). Two products and an addition
    # (J. Su et al., RoFormer, 2021).
    pointwise_op(
        "rope",
        {
            "forward": Pass(reads=("src", "cosines", "sines"), writes=("dst",), flops=3),
            "backward-data": Pass(reads=("cosines", "sines", "dst"), writes=("src",), flops=3),
        },
        _turned,
        dims=lambda layer, role: (
            image_shape(layer) if role in ("src", "dst") else (1, 1, layer.height, layer.width)
        ),
        settle=_settle_halves,
        form="rows",
        no_gpu=NO_CUDA_KERNEL,
    ),
    # Concat of images with ``sources`` channels along the channels; backward-data splits them.
    pointwise_op(
        "concat",
        {
            "forward": Pass(reads=_sources, writes=("dst",)),
            "backward-data": Pass(reads=("dst",), writes=_sources),
        },
        lambda np, s, t: np.concatenate([getattr(t, role) for role in _sources(s)], 1),
        sizes=(
            BATCH,
            Field(name="channels", default=None, derived=True),
            Field(name="sources", spelling="ic", type="sum"),
            HEIGHT,
            WIDTH,
        ),
        dims=in_sources,
        settle=_settle_concat,
    ),
    # Sums of all elements up to each one, along an axis; backward from the end.
    pointwise_op(
        "cumsum",
        {
            "forward": Pass(reads=("src",), writes=("dst",), flops=1),
            "backward-data": Pass(reads=("dst",), writes=("src",), flops=1),
        },
        lambda np, s, t: np.cumsum(t.src, s.axis),
        (_AXIS,),
        dims=in_rows,
        form="rows",
        no_gpu=NO_CUDA_KERNEL,
    ),
    # Products of all elements up to each one, along an axis.
    pointwise_op(
        "cumprod",
        {"forward": Pass(reads=("src",), writes=("dst",), flops=1)},
        lambda np, s, t: np.cumprod(t.src, s.axis),
        (_AXIS,),
        dims=in_rows,
        form="rows",
        no_gpu=NO_CUDA_KERNEL,
    ),
    # ``src / keep`` if a hash of the element's index is below ``keep``, else zero. Both passes
    # compute the hash, so there is no mask in memory. The reference drops nothing.
    pointwise_op(
        "dropout",
        {
            "forward": Pass(reads=("src",), writes=("dst",), flops=1),
            "backward-data": Pass(reads=("dst",), writes=("src",), flops=1),
        },
        lambda _, s, t: t.src / s.keep,
        (
            Field(
                name="keep",
                spelling="keep",
                type="real",
                default=0.5,
                minimum=0,
                maximum=1,
                above=True,
            ),
        ),
    ),
)

# -----------------------------------------------------------------------------
# Weight decay and optimizers.


def _momentum(_: Any, layer: Layer, t: Any) -> Any:
    velocity = layer.mu * t.velocity + t.gradient
    return {"weights": t.weights - layer.rate * velocity, "velocity": velocity}


_RATE: Final = Field(name="rate", spelling="lr", type="real", default=0.01, minimum=0)

_OPTIMIZERS: Final = (
    # ``sum(weights**2) / 2``; backward-weights adds ``decay * weights`` to the gradient.
    pointwise_op(
        "l2",
        {
            "forward": Pass(reads=("weights",), writes=("dst",), flops=2),
            "backward-weights": Pass(
                reads=("weights", "gradient"), writes=("gradient",), updates=("gradient",), flops=2
            ),
        },
        lambda _np, _s, t: (t.weights**2).sum(keepdims=True) / 2,
        (Field(name="decay", spelling="decay", type="real", default=5e-4, minimum=0),),
        sizes=WEIGHTS,
        dims=in_weights,
        trained=("weights",),
        exact=frozenset(("dst",)),
    ),
    # ``weights -= rate * gradient``.
    pointwise_op(
        "sgd",
        {
            "forward": Pass(
                reads=("weights", "gradient"), writes=("weights",), updates=("weights",), flops=2
            )
        },
        lambda _, s, t: {"weights": t.weights - s.rate * t.gradient},
        (_RATE,),
        sizes=WEIGHTS,
        dims=in_weights,
        trained=("weights",),
    ),
    # ``velocity = mu * velocity + gradient; weights -= rate * velocity``.
    pointwise_op(
        "momentum",
        {
            "forward": Pass(
                reads=("weights", "velocity", "gradient"),
                writes=("weights", "velocity"),
                updates=("weights", "velocity"),
                flops=4,
            )
        },
        _momentum,
        (
            _RATE,
            Field(name="mu", spelling="mu", type="real", default=0.9, minimum=0, maximum=1),
        ),
        sizes=WEIGHTS,
        dims=in_weights,
        trained=("weights",),
    ),
)

# -----------------------------------------------------------------------------
# All memory-bound ops on images, rows and weights.

#: Ops that users often run in place.
_IN_PLACE: Final = ("relu", "relu6", "hardswish", "hardsigmoid", "silu", "add")

_OUT_OF_PLACE: Final = (
    *_ACTIVATIONS,
    *NORMALISATIONS,
    *_SOFTMAXES,
    *_LOSSES,
    *_OTHERS,
    *_OPTIMIZERS,
)
POINTWISE_OPS: Final = (
    *_OUT_OF_PLACE,
    *(in_place_op(op) for op in _OUT_OF_PLACE if op.name in _IN_PLACE),
)

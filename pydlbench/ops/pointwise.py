"""Memory-bound ops: activations, normalisations, losses, and the steps of optimizers.

They work on NCHW images, on weight tensors of ``channels`` elements, which have neither batch nor
sides, or along the last axis (the width) of each row of each channel. A gradient has the role of
its tensor, and ``dst`` is the incoming one in backward passes. Some ops have a forward pass only:
the gradient of an addition is the incoming gradient itself, for both of its sources, and optimizers
have no gradient.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydlbench.errors import UsageError
from pydlbench.ops.axis import Axis
from pydlbench.ops.op import (
    Field,
    Layer,
    Op,
    Operands,
    Pass,
    Shape,
    Sizes,
    in_place_op,
)

# -----------------------------------------------------------------------------
# Sizes.

_BATCH: Final = Field(name="batch", spelling="mb", default=1, shown=True)
_CHANNELS: Final = Field(name="channels", spelling="ic")
_HEIGHT: Final = Field(name="height", spelling="ih", default=1)
_WIDTH: Final = Field(name="width", spelling="iw", default=None)
_DEPTH: Final = Field(name="depth", spelling="id", default=1)
_NO_SIDES: Final = (
    Field(name="height", default=1, maximum=1),
    Field(name="width", default=1, maximum=1),
)
_NO_BATCH: Final = Field(name="batch", default=1, maximum=1)

_SIZES: Final = ("batch", "channels", "height", "width")
_IMAGES: Final = (_BATCH, _CHANNELS, _HEIGHT, _WIDTH)
_FLAT: Final = (_BATCH, _CHANNELS, *_NO_SIDES)
_WEIGHTS: Final = (_NO_BATCH, _CHANNELS, *_NO_SIDES)

_EPSILON: Final = Field(
    name="epsilon", spelling="eps", type="real", default=1e-5, minimum=0, above=True
)
_RATE: Final = Field(name="rate", spelling="lr", type="real", default=0.01, minimum=0)


def _settle(values: dict[str, Any]) -> None:
    """Fill in a missing width with the height."""
    if values["width"] is None:
        values["width"] = values["height"]


def _shown(layer: Layer, field: Field) -> bool:
    if field.name == "height":
        return (layer.height, layer.width) != (1, 1)
    return field.name == "width" and layer.width != layer.height


def _images(layer: Layer) -> Shape:
    return layer.batch, layer.channels, layer.height, layer.width


def _in_images(layer: Layer, role: str) -> Shape:
    """Return the shape of a tensor: the shape of the images, or one element per channel."""
    return _images(layer) if role.startswith(("src", "dst", "result")) else (layer.channels,)


def _in_rows(layer: Layer, role: str) -> Shape:
    """Return the shape of a tensor: the shape of the images, a row, or one element per row."""
    if role.startswith(("src", "dst", "result")):
        return _images(layer)
    if role in layer.entry.trained:
        return (layer.width,)
    return (layer.batch * layer.channels * layer.height,)


def _in_weights(layer: Layer, role: str) -> Shape:
    return (1,) if role == "dst" else (layer.channels,)


def _in_rows_of_logits(layer: Layer, role: str) -> Shape:
    if role in ("loss", "labels"):
        return (1,) if role == "loss" else (layer.batch,)
    return _images(layer)


def _in_sources(layer: Layer, role: str) -> Shape:
    if role == "dst":
        return _images(layer)
    return layer.batch, layer.sources[int(role[3:] or 1) - 1], layer.height, layer.width


def _merge_depth(values: dict[str, Any]) -> None:
    """Merge depth and height; sides that are missing are as long as the depth."""
    if "depth" in values:
        depth = values.pop("depth")
        height = values.get("height", depth)
        values |= {"height": depth * height, "width": values.get("width", height)}


def image_sizes(shape: Sequence[int]) -> dict[str, int]:
    """Return the sizes of images with this shape; missing sides are 1, further ones are merged.

    A single dimension is channels.
    """
    batch, channels, *sides = shape if len(shape) > 1 else (1, *shape, *[1] * (1 - len(shape)))
    height = sides.pop(0) if len(sides) > 1 else 1
    return {"batch": batch, "channels": channels, "height": height, "width": math.prod(sides)}


def _read_images(_: Op, tensors: list[Sizes]) -> dict[str, Any]:
    return image_sizes([size for size, _ in tensors[0]])


def _read_rows(_: Op, tensors: list[Sizes]) -> dict[str, Any]:
    *outer, width = (size for size, _ in tensors[0])
    return {"channels": math.prod(outer), "width": width}


def _read_concat(_: Op, tensors: list[Sizes]) -> dict[str, Any]:
    images = [image_sizes([size for size, _ in tensor]) for tensor in tensors]
    sources = tuple(sizes.pop("channels") for sizes in images)
    if any(sizes != images[0] for sizes in images):
        raise UsageError("the sources differ in more than their channels; nearest: 2x3x7:2x5x7")
    return {**images[0], "sources": sources}


_SHAPE_READERS: Final[Mapping[Any, tuple[Any, int]]] = {
    _in_images: (_read_images, 1),
    _in_rows: (_read_rows, 1),
    _in_sources: (_read_concat, 1024),
}


def _roles(layer: Layer) -> dict[str, None]:
    """Return the roles of all tensors that some pass reads or writes."""
    passes = [*layer.entry.passes.values(), *filter(None, [layer.entry.training])]
    groups = (roles for step in passes for roles in (step.reads, step.writes))
    return {role: None for roles in groups for role in (roles(layer) if callable(roles) else roles)}


def _pointwise(
    name: str,
    passes: dict[str, Pass],
    reference: Callable[..., Any],
    fields: tuple[Field, ...] = (),
    *,
    sizes: tuple[Field, ...] = _IMAGES,
    dims: Callable[[Layer, str], Shape] = _in_images,
    settle: Callable[[dict[str, Any]], None] = _settle,
    **options: Any,
) -> Op:
    """Return an op.

    Args:
        name: Name of the op.
        passes: Passes by name.
        reference: Function that computes the forward pass.
        fields: Fields besides the sizes.
        sizes: Fields that are sizes.
        dims: Returns the shape of a tensor by role.
        settle: Checks fields, and fills in missing ones.
        options: Further attributes of the op.
    """
    if sizes is _WEIGHTS:
        options |= {"batch": None, "form": "weights"}
    else:
        options |= {"other_fields": (_DEPTH,), "merge": _merge_depth}
        if dims in _SHAPE_READERS:
            read, maximum = _SHAPE_READERS[dims]
            options["operands"] = Operands(
                minimum=0, maximum=maximum, read=read, write=lambda _: []
            )
    return Op(
        name=name,
        key=name,
        kind="pointwise",
        prefix=f"{name}:",
        fields=(*sizes, *fields),
        settle=settle,
        shown=_shown,
        shapes=lambda layer: {role: dims(layer, role) for role in _roles(layer)},
        passes=passes,
        reference=reference,
        memory_bound=True,
        native=lambda s: {
            "op": name,
            "passes": list(s.passes),
            "in_one_order": s.entry.in_one_order,
            **s.fields,
        },
        attributes={
            "parameters": lambda s: {
                name: value for name, value in s.fields.items() if name not in _SIZES
            },
        },
        **options,
    )


# -----------------------------------------------------------------------------
# Activations.


def _softplus(np: Any, x: Any) -> Any:
    return np.logaddexp(0, x)


def _activation(
    name: str,
    forward: int,
    backward: int,
    formula: Callable[[Any, Any], Any],
    *,
    spread: bool = True,
) -> Op:
    """Return an activation with the given FLOPs per element, forward and backward."""
    return _pointwise(
        name,
        {
            "forward": Pass(reads=("src",), writes=("dst",), flops=forward),
            "backward-data": Pass(reads=("src", "dst"), writes=("src",), flops=backward),
        },
        lambda np, _, t: formula(np, t.src),
        elementwise=True,
        spread=spread,
    )


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
    # A comparison, an exponential, a subtraction; backward a product instead of the subtraction.
    _activation("elu", 3, 3, lambda np, x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
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
)

# -----------------------------------------------------------------------------
# Normalisations. ``M`` is ``batch * height * width``.


def _neighbourhoods(layer: Layer) -> int:
    """Return the channels in all neighbourhoods; none are before the first or after the last."""
    axis = Axis(
        size=layer.channels,
        out=layer.channels,
        kernel=layer.local_size,
        stride=1,
        dilation=1,
        pad=layer.local_size // 2,
    )
    return axis.taps()


def _lrn_pass(reads: tuple[str, ...], writes: str, flops: int, per_tap: int) -> Pass:
    """Return a pass with the given FLOPs per element, and per channel of its neighbourhood."""

    def count(layer: Layer, taps: int) -> int:
        pixels = layer.batch * int(layer.height * layer.width)
        return pixels * (int(layer.channels) * flops + taps * per_tap)

    return Pass(
        reads=reads,
        writes=(writes,),
        flops=lambda s: count(s, s.channels * s.local_size),
        executed=lambda s: count(s, _neighbourhoods(s)),
    )


def _settle_lrn(values: dict[str, Any]) -> None:
    _settle(values)
    size = values["local_size"]
    if size % 2 == 0:
        raise UsageError(f"local_size={size}: has no middle; nearest: {size + 1}")


def _lrn(np: Any, layer: Layer, t: Any) -> Any:
    half, channels = layer.local_size // 2, layer.channels
    squares = np.pad(t.src**2, [(0, 0), (half, half), (0, 0), (0, 0)])
    around = [squares[:, first : first + channels] for first in range(layer.local_size)]
    total = functools.reduce(operator.add, around)
    return t.src * (layer.k + layer.alpha / layer.local_size * total) ** -layer.beta


def _channels(array: Any) -> Any:
    """Return one number per channel in a shape that broadcasts over images."""
    return array[:, None, None]


def _batchnorm(np: Any, layer: Layer, t: Any) -> Any:
    given = hasattr(t, "mean")
    mean = t.mean if given else t.src.mean((0, 2, 3))
    variance = t.variance if given else t.src.var((0, 2, 3))
    scale = t.weights / np.sqrt(variance + layer.epsilon)
    dst = t.src * _channels(scale) + _channels(t.bias - mean * scale)
    if given:
        return dst
    count = t.src.size / layer.channels
    unbiased = {"running_mean": mean, "running_variance": variance * count / max(1, count - 1)}
    running = {
        role: (1 - layer.momentum) * getattr(t, role) + layer.momentum * value
        for role, value in unbiased.items()
    }
    return {"dst": dst, "mean": mean, "variance": variance, **running}


def _layernorm(np: Any, layer: Layer, t: Any) -> Any:
    mean, variance = t.src.mean(-1, keepdims=True), t.src.var(-1, keepdims=True)
    scale = 1 / np.sqrt(variance + layer.epsilon)
    dst = (t.src * scale - mean * scale) * t.weights + t.bias
    return {"dst": dst, "mean": mean.reshape(-1), "variance": variance.reshape(-1)}


_STATISTICS: Final = ("weights", "bias", "mean", "variance")
_RUNNING: Final = ("running_mean", "running_variance")
_VARIANCES: Final = frozenset(("variance", "running_variance"))

_NORMALISATIONS: Final = (
    # ``src / d**beta`` with ``d = k + alpha / local_size * sum(src**2)`` over the ``local_size``
    # channels around each one (A. Krizhevsky et al., 2012), with cuDNN's alpha. TensorFlow's
    # ``alpha`` is this ``alpha / local_size``, its ``depth_radius`` is ``(local_size - 1) / 2``,
    # and its ``bias`` is ``k``.
    _pointwise(
        "lrn",
        {
            # Scale the sum of squares, add k, raise, multiply.
            "forward": _lrn_pass(("src",), "dst", 4, 2),
            # The same again up to the power; the gradient times it; a ratio of two more, whose
            # sum over the neighbourhood is scaled, multiplied and subtracted.
            "backward-data": _lrn_pass(("src", "dst"), "src", 9, 3),
        },
        _lrn,
        (
            Field(name="local_size", spelling="ls", default=5),
            Field(name="alpha", spelling="alpha", type="real", default=1e-4, minimum=0),
            Field(name="beta", spelling="beta", type="real", default=0.75, minimum=0),
            Field(name="k", spelling="k", type="real", default=2.0, minimum=0, above=True),
        ),
        settle=_settle_lrn,
    ),
    # ``(src - mean) / sqrt(variance + epsilon) * weights + bias`` per channel. Statistics are given
    # in inference. Training uses the statistics of the batch (biased), and updates the
    # running ones with weight ``momentum`` (the variance unbiased, times ``M / (M - 1)``).
    # backward-data is the gradient of training, for source, weights and bias.
    _pointwise(
        "batchnorm",
        {
            "forward": Pass(reads=("src", *_STATISTICS), writes=("dst",), flops=2),
            # Four for the two sums, four for the combination of gradient and source.
            "backward-data": Pass(
                reads=("src", "dst", "weights", "mean", "variance"),
                writes=("src", "weights", "bias"),
                flops=8,
            ),
        },
        _batchnorm,
        (
            _EPSILON,
            Field(name="momentum", spelling="mom", type="real", default=0.1, minimum=0, maximum=1),
        ),
        training=Pass(
            reads=("src", "weights", "bias", *_RUNNING),
            writes=("dst", "mean", "variance", *_RUNNING),
            updates=_RUNNING,
            flops=5,
        ),
        trained=("weights", "bias"),
        exact=frozenset((*_STATISTICS, *_RUNNING)),
        positive=_VARIANCES,
    ),
    # ``(src - mean) / sqrt(variance + epsilon) * weights + bias`` with the (biased) statistics of
    # each row (J. Ba et al., 2016). Training stores them, and backward-data reads them and computes
    # the gradients of source, weights and bias.
    _pointwise(
        "layernorm",
        {
            # The sums of differences and of their squares (3), the scale and shift (4).
            "forward": Pass(reads=("src", "weights", "bias"), writes=("dst",), flops=7),
            # Differences times the root (2), the sums for both trained vectors (3), the gradient
            # times the weights (1), its two sums over the row (3), and the combination (5).
            "backward-data": Pass(
                reads=("src", "dst", "weights", "mean", "variance"),
                writes=("src", "weights", "bias"),
                flops=14,
            ),
        },
        _layernorm,
        (_EPSILON,),
        dims=_in_rows,
        training=Pass(
            reads=("src", "weights", "bias"), writes=("dst", "mean", "variance"), flops=7
        ),
        form="rows",
        trained=("weights", "bias"),
        exact=frozenset(_STATISTICS),
        positive=_VARIANCES,
    ),
    # ``src / sqrt(mean(src**2) + epsilon) * weights`` of each row (B. Zhang and R. Sennrich, 2019).
    # backward-data computes the gradients of both.
    _pointwise(
        "rmsnorm",
        {
            # A square, its sum, and two products.
            "forward": Pass(reads=("src", "weights"), writes=("dst",), flops=4),
            # The square and its sum again (2), the source times the root (1), the sum for the
            # weights (2), the gradient times the weights (1), its sum with the source over the row
            # (2), and the combination (3).
            "backward-data": Pass(
                reads=("src", "dst", "weights"), writes=("src", "weights"), flops=11
            ),
        },
        lambda np, layer, t: (
            t.src / np.sqrt((t.src**2).mean(-1, keepdims=True) + layer.epsilon) * t.weights
        ),
        (_EPSILON,),
        dims=_in_rows,
        form="rows",
        # The weights are in the layer's precision, the only one that PyTorch's fused kernels
        # accept.
        trained=("weights",),
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


def _softmax(np: Any, _layer: Layer, t: Any) -> Any:
    _, powers, total = _exponentials(np, t.src, -1)
    return powers / total


def _log_softmax(np: Any, _layer: Layer, t: Any) -> Any:
    differences, _, total = _exponentials(np, t.src, -1)
    return differences - np.log(total)


def _cross_entropy(np: Any, layer: Layer, t: Any) -> Any:
    differences, powers, total = _exponentials(np, t.src, 1)
    probabilities, logs = powers / total, differences - np.log(total)
    rows = len(t.src)  # perhaps a part of the batch only
    loss = -logs.reshape(rows, layer.channels)[range(rows), t.labels.astype(int)].mean()
    return {"dst": probabilities, "loss": loss.reshape(1)}


_SOFTMAXES: Final = (
    # Maximum, difference, exponential, sum, quotient; backward a product and a sum over the row, a
    # difference and a product.
    _pointwise(
        "softmax",
        _softmax_passes(5, 4),
        _softmax,
        dims=_in_rows,
        form="rows",
    ),
    # Instead of the quotient, the logarithm of the row's sum is subtracted; backward a sum over the
    # row, an exponential, a product and a difference.
    _pointwise(
        "log-softmax",
        _softmax_passes(5, 4),
        _log_softmax,
        dims=_in_rows,
        form="rows",
    ),
    # Probabilities ``dst`` and the mean cross entropy ``loss`` of ``batch`` rows of ``channels``
    # logits with integer ``labels``; backward-data is ``(probability - (channel == label)) /
    # batch``, with the probabilities as its ``dst``.
    _pointwise(
        "softmax-xent",
        {
            # Maximum, difference, exponential, sum, quotient.
            "forward": Pass(reads=("src", "labels"), writes=("dst", "loss"), flops=5),
            "backward-data": Pass(reads=("dst", "labels"), writes=("src",), flops=1),
        },
        _cross_entropy,
        sizes=_FLAT,
        dims=_in_rows_of_logits,
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
    _settle(values)
    sources, channels = values["sources"], values["channels"]
    if len(sources) < 2:
        raise UsageError(f"sources={sources}: at least two, each of at least 1 channel")
    values["channels"] = sum(sources)
    if channels not in (None, sum(sources)):
        raise UsageError(
            f"channels={channels}: not the sum of the sources; nearest: {sum(sources)}"
        )


_OTHERS: Final = (
    _pointwise(
        "bias",
        {
            "forward": Pass(reads=("src", "bias"), writes=("dst",), flops=1),
            "backward-weights": Pass(reads=("dst",), writes=("bias",), flops=1),
        },
        lambda _np, _s, t: t.src + _channels(t.bias),
        trained=("bias",),
    ),
    # ``src2`` has one factor for each channel of each image, as in squeeze-and-excitation.
    # Backward a product for the images, and a product and an addition for the factors.
    _pointwise(
        "scale",
        {
            "forward": Pass(reads=("src", "src2"), writes=("dst",), flops=1),
            "backward-data": Pass(reads=("src", "src2", "dst"), writes=("src", "src2"), flops=3),
        },
        lambda _np, _s, t: t.src * t.src2,
        dims=lambda layer, role: (
            (layer.batch, layer.channels, 1, 1) if role == "src2" else _images(layer)
        ),
    ),
    _pointwise(
        "add",
        {"forward": Pass(reads=("src", "src2"), writes=("dst",), flops=1)},
        lambda _np, _s, t: t.src + t.src2,
        elementwise=True,
    ),
    # Concat of images with ``sources`` channels along the channels; backward-data splits them.
    _pointwise(
        "concat",
        {
            "forward": Pass(reads=_sources, writes=("dst",)),
            "backward-data": Pass(reads=("dst",), writes=_sources),
        },
        lambda np, s, t: np.concatenate([getattr(t, role) for role in _sources(s)], 1),
        sizes=(
            _BATCH,
            Field(name="channels", default=None, derived=True),
            Field(name="sources", spelling="ic", type="sum"),
            _HEIGHT,
            _WIDTH,
        ),
        dims=_in_sources,
        settle=_settle_concat,
    ),
    # ``src / keep`` if a hash of the element's index is below ``keep``, else zero. Both passes
    # compute the hash, so there is no mask in memory. The reference drops nothing.
    _pointwise(
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


_OPTIMIZERS: Final = (
    # ``sum(weights**2) / 2``; backward-weights adds ``decay * weights`` to the gradient.
    _pointwise(
        "l2",
        {
            "forward": Pass(reads=("weights",), writes=("dst",), flops=2),
            "backward-weights": Pass(
                reads=("weights", "gradient"), writes=("gradient",), updates=("gradient",), flops=2
            ),
        },
        lambda _np, _s, t: (t.weights**2).sum(keepdims=True) / 2,
        (Field(name="decay", spelling="decay", type="real", default=5e-4, minimum=0),),
        sizes=_WEIGHTS,
        dims=_in_weights,
        trained=("weights",),
        exact=frozenset(("dst",)),
    ),
    # ``weights -= rate * gradient``.
    _pointwise(
        "sgd",
        {
            "forward": Pass(
                reads=("weights", "gradient"), writes=("weights",), updates=("weights",), flops=2
            )
        },
        lambda _, s, t: {"weights": t.weights - s.rate * t.gradient},
        (_RATE,),
        sizes=_WEIGHTS,
        dims=_in_weights,
        trained=("weights",),
    ),
    # ``velocity = mu * velocity + gradient; weights -= rate * velocity``.
    _pointwise(
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
        sizes=_WEIGHTS,
        dims=_in_weights,
        trained=("weights",),
    ),
)

# -----------------------------------------------------------------------------
# All memory-bound ops on images, rows and weights.

#: Ops that users often run in place.
_IN_PLACE: Final = ("relu", "relu6", "hardswish", "hardsigmoid", "silu", "add")

_OUT_OF_PLACE: Final = (*_ACTIVATIONS, *_NORMALISATIONS, *_SOFTMAXES, *_OTHERS, *_OPTIMIZERS)
POINTWISE_OPS: Final = (
    *_OUT_OF_PLACE,
    *(in_place_op(op) for op in _OUT_OF_PLACE if op.name in _IN_PLACE),
)

"""Normalisations of images and rows; ``M`` is ``batch * height * width``."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Final

from pydlbench.errors import UsageError
from pydlbench.ops.axis import Axis
from pydlbench.ops.images import image_shape, in_rows, per_channel, pointwise_op, settle_width
from pydlbench.ops.op import NO_CUDA_KERNEL, Field, Layer, Pass, Shape

_EPSILON: Final = Field(
    name="epsilon", spelling="eps", type="real", default=1e-5, minimum=0, above=True
)


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
    settle_width(values)
    size = values["local_size"]
    if size % 2 == 0:
        raise UsageError(f"local_size={size}: has no middle; nearest: {size + 1}")


def _lrn(np: Any, layer: Layer, t: Any) -> Any:
    half, channels = layer.local_size // 2, layer.channels
    squares = np.pad(t.src**2, [(0, 0), (half, half), (0, 0), (0, 0)])
    around = [squares[:, first : first + channels] for first in range(layer.local_size)]
    total = functools.reduce(operator.add, around)
    return t.src * (layer.k + layer.alpha / layer.local_size * total) ** -layer.beta


def _batchnorm(np: Any, layer: Layer, t: Any) -> Any:
    given = hasattr(t, "mean")
    mean = t.mean if given else t.src.mean((0, 2, 3))
    variance = t.variance if given else t.src.var((0, 2, 3))
    scale = t.weights / np.sqrt(variance + layer.epsilon)
    dst = t.src * per_channel(scale) + per_channel(t.bias - mean * scale)
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


def _in_groups(layer: Layer, role: str) -> Shape:
    """Return the shape of a tensor: the images, one per channel, or one per group of an image."""
    if role in ("mean", "variance"):
        return layer.batch, layer.groups, 1, 1
    return (layer.channels,) if role in layer.entry.trained else image_shape(layer)


def _settle_groups(values: dict[str, Any]) -> None:
    settle_width(values)
    groups, channels = values["groups"], values["channels"]
    if channels % groups:
        nearest = math.gcd(groups, channels)
        raise UsageError(f"groups={groups}: not a divisor of {channels}; nearest: {nearest}")


def _factors(layer: Layer) -> tuple[str, ...]:
    return ("weights", "bias") if layer.factors else ()


def _per_element(plain: int, with_factors: int) -> Callable[[Layer], int]:
    """Return the FLOPs of a pass for its FLOPs per element, without and with factors."""
    return lambda s: math.prod(image_shape(s)) * (with_factors if s.factors else plain)


def _groupnorm(np: Any, layer: Layer, t: Any) -> Any:
    images = len(t.src)  # perhaps a part of the batch only
    groups = t.src.reshape(images, layer.groups, -1)
    mean, variance = groups.mean(-1, keepdims=True), groups.var(-1, keepdims=True)
    scale = 1 / np.sqrt(variance + layer.epsilon)
    normalised = (groups * scale - mean * scale).reshape(t.src.shape)
    if layer.factors:
        normalised = normalised * per_channel(t.weights) + per_channel(t.bias)
    each = images, layer.groups, 1, 1
    return {"dst": normalised, "mean": mean.reshape(each), "variance": variance.reshape(each)}


_STATISTICS: Final = ("weights", "bias", "mean", "variance")
_RUNNING: Final = ("running_mean", "running_variance")
_VARIANCES: Final = frozenset(("variance", "running_variance"))


def _root_mean_square(np: Any, layer: Layer, rows: Any, weights: Any) -> Any:
    return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + layer.epsilon) * weights


def _added_and_normalised(np: Any, layer: Layer, t: Any) -> Any:
    total = t.src + t.src2
    return {"dst": _root_mean_square(np, layer, total, t.weights), "result": total}


NORMALISATIONS: Final = (
    # ``src / d**beta`` with ``d = k + alpha / local_size * sum(src**2)`` over the ``local_size``
    # channels around each one (A. Krizhevsky et al., 2012), with cuDNN's alpha. TensorFlow's
    # ``alpha`` is this ``alpha / local_size``, its ``depth_radius`` is ``(local_size - 1) / 2``,
    # and its ``bias`` is ``k``.
    pointwise_op(
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
    pointwise_op(
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
    pointwise_op(
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
        dims=in_rows,
        training=Pass(
            reads=("src", "weights", "bias"), writes=("dst", "mean", "variance"), flops=7
        ),
        form="rows",
        trained=("weights", "bias"),
        exact=frozenset(_STATISTICS),
        positive=_VARIANCES,
    ),
    # The same with the statistics of ``groups`` groups of channels of each image, and weights and
    # bias per channel, or without these factors (Y. Wu and K. He, 2018). With as many groups as
    # channels it is an instance normalisation (D. Ulyanov et al., 2016).
    pointwise_op(
        "groupnorm",
        {
            "forward": Pass(
                reads=lambda s: ("src", *_factors(s)),
                writes=("dst",),
                flops=_per_element(5, 7),
            ),
            "backward-data": Pass(
                reads=lambda s: ("src", "dst", *_factors(s)[:1], "mean", "variance"),
                writes=lambda s: ("src", *_factors(s)),
                flops=_per_element(10, 14),
            ),
        },
        _groupnorm,
        (
            Field(name="groups", spelling="g", default=1, shown=True),
            Field(name="factors", spelling="factors", type="flag", default=True, minimum=0),
            _EPSILON,
        ),
        dims=_in_groups,
        settle=_settle_groups,
        training=Pass(
            reads=lambda s: ("src", *_factors(s)),
            writes=("dst", "mean", "variance"),
            flops=_per_element(5, 7),
        ),
        trained=("weights", "bias"),
        exact=frozenset(_STATISTICS),
        positive=_VARIANCES,
        no_gpu="cuDNN's graph interface has no normalisation of groups",
    ),
    # ``src / sqrt(mean(src**2) + epsilon) * weights`` of each row (B. Zhang and R. Sennrich, 2019).
    # backward-data computes the gradients of both.
    pointwise_op(
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
        lambda np, layer, t: _root_mean_square(np, layer, t.src, t.weights),
        (_EPSILON,),
        dims=in_rows,
        form="rows",
        # The weights are in the layer's precision, the only one that PyTorch's fused kernels
        # accept.
        trained=("weights",),
    ),
    # The same of ``src + src2``, which is the second result: the input of a block that follows.
    pointwise_op(
        "add-rmsnorm",
        {"forward": Pass(reads=("src", "src2", "weights"), writes=("dst", "result"), flops=5)},
        _added_and_normalised,
        (_EPSILON,),
        dims=in_rows,
        form="rows",
        trained=("weights",),
        no_gpu=NO_CUDA_KERNEL,
    ),
)

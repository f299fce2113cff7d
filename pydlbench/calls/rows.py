"""Normalisations, softmax, losses and reductions.

Factors and statistics of a normalisation may stay in float32 if images are narrower, in frameworks
as in oneDNN. The type of the computation is the type of the images.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from pydlbench.calls.meaning import (
    LayerPass,
    Meaning,
    Value,
    meaning_rule,
    no_layer,
    require_floating,
    require_loss_operands,
    row_layer,
)
from pydlbench.calls.windows import pooling_layer
from pydlbench.errors import UnsupportedError
from pydlbench.ops.op import Layer
from pydlbench.ops.pointwise import sort_flops
from pydlbench.ops.table import OPS, build_layer, image_layer
from pydlbench.ops.tensors import merged_reduction

#: Reductions that return indices.
_INDEXED: Final = ("argmax", "argmin", "max-indices", "min-indices")
#: FLOPs per element of the source; one for all other reductions.
_REDUCTION_FLOPS: Final = {"norm": 2, "norm1": 2, "logsumexp": 4, "var": 4, "var_mean": 4, "std": 4}


@meaning_rule
def batch_normalisation(
    images: Value,
    shape: Sequence[int] | None = None,
    *,
    epsilon: float,
    momentum: float = 0.1,
    training: bool,
    factors: bool = True,
    backward: bool = False,
    running: Sequence[Value] = (),
    written: int | None = None,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a batch normalisation.

    Args:
        images: tensor of the images, or of their gradient.
        shape: shape with channels second; None for the shape of ``images``.
        epsilon: number added to the variance.
        momentum: weight of the batch in the running statistics.
        training: whether the statistics are computed from the batch (by the forward pass if
            ``backward``).
        factors: whether the normalisation has learned scale factors and offsets.
        backward: whether the call computes the gradient.
        running: running statistics that training updates in place, and does not return.
        written: bytes of the results.
    """
    # With fixed statistics, the gradient is two sums, and one product for the source.
    per_element = (8 if training else 5) if backward else (5 if training else 2)
    updated = sum(value.bytes for value in running) * training
    writes = written + updated if updated and written is not None else None
    flops = images.elements * per_element
    yield Meaning(kind="normalisation", flops=flops, writes=writes, dtypes=(images.dtype,))
    shape = shape or images.shape
    if not factors and training and shape[0] == 1:
        # PyTorch calls it for an instance normalisation, with the images' channels side by side.
        groups = image_layer("groupnorm", shape, groups=shape[1], factors=False, epsilon=epsilon)
        yield LayerPass(groups, "backward-data" if backward else "forward", training)
        return
    _require_factors(factors=factors)
    if backward and not training:
        raise UnsupportedError("a gradient with fixed statistics has no layer")
    layer = image_layer("batchnorm", shape, epsilon=epsilon, momentum=momentum)
    yield LayerPass(layer, "backward-data" if backward else "forward", training)


def _require_factors(*, factors: bool) -> None:
    if not factors:
        raise UnsupportedError("a normalisation without factors has no layer")


@meaning_rule
def group_normalisation(
    images: Value,
    groups: int,
    *,
    epsilon: float,
    factors: bool = True,
    training: bool = False,
    backward: bool = False,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a normalisation of groups of channels of each image.

    Args:
        images: tensor of the images, channels second.
        groups: number of groups; of an instance normalisation, the number of channels.
        epsilon: number added to the variance.
        factors: whether the normalisation has learned scale factors and offsets.
        training: whether the forward pass keeps the statistics.
        backward: whether the call computes the gradient.
    """
    pass_ = "backward-data" if backward else "forward"
    per_element = image_layer("groupnorm", (1, 1), factors=factors).flops(pass_)
    flops = images.elements * per_element
    yield Meaning(kind="normalisation", flops=flops, dtypes=(images.dtype,))
    layer = image_layer("groupnorm", images.shape, groups=groups, factors=factors, epsilon=epsilon)
    yield LayerPass(layer, pass_, training)


@meaning_rule
def along_rows(
    op: str,
    source: Value,
    dimensions: int = 1,
    *,
    dim: int = -1,
    factors: bool = True,
    backward: bool = False,
    **parameters: float,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a normalisation, a softmax or sums along rows.

    Args:
        op: ``layernorm`` or ``rmsnorm`` of the last dimensions together, ``softmax``,
            ``log-softmax``, ``cumsum`` or ``cumprod`` along one dimension.
        source: tensor that is normalised.
        dimensions: number of dimensions of a row.
        dim: index of the last dimension of a row.
        factors: whether a normalisation has learned scale factors (and, for layernorm, offsets).
        backward: whether the call computes the gradient.
        parameters: parameters of the op.
    """
    pass_, normalises = "backward-data" if backward else "forward", op.endswith("norm")
    yield Meaning(
        kind="normalisation" if normalises else "reduction" if op.startswith("cum") else "softmax",
        flops=source.elements * OPS[op].passes[pass_].per_element * source.floating,
        dtypes=(source.dtype,) if normalises else (),
    )
    require_floating(floating=source.floating)
    if op == "layernorm" and not factors:
        width = math.prod(source.shape[len(source.shape) - dimensions :])
        sizes: dict[str, Any] = {"batch": source.elements // max(1, width), "channels": width}
        sizes |= parameters
        yield LayerPass(build_layer("groupnorm", **sizes, factors=False), pass_)
        return
    _require_factors(factors=factors)
    yield LayerPass(_layer_along(op, source, dim, dimensions, **parameters), pass_)


def _layer_along(op: str, source: Value, dim: int, dimensions: int = 1, **parameters: Any) -> Layer:
    """Return the layer of an op along a dimension, the last one of a row."""
    end = dim % max(1, len(source.shape)) + 1
    inner = math.prod(source.shape[end:])
    if inner != 1:
        outer, along = math.prod(source.shape[: end - 1]), source.shape[end - 1]
        return build_layer(op, batch=outer, channels=along, width=inner, axis=1, **parameters)
    return row_layer(op, source.shape[:end], dimensions, **parameters)


@meaning_rule
def in_order(
    op: str, source: Value, *, dim: int, **parameters: int
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a choice of the largest elements, or of running extremes.

    Args:
        op: ``sort``, ``cummax`` or ``cummin``.
        source: tensor whose elements are compared.
        dim: dimension along which they are compared.
        parameters: parameters of the op.
    """
    chosen = parameters.get("k", source.shape[dim] if source.shape else 1)
    if op == "sort":
        kind, flops = "gather", sort_flops(source.elements, chosen)
    else:
        kind, flops = "reduction", source.elements * OPS[op].passes["forward"].per_element
    yield Meaning(kind=kind, flops=flops * source.floating)
    require_floating(floating=source.floating)
    if not chosen:  # to the layer, zero stands for all
        raise no_layer("a choice of no elements")
    yield LayerPass(_layer_along(op, source, dim, **parameters))


@meaning_rule
def label_loss(
    scores: Value, labels: Value, reads: int, *, summed: bool, backward: bool = False
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of the sum of each row's score at its label, or of its gradient.

    Args:
        scores: tensor of the scores, classes second.
        labels: tensor of the labels.
        reads: bytes read.
        summed: whether the scores of all rows are added up, with equal weights.
        backward: whether the call computes the gradient.
    """
    yield Meaning(kind="loss", flops=0 if backward else labels.elements, reads=reads)
    if not summed or len(scores.shape) != 2:
        raise no_layer("a loss with weights, of each row or of images")
    require_loss_operands("nll", scores, labels)
    batch, channels = scores.shape
    yield LayerPass(
        build_layer("nll", batch=batch, channels=channels),
        "backward-data" if backward else "forward",
    )


@meaning_rule
def reduction(
    op: str,
    source: Value,
    over: Collection[int] | None,
    *,
    channels: int = 1,
    why: str = "",
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a reduction.

    A sum over all but the channels is the gradient of a bias; a mean over all sides of images is a
    pooling.

    Args:
        op: name of the op in the table, or the framework's name if the table has no such op.
        source: tensor that is reduced.
        over: dimensions that are reduced; None if unknown.
        channels: index of the dimension of images that holds the channels.
        why: what has no layer, for the error text; empty if there is a layer.
    """
    shape, axes = source.shape, range(len(source.shape))
    flops = source.elements * _REDUCTION_FLOPS.get(op, 1) * source.floating
    yield Meaning(kind="reduction", flops=flops)
    if why or f"reduction:{op}" not in OPS:
        raise no_layer(why or op)
    if over is None:
        raise no_layer(f"{op} over dimensions that are values")
    require_floating(floating=source.floating)
    if op in _INDEXED and len(over) == len(shape):  # of all elements as one dimension
        shape, axes, over = (source.elements,), range(1), [0]
    reduced = {axis % max(1, len(shape)) for axis in over}
    remaining = [axis for axis in axes if axis not in reduced and shape[axis] != 1]
    if op == "mean" and len(shape) in (4, 5) and reduced == {*axes} - {0, channels % len(shape)}:
        planes = [shape[axis] for axis in axes if axis not in reduced]
        sizes = [shape[axis] for axis in sorted(reduced)]
        yield LayerPass(pooling_layer(planes, in_size=sizes, kernel=sizes, mode="avg"))
    elif (
        op != "sum"
        or not remaining
        or any(axis in reduced and shape[axis] != 1 for axis in range(remaining[0], remaining[-1]))
    ):
        yield LayerPass(merged_reduction(op, shape, reduced))
    else:
        layer = build_layer(
            "bias",
            batch=math.prod(shape[: remaining[0]]),
            channels=math.prod(shape[remaining[0] : remaining[-1] + 1]),
            width=math.prod(shape[remaining[-1] + 1 :]),
        )
        yield LayerPass(layer, "backward-weights")

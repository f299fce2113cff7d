"""Normalisations, softmax, losses and reductions.

Factors and statistics of a normalisation may stay in float32 if images are narrower, in frameworks
as in oneDNN. The type of the computation is the type of the images.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from pydlbench.calls.meaning import (
    LayerPass,
    Meaning,
    Value,
    meaning_rule,
    no_layer,
    require_floating,
    row_layer,
)
from pydlbench.calls.windows import pooling_layer
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import OPS, build_layer, image_layer
from pydlbench.ops.tensors import merged_reduction

#: FLOPs per element of the source; one for all other reductions.
_REDUCTION_FLOPS: Final = {"norm": 2, "logsumexp": 4, "var": 4, "var_mean": 4, "std": 4}


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
    _require_factors(factors=factors)
    if backward and not training:
        raise UnsupportedError("a gradient with fixed statistics has no layer")
    layer = image_layer("batchnorm", shape or images.shape, epsilon=epsilon, momentum=momentum)
    yield LayerPass(layer, "backward-data" if backward else "forward", training)


def _require_factors(*, factors: bool) -> None:
    if not factors:
        raise UnsupportedError("a normalisation without factors has no layer")


def group_normalisation(source: Value, *, backward: bool = False) -> Meaning:
    """Return the meaning of a group normalisation, with the FLOPs of layer normalisation."""
    passes = OPS["layernorm"].passes
    per_element = passes["backward-data" if backward else "forward"].per_element
    why = "oneDNN 3.2 has no normalisation of groups"
    return Meaning(kind="normalisation", flops=source.elements * per_element, layers_missing=why)


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
    """Return the meaning of a normalisation or softmax along rows.

    Args:
        op: ``layernorm`` or ``rmsnorm`` of the last dimensions together, ``softmax`` or
            ``log-softmax`` along one dimension.
        source: tensor that is normalised.
        dimensions: number of dimensions of a row.
        dim: index of the last dimension of a row.
        factors: whether a normalisation has learned scale factors (and, for layernorm, offsets).
        backward: whether the call computes the gradient.
        parameters: parameters of the op.
    """
    pass_, normalises = "backward-data" if backward else "forward", op.endswith("norm")
    yield Meaning(
        kind="normalisation" if normalises else "softmax",
        flops=source.elements * OPS[op].passes[pass_].per_element * source.floating,
        dtypes=(source.dtype,) if normalises else (),
    )
    _require_factors(factors=factors)
    end = dim % max(1, len(source.shape)) + 1
    if math.prod(source.shape[end:]) != 1:
        raise no_layer(f"{op} along other than the last dimension")
    yield LayerPass(row_layer(op, source.shape[:end], dimensions, **parameters), pass_)


def label_loss(labels: Value, reads: int) -> Meaning:
    """Return the meaning of the sum of each row's score at its label, or of its gradient."""
    why = "a loss without its softmax has no layer"
    return Meaning(kind="loss", flops=labels.elements, reads=reads, layers_missing=why)


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

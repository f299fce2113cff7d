"""Check results that fused operations change, and results that are rounded to integers.

The sums of products are recomputed exactly for as many pixels (rows of a product) as take a
fraction of a second, with all channels of each; the fused operations follow in the arithmetic that
propagates rounding errors. A result of integers may differ by half a unit, its rounding.
"""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.ops.fused import channel_axis, fused_ops
from pydlbench.ops.op import Layer
from pydlbench.ops.table import tensor_types
from pydlbench.verification import arithmetic
from pydlbench.verification.arithmetic import Rounded
from pydlbench.verification.checksums import (
    ElementComparison,
    KernelRun,
    choose_pixels,
    worst_of,
)
from pydlbench.verification.inputs import INTEGER_RANGES, UNIT_ROUNDOFF, smallest_normal
from pydlbench.verification.sums import WeightedSum, add_products, describe_sum

#: Maximum number of multiply-adds, and of source elements that are gathered for them.
_MAX_MACS: Final = 2_000_000_000
_MAX_GATHERED: Final = 8_000_000
_HALF: Final = 0.5


def rounds_to_integers(layer: Layer, precision: str) -> bool:
    """Whether a layer's result is rounded to integers, beyond exact sums of integers."""
    kind = tensor_types(layer, precision).get("dst")
    if layer.entry.kind == "pool":
        return layer.mode == "avg" and kind in INTEGER_RANGES
    return kind in ("s8", "u8")


def check_fused(
    layer: Layer, run: KernelRun, fuse: str, accumulate: str = "float32"
) -> dict[str, ElementComparison]:
    """Compare the results of the pixels that are recomputed.

    Args:
        layer: the layer.
        run: inputs and results of the kernel.
        fuse: the operations.
        accumulate: type of results between operations; sums are of float32 at least.
    """
    ops = fused_ops(fuse)
    inputs = dict(run.inputs)
    if "src_zero_point" in inputs:  # padding stands for zero, so it is not shifted
        inputs["src"] = inputs["src"] - inputs["src_zero_point"]
    weighted = describe_sum(layer, run.pass_, {**inputs, **run.results})
    source, weights = weighted.source.view("ngc"), weighted.weights.view("goc")
    output = weighted.output.view("ngo")
    images, _, _, *sizes = output.shape
    gathered = math.prod(source.shape[1:3]) * math.prod(weights.shape[3:])
    count = max(1, min(_MAX_MACS // weights.size, _MAX_GATHERED // gathered))
    pixels = choose_pixels(run.rng, images, sizes, count)
    expected, variance = np.zeros((2, len(pixels.image), *output.shape[1:3]))
    rows, squared = pixels.patches(source, weighted.axes, weighted.uncertain)
    add_products(rows, squared, weights, expected, variance)

    def operand(role: str) -> NDArray[Any]:
        array = inputs[role]
        if array.ndim == 1:
            along = [1] * len(layer.shapes()["dst"])
            along[channel_axis(layer)] = -1
            array = array.reshape(along)
        spread = np.broadcast_to(array, layer.shapes()["dst"])
        return pixels.values(weighted.output.like(spread).view("ngo")).astype(np.float64)

    terms = 0 if _is_exact(layer, run) else weighted.terms
    y = _rounded_sums(expected, variance, terms, accumulate)
    roles = dict.fromkeys(op.role for op in ops if op.role and op.role != "src_zero_point")
    tensors = {role: operand(role) for role in roles}
    if "dst" in inputs:
        tensors["dst"] = operand("dst")
    for name in ("src_scale", "weights_scale"):
        y = y * tensors[name] if name in tensors else y
    for op in ops:
        if op.name == "bias" or not op.role or op.role.startswith("operand"):
            y = op.apply(arithmetic, y, tensors)
    if "dst_scale" in tensors:
        y = y / tensors["dst_scale"]
    if "dst_zero_point" in tensors:
        y = y + tensors["dst_zero_point"]
    return {"dst": _compared(layer, run, weighted, y, pixels)}


def _rounded_sums(
    expected: NDArray[Any], variance: NDArray[Any], terms: int, accumulate: str
) -> Rounded:
    """Return sums of products that are rounded to a type before the next operation.

    Without ``terms`` they are exact.
    """
    if terms == 0:
        return Rounded(expected)
    if accumulate not in ("bfloat16", "float16"):
        return Rounded(expected, variance, terms)
    # One error of this type; those of the additions are of float32.
    ratio = UNIT_ROUNDOFF["float32"] / UNIT_ROUNDOFF[accumulate]
    return Rounded(expected, expected**2 + variance * terms * ratio**2, 1)


def _is_exact(layer: Layer, run: KernelRun) -> bool:
    """Whether the sums are exact: those of integers are, averages are not."""
    return tensor_types(layer, run.precision).get("src") in INTEGER_RANGES and (
        layer.entry.kind != "pool"
    )


def _compared(
    layer: Layer, run: KernelRun, weighted: WeightedSum, y: Rounded, pixels: Any
) -> ElementComparison:
    """Compare the values of some pixels with the expected ones."""
    got = pixels.values(weighted.output.view("ngo")).astype(np.float64)
    value, scale = y.value, np.abs(y.value) + y.size
    kind = tensor_types(layer, run.precision).get("dst")
    if kind in INTEGER_RANGES:
        low, high = INTEGER_RANGES[kind]
        value = np.clip(value, low, high)
        # A result within half a unit, its rounding, is right.
        near = np.abs(got - value) <= _HALF
        got_rounded = np.where(near, value, got - np.copysign(_HALF, got - value))
        whole = got == np.rint(got)
        got = np.where(whole & (got >= low) & (got <= high), got_rounded, np.nan)
        scale = np.maximum(scale, 1.0)
    scale = np.maximum(scale, smallest_normal(run.precision))
    worst = worst_of(
        got,
        value,
        scale,
        lambda at: weighted.name(
            "dst",
            int(pixels.image[at[0]]),
            at[1:],
            [side[at[0]] for side in pixels.place],
        ),
    )
    return ElementComparison(terms=max(1, y.terms), points=value.size, checksums=0, worst=worst)

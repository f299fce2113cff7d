"""Verification of a framework's results, including cases that have no reference of their own.

- A dropout draws its own random numbers, so its mask cannot be compared. Its structure is checked:
  each element is zero or the source's over ``keep``, the share of kept elements is about ``keep``,
  and the next call draws another mask. (The backward pass is given the reference's mask, and is
  compared element by element like any other.)
- The gradient of a fused bias is compared with that of a layer that adds the bias alone.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pydlbench.errors import UnsupportedError
from pydlbench.ops.fused import NOTHING_FUSED
from pydlbench.ops.op import Layer
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import fused_inputs as operands_of_fused
from pydlbench.verification.inputs import smallest_normal
from pydlbench.verification.verify import HOST_POINTS, Verdict, tolerance, verify

# A random mask deviates by more standard deviations once in 10**12 times.
_MAX_DEVIATIONS = 7.0
# Two random masks with this entropy are equal once in 10**12 times.
_DECISIVE_BITS = 40.0


def check_fused(spec: KernelSpec) -> None:
    """Check that the case can have a fused bias, if it has one.

    Raises:
        UnsupportedError: the case's layer or pass has no bias.
    """
    layer = spec.layer
    has_bias = layer.op in ("conv", "gemm")
    if spec.fuse == "bias" and (not has_bias or spec.pass_ == "backward-data"):
        what = spec.pass_ if has_bias else layer.kind
        raise UnsupportedError(
            f"--fuse bias: {what} has no bias; nearest: conv2d or gemm, forward or backward-weights"
        )


def is_random(spec: KernelSpec) -> bool:
    """Whether a call draws random numbers itself."""
    layer = spec.layer
    return layer.kind == "pointwise" and (layer.op, spec.pass_) == ("dropout", "forward")


def fused_inputs(spec: KernelSpec, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return the additional inputs of a case with fused operations, such as a bias."""
    if spec.pass_ != "forward":
        return {}
    return operands_of_fused(spec.layer, spec.precision, seed, spec.fuse)


def judge(
    spec: KernelSpec,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Mapping[str, NDArray[Any]],
    *,
    seed: int,
    accumulate: str,
    bias_accumulate: str = "float32",
    algorithm: str,
    second: Mapping[str, NDArray[Any]] | None = None,
) -> Verdict:
    """Compare the results of a call with the reference.

    Args:
        spec: the case.
        inputs: operands by role, including a fused bias.
        outputs: results by role, the main result first.
        seed: seed for the choice of elements, if only some are compared.
        accumulate: format of partial sums.
        bias_accumulate: format of partial sums in the gradient of a fused bias.
        algorithm: the framework's name of the algorithm.
        second: results of the next call; needed if results are random.
    """
    layer = spec.layer
    if is_random(spec):
        assert second is not None
        return _dropout(layer, spec.precision, inputs["src"], outputs["dst"], second["dst"])

    def compare(
        what: Layer,
        given: Mapping[str, NDArray[Any]],
        results: Mapping[str, NDArray[Any]],
        sums: str = accumulate,
    ) -> Verdict:
        # Frameworks sum the gradients of a recurrent layer's steps in the storage format.
        uncertain = what.kind == "recurrent" and spec.precision != "fp32"
        return verify(
            what,
            spec.pass_,
            spec.precision,
            given,
            next(iter(results.values())),
            seed=seed,
            accumulate=sums,
            algorithm=algorithm,
            extra=None if uncertain else results,
            propagation=spec.propagation,
            fuse=spec.fuse if spec.pass_ == "forward" else NOTHING_FUSED,
            points=HOST_POINTS if spec.on_gpu else None,
        )

    if spec.fuse != "bias" or spec.pass_ == "forward":
        return compare(layer, inputs, outputs)
    weights = compare(layer, inputs, {"weights": outputs["weights"]})
    if weights.status != "ok":
        return weights
    alone, gradient = _bias_alone(layer, inputs["dst"])
    summed = {"bias": outputs["bias"]}
    bias = compare(alone, {"dst": gradient}, summed, bias_accumulate)
    if bias.status != "ok":
        return bias
    return msgspec.structs.replace(
        weights,
        detail=f"weights: {weights.detail}; bias: {bias.detail}",
        points=weights.points + bias.points,
    )


def _dropout(
    layer: Layer,
    precision: str,
    source: NDArray[Any],
    output: NDArray[Any],
    second: NDArray[Any],
) -> Verdict:
    """Check each element's value, the share of kept elements, and that each call draws a mask."""
    allowed = tolerance(precision, 1)
    expected = source.astype(np.float64) / layer.keep
    nonzero = expected != 0  # a zero does not show whether it was kept
    kept = nonzero & (output != 0)
    scale = np.where(nonzero, np.maximum(2 * np.abs(expected), smallest_normal(precision)), 1.0)
    error = np.abs(output - np.where(kept, expected, 0.0)) / scale
    worst = int(np.argmax(error))
    count, share = int(nonzero.sum()), int(kept.sum())
    mean, spread = count * layer.keep, (count * layer.keep * (1 - layer.keep)) ** 0.5
    # The probability that two random masks are equal, as a negative power of two.
    bits = -count * np.log2(layer.keep**2 + (1 - layer.keep) ** 2)
    unwritten = int(np.isnan(output).sum())
    largest = float(error.flat[worst])
    reason = None
    if unwritten:
        reason = f"{unwritten} of {output.size} elements of dst never written (NaN)"
    elif not largest <= allowed:
        got, wanted = output.flat[worst], expected.flat[worst]
        reason = f"dst has an element {got:.7g}, expected 0 or {wanted:.7g}"
    elif abs(share - mean) > _MAX_DEVIATIONS * spread + 1:
        reason = f"{share} of {count} elements kept, expected about {mean:.7g}"
    elif bits > _DECISIVE_BITS and np.array_equal(kept, nonzero & (second != 0)):
        reason = "two calls draw the same mask"
    detail = (
        f"random mask: each of {output.size} elements is 0 or src/keep, {share} of {count} kept"
    )
    return Verdict(
        status="failed" if reason else "ok",
        rel_error=largest if np.isfinite(largest) else None,
        tolerance=allowed,
        detail=reason or detail,
        unwritten=unwritten,
        points=output.size,
        checksums=0,
    )


def _bias_alone(layer: Layer, gradient: NDArray[Any]) -> tuple[Layer, NDArray[Any]]:
    """Return the memory-bound layer whose gradient equals the bias's gradient, and its input."""
    if layer.op == "gemm":
        rows = layer.batch_count * layer.m
        images = gradient.reshape(rows, layer.n, 1, 1)
        return build_layer("bias", batch=rows, channels=layer.n), images
    batch, channels, *sizes = gradient.shape
    images = gradient.reshape(batch, channels, -1, sizes[-1])
    height, width = images.shape[2:]
    alone = build_layer("bias", batch=batch, channels=channels, height=height, width=width)
    return alone, images

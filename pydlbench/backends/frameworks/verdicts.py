"""The verdict on what a framework computed, also where the reference has no word for it alone.

- A dropout draws its own random numbers, so no mask of ours can be compared. What is checked is
  its structure: each element is zero or the source's over ``keep``, as many are kept as ``keep``
  says, and the next call draws another mask. (The backward pass is given a mask, the reference's
  one, and is compared element by element like any other.)
- A bias in the same call as a convolution or a product is one channel more of an exact, larger
  problem: each image is padded beforehand and gets a channel of ones per group, whose weights are
  the bias at one tap and zero at all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.ops.windows import on_padded_images
from pydlbench.verification.inputs import round_to, smallest_normal
from pydlbench.verification.verify import Verdict, tolerance, verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec

# The bias of a fused call has a random stream of its own.
_BIAS_STREAM = 91
# A fair draw is further off than this many standard deviations once in 10**12 times.
_DEVIATIONS = 7.0
# Two fair masks of so many random elements agree everywhere once in 10**12 times.
_DECISIVE_BITS = 40.0


def check_fused(spec: KernelSpec) -> None:
    """Make sure that a case with a fused bias has one.

    Raises:
        UnsupportedError: a bias where there is none to add or to differentiate.
    """
    layer = spec.layer
    has_bias = layer.op in ("conv", "gemm")
    if spec.fuse == "bias" and (not has_bias or spec.pass_ == "backward-data"):
        what = spec.pass_ if has_bias else layer.kind
        raise UnsupportedError(
            f"--fuse bias: {what} has no bias; nearest: conv2d or gemm, forward or backward-weights"
        )


def fused_inputs(spec: KernelSpec, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return what a case with a fused bias reads beside its layer's inputs: one per channel."""
    layer = spec.layer
    if spec.fuse != "bias" or layer.op not in ("conv", "gemm"):
        return {}
    if spec.pass_ == "backward-weights":
        return {}
    count = layer.out_channels if layer.op == "conv" else layer.n
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, _BIAS_STREAM])))
    return {"bias": round_to(spec.precision, rng.uniform(-1, 1, count))}


def judge(
    spec: KernelSpec,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Mapping[str, NDArray[Any]],
    *,
    seed: int,
    accumulate: str,
    bias_accumulate: str = "float32",
    algorithm: str,
    again: Mapping[str, NDArray[Any]] | None = None,
) -> Verdict:
    """Compare the results of a call with the reference.

    Args:
        spec: what was computed.
        inputs: what it read, by role; with the bias where one is fused.
        outputs: what it wrote, by role, the main result first.
        seed: chooses what is compared where not everything is.
        accumulate: format of partial sums.
        bias_accumulate: of those of a bias's gradient beside the result.
        algorithm: the framework's name for it.
        again: what the next call wrote; only of what is random.
    """
    layer = spec.layer
    if layer.kind == "pointwise" and (layer.op, spec.pass_) == ("dropout", "forward"):
        assert again is not None
        return _dropout(layer, spec.precision, inputs["src"], outputs["dst"], again["dst"])

    def verified(
        what: Layer,
        pass_: str,
        given: Mapping[str, NDArray[Any]],
        results: Mapping[str, NDArray[Any]],
        sums: str = accumulate,
    ) -> Verdict:
        # Frameworks add the gradients of a recurrent layer's steps up in the storage format.
        uncertain = what.kind == "recurrent" and spec.precision != "fp32"
        return verify(
            what,
            pass_,
            spec.precision,
            given,
            next(iter(results.values())),
            seed=seed,
            accumulate=sums,
            algorithm=algorithm,
            extra=None if uncertain else results,
            propagation=spec.propagation,
        )

    if spec.fuse != "bias":
        return verified(layer, spec.pass_, inputs, outputs)
    assert layer.op in ("conv", "gemm")
    if spec.pass_ == "forward":
        larger, given = _with_channel_of_ones(layer, inputs)
        return verified(larger, "forward", given, outputs)
    weights = verified(layer, spec.pass_, inputs, {"weights": outputs["weights"]})
    if weights.status != "ok":
        return weights
    alone, gradient = _bias_alone(layer, inputs["dst"])
    summed = {"bias": outputs["bias"]}
    bias = verified(alone, "backward-weights", {"dst": gradient}, summed, bias_accumulate)
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
    again: NDArray[Any],
) -> Verdict:
    """Check each element's value, the share of those kept, and that the mask is drawn anew."""
    allowed = tolerance(precision, 1)
    expected = source.astype(np.float64) / layer.keep
    telling = expected != 0  # a zero tells nothing about the mask
    kept = telling & (output != 0)
    least = smallest_normal(precision)
    scale = np.where(telling, np.maximum(2 * np.abs(expected), least), 1.0)
    error = np.abs(output - np.where(kept, expected, 0.0)) / scale
    worst = int(np.argmax(error))
    count, share = int(telling.sum()), int(kept.sum())
    mean, spread = count * layer.keep, (count * layer.keep * (1 - layer.keep)) ** 0.5
    unwritten = int(np.isnan(output).sum())
    largest = float(error.flat[worst])
    reason = None
    if unwritten:
        reason = f"{unwritten} of {output.size} elements of dst never written (NaN)"
    elif not largest <= allowed:
        got, wanted = output.flat[worst], expected.flat[worst]
        reason = f"dst has an element {got:.7g}, expected 0 or {wanted:.7g}"
    elif abs(share - mean) > _DEVIATIONS * spread + 1:
        reason = f"{share} of {count} elements kept, expected about {mean:.7g}"
    elif _bits(count, layer.keep) > _DECISIVE_BITS and np.array_equal(kept, telling & (again != 0)):
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


def _bits(count: int, keep: float) -> float:
    """How unlikely it is that two masks of so many elements are the same, in powers of two."""
    return float(-count * np.log2(keep**2 + (1 - keep) ** 2))


def _with_channel_of_ones(
    layer: Layer, inputs: Mapping[str, NDArray[Any]]
) -> tuple[Layer, dict[str, NDArray[Any]]]:
    """Return the larger problem without a bias that has the same result, and its inputs."""
    source, weights, bias = inputs["src"], inputs["weights"], inputs["bias"]
    if layer.op == "gemm":
        ones = np.ones_like(source[..., :1])
        row = np.broadcast_to(bias, (*weights.shape[:-2], 1, layer.n))
        return layer.replace(k=layer.k + 1), {
            "src": np.concatenate([source, ones], axis=-1),
            "weights": np.concatenate([weights, row], axis=-2),
        }
    pads = ((0, 0), (0, 0), *zip(layer.pad_before, layer.pad_after, strict=True))
    source = np.pad(source, pads)
    batch, channels, *sizes = source.shape
    grouped = source.reshape(batch, layer.groups, -1, *sizes)
    grouped = np.concatenate([grouped, np.ones_like(grouped[:, :, :1])], axis=2)
    column = np.zeros_like(weights[:, :1])
    first: tuple[Any, ...] = (slice(None), *(0,) * (column.ndim - 1))
    column[first] = bias
    larger = on_padded_images(layer).replace(in_channels=channels + layer.groups)
    return larger, {
        "src": grouped.reshape(batch, -1, *sizes),
        "weights": np.concatenate([weights, column], axis=1),
    }


def _bias_alone(layer: Layer, gradient: NDArray[Any]) -> tuple[Layer, NDArray[Any]]:
    """Return the memory-bound layer whose gradient is that of the bias, and what it reads."""
    if layer.op == "gemm":
        rows = layer.batch_count * layer.m
        images = gradient.reshape(rows, layer.n, 1, 1)
        return build_layer("bias", batch=rows, channels=layer.n), images
    batch, channels, *sizes = gradient.shape
    images = gradient.reshape(batch, channels, -1, sizes[-1])
    height, width = images.shape[2:]
    alone = build_layer("bias", batch=batch, channels=channels, height=height, width=width)
    return alone, images

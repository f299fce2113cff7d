"""The verdict on a kernel's result: does it agree with the reference to its precision?"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from pydlbench.errors import UsageError, unknown_word
from pydlbench.ops.fused import NOTHING_FUSED
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import Correctness
from pydlbench.verification.checksums import Deviation, ElementComparison, KernelRun, pieces
from pydlbench.verification.elements import (
    check_attention,
    check_distance,
    check_elements,
    check_exact,
    check_gather,
    check_maxima,
    check_order,
    check_reduction,
    check_transform,
    check_windows,
)
from pydlbench.verification.inputs import UNIT_ROUNDOFF, check_shape, significand_bits
from pydlbench.verification.sums import check_fused, check_sums, rounds_to_integers
from pydlbench.verification.threads import in_threads, quiet
from pydlbench.words import BLOCK_SCALED_PRECISIONS, MIXED_TYPES

# -----------------------------------------------------------------------------
# How far a correct result may be from the exact one.
#
# Errors are relative to ``|ref| + s`` with ``s = sqrt(sum_j x_j**2 w_j**2)``, the typical size of a
# sum of ``K`` products whose signs are random. Let ``u`` be the unit roundoff of the accumulator.
#
# A rounding to nearest is off by at most ``u`` and by about ``0.43 u`` in the root mean square over
# random significands. Summing K products one after the other rounds every partial sum; after j
# terms it has size ``s sqrt(j / K)``, so the squared errors add up to
# ``(0.43 u)**2 s**2 sum_j j / K = (0.43 u s)**2 K / 2``: a root mean square of ``0.3 sqrt(K) u s``.
# (N. Higham and T. Mary, "A new approach to probabilistic rounding error analysis", 2019, prove the
# growth with sqrt(K); blocked or parallel sums do better.) Relative to ``|ref| + s`` that is
# ``0.15 sqrt(K) u``. The tail is longer than a normal distribution's, because the partial sums of
# some elements wander further: in simulated sums one element in 10**3, 10**4 and 10**5 lies beyond
# 0.7, 0.9 and 1.2 ``sqrt(K) u``. ``3 sqrt(K) u`` is seven such steps further, or twenty times the
# root mean square. Four more ``u`` allow for errors that do not grow with K: products that are
# rounded without FMA, and a final scaling.
#
# Storing the result rounds once more, by at most the unit roundoff of the storage format; below its
# smallest normal number results have fewer digits, so errors are relative to that number at least.
# Together::
#
#     tolerance = u_storage + (3 sqrt(K) + 4) u_accumulate
#
# A TF32 kernel rounds both factors, an error of ``0.3 * 2**-11`` in the root mean square. That
# distinguishes it from a float32 kernel in sums of up to about 10**6 terms; beyond that,
# consecutive float32 additions may be as inexact.
#
# Fast convolutions (Winograd, FFT) sum transformed data, whose entries are larger than the result.
# For Winograd's F(4x4, 3x3) A. Lavin and S. Gray ("Fast algorithms for convolutional neural
# networks", 2016) find errors up to an order of magnitude above those of direct convolution, and
# larger tiles are worse; so the second term is multiplied by 32 for them.
#
# Tensor cores add a block of products to a float32 accumulator and truncate the sum instead of
# rounding it to nearest (M. Fasi, N. Higham, M. Mikaitis and S. Pranesh, "Numerical behavior of
# NVIDIA tensor cores", 2021). Truncation is always towards zero, so the errors of the partial sums
# do not cancel: with at least 8 products per block, and at most ``2 u`` lost of each partial sum,
# ``sum_j 2 u s sqrt(8 j / K)`` over ``K / 8`` blocks is ``K u s / 6``, half of it on average. The
# accumulator ``float32-tensor`` is allowed ``K / 12`` units more.

#: The float32 accumulator of a tensor core, which truncates instead of rounding.
TENSOR_ACCUMULATOR = "float32-tensor"
#: The accumulator of 8-bit products whose partial sums are not promoted to float32.
FAST_ACCUMULATOR = "float22-tensor"
_TRUNCATION_PER_TERM = 1 / 12

_TRANSFORMED = ("wino", "fft")
_TRANSFORM_FACTOR = 32.0


def tolerance(
    precision: str, terms: int, accumulate: str = "float32", algorithm: str | None = None
) -> float:
    """Return the largest error, relative to ``|ref| + s``, of a correct kernel.

    Args:
        precision: Storage and arithmetic, such as ``fp32`` or ``bf16``.
        terms: Number K of terms of the sums.
        accumulate: Format of the partial sums: ``float32``, ``float16``, ``bfloat16``, ``float64``,
            ``float32-tensor`` or ``float22-tensor``.
        algorithm: The library's name for the kernel; Winograd and FFT are recognised.

    Raises:
        UsageError: There is no such precision or format.
    """
    storage = UNIT_ROUNDOFF["float32"]
    if precision != "tf32":
        # Results of block-scaled products are bfloat16.
        scaled = precision in BLOCK_SCALED_PRECISIONS
        storage = 2.0 ** -significand_bits("bf16-tc" if scaled else precision)
    truncates = accumulate in (TENSOR_ACCUMULATOR, FAST_ACCUMULATOR)
    truncation = _TRUNCATION_PER_TERM * terms if truncates else 0.0
    rounding = accumulate.removesuffix("-tensor") if truncates else accumulate
    if rounding not in UNIT_ROUNDOFF:
        raise unknown_word(f"accumulate {accumulate}: no such format", accumulate, UNIT_ROUNDOFF)
    summing = (3 * math.sqrt(terms) + 4 + truncation) * UNIT_ROUNDOFF[rounding]
    if algorithm is not None and any(word in algorithm.lower() for word in _TRANSFORMED):
        summing *= _TRANSFORM_FACTOR
    return storage + summing


_Check = Callable[[Any, KernelRun], dict[str, ElementComparison]]
#: By kind of layer: the function that compares all results of a kernel.
_CHECKS: Final[Mapping[str, _Check]] = {
    "conv": check_sums,
    "deconv": check_sums,
    "gemm": check_sums,
    "pool": check_sums,
    "resize": check_sums,
    **dict.fromkeys(("unfold", "grid-sample"), check_windows),
    "attention": check_attention,
    "pointwise": check_elements,
    "elementwise": check_elements,
    "recurrent": check_elements,
    "fft": check_transform,
    "distance": check_distance,
    "reduction": check_reduction,
    "move": check_exact,
    "gather": check_gather,
}


def compare(
    layer: Layer, run: KernelRun, fuse: str = NOTHING_FUSED, accumulate: str = "float32"
) -> dict[str, ElementComparison]:
    """Compare the results of a pass with the reference, by role."""
    is_sum = fuse == NOTHING_FUSED or (fuse == "bias" and run.precision not in MIXED_TYPES)
    if not is_sum or rounds_to_integers(layer, run.precision):
        return check_fused(layer, run, fuse, accumulate)
    check = _CHECKS[layer.entry.kind]
    if layer.entry.kind == "pool" and layer.mode == "max":
        check = check_maxima
    if layer.op in ("sort", "cummax", "cummin"):
        check = check_order
    if layer.entry.kind == "resize" and (layer.mode, run.pass_) == ("nearest", "forward"):
        check = check_exact
    return check(layer, run)


#: Elements of a GPU's element-wise result that the host recomputes. It takes seconds for all that
#: the device computes in a millisecond.
HOST_POINTS: Final = 1 << 24

#: Distinguishes the checker's random numbers from the inputs' random numbers with the same seed.
_STREAM = 3


class Verdict(Correctness, frozen=True, kw_only=True):
    """Verdict on the results of a kernel, with the extent of the check.

    The error is the largest one found, relative to ``|ref| + s`` where ``s`` is the root of the sum
    of the squared terms, and at least to the smallest normal number if the result is rounded. It is
    None if the result is not finite, or nonzero where nothing is summed. The tolerance is zero if
    the result must be exact.

    Attributes:
        unwritten: Number of NaN elements; outputs are filled with NaN before a kernel runs.
        points: Number of elements recomputed exactly.
        checksums: Number of checksums, which together cover all elements.
    """

    unwritten: int
    points: int
    checksums: int


def verify(
    layer: Layer,
    pass_: str,
    precision: str,
    inputs: Mapping[str, NDArray[Any]],
    output: NDArray[Any],
    seed: int,
    accumulate: str = "float32",
    algorithm: str | None = None,
    extra: Mapping[str, NDArray[Any]] | None = None,
    propagation: str = "inference",
    fuse: str = NOTHING_FUSED,
    points: int | None = None,
) -> Verdict:
    """Compare a kernel's result with the float64 reference.

    All arrays are in plain layouts (see :meth:`~pydlbench.ops.op.Layer.shapes`), of any float type
    and any strides, and none of them is copied as a whole.

    Args:
        layer: Layer of the kernel.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        precision: Storage and arithmetic; decides the tolerance.
        inputs: Tensors that the kernel read, by role, as from
            :func:`~pydlbench.verification.inputs.make_inputs`.
        output: The main result; filled with NaN before the kernel ran.
        seed: Seed for the choice of points and the checksum weights.
        accumulate: Format of the kernel's partial sums.
        algorithm: The library's name for the kernel; Winograd and FFT get a larger tolerance.
        extra: Further results by role; missing ones are not compared.
        propagation: ``inference`` or ``training``; matters for a forward pass.
        fuse: Operations that the kernel fuses, whose operands are among the inputs.
        points: About how many elements of an element-wise result are recomputed, the first and the
            last among them; all by default.

    Raises:
        UsageError: The layer has no such pass, an input is missing, or a shape is not the layer's.
    """
    if pass_ not in layer.passes:
        raise unknown_word(f"pass {pass_}: {layer.kind} has no such pass", pass_, layer.passes)
    role = layer.result(pass_)
    written = layer.writes(pass_, propagation)
    if unknown := [name for name in extra or {} if name not in written]:
        raise UsageError(f"extra {unknown[0]}: not a result; there is: {', '.join(written)}")
    results = {name: check_shape(layer, name, array) for name, array in (extra or {}).items()}
    results |= {role: check_shape(layer, role, output)}
    shapes = layer.shapes()
    plain = {
        name: check_shape(layer, name, array) if name in shapes else array
        for name, array in inputs.items()
    }
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, _STREAM])))
    run = KernelRun(
        pass_=pass_,
        propagation=propagation,
        precision=precision,
        inputs=plain,
        results=results,
        rng=rng,
        points=points,
    )
    try:
        with quiet():
            comparisons = compare(layer, run, fuse, accumulate)
    except KeyError as error:
        raise UsageError(f"inputs: {error} is missing; {layer.kind} {pass_} reads it") from None
    verdicts = []
    for name, compared in comparisons.items():
        stored = "fp32" if layer.in_float32(name) else precision
        allowed = 0.0
        algorithm = None if layer.kind == "fft" else algorithm  # its terms are those of an FFT
        if compared.terms:
            allowed = tolerance(stored, compared.terms, accumulate, algorithm)
        verdicts.append(_judge(compared, allowed, results[name], name))
    verdict = verdicts[0] if len(verdicts) == 1 else _worst(verdicts)
    if missing := [name for name in written if name not in results]:
        detail = f"{verdict.detail}; not compared: {', '.join(missing)}"
        verdict = msgspec.structs.replace(verdict, detail=detail)
    return verdict


def _judge(compared: ElementComparison, allowed: float, output: NDArray[Any], role: str) -> Verdict:
    unwritten = infinite = 0
    sampled = compared.points < output.size and not compared.checksums
    if sampled or not math.isfinite(compared.worst.error):
        # Otherwise each element is part of some comparison, and finite.
        unwritten, infinite = _count_not_finite(output)
    recomputed = f"{compared.points} of {output.size} elements recomputed"
    checked = f"all {output.size} elements by {compared.checksums} checksums, {recomputed}"
    if sampled:
        recomputed += ", the others are finite"
    return verdict_on(
        compared.worst,
        allowed,
        elements=f"{output.size} elements of {role}",
        unwritten=unwritten,
        infinite=infinite,
        right=checked if compared.checksums and compared.points < output.size else recomputed,
        points=compared.points,
        checksums=compared.checksums,
    )


def verdict_on(
    worst: Deviation,
    allowed: float,
    *,
    elements: str,
    unwritten: int,
    infinite: int,
    right: str,
    points: int,
    checksums: int = 0,
) -> Verdict:
    """Return the verdict on a result, given its worst deviation.

    Args:
        worst: the worst deviation.
        allowed: the tolerance.
        elements: number and name of the elements.
        unwritten: number of elements that are NaN.
        infinite: number of infinite elements.
        right: how a right result was compared.
        points: number of elements that were recomputed.
        checksums: number of checksums that were compared.
    """
    finite = math.isfinite(worst.error)
    correct = finite and worst.error <= allowed and not (unwritten or infinite)
    detail = f"{worst.where} is {worst.got:.7g}, expected {worst.expected:.7g}"
    if unwritten:
        detail = f"{unwritten} of {elements} never written (NaN)"
    elif infinite:
        detail = f"{infinite} of {elements} infinite"
    elif correct:
        detail = right
    return Verdict(
        status="ok" if correct else "failed",
        rel_error=worst.error if finite else None,
        tolerance=allowed,
        detail=detail,
        unwritten=unwritten,
        points=points,
        checksums=checksums,
    )


def _worst(verdicts: list[Verdict]) -> Verdict:
    """Return the verdict on several results: the worst one, with the sum of all points."""

    def badness(verdict: Verdict) -> tuple[bool, float]:
        failed = verdict.status == "failed"
        if verdict.rel_error is None:
            return failed, math.inf
        return failed, verdict.rel_error / verdict.tolerance if verdict.tolerance else 0.0

    worst = max(verdicts, key=badness)
    points = sum(verdict.points for verdict in verdicts)
    detail = f"{points} of {points} elements of {len(verdicts)} results recomputed"
    return msgspec.structs.replace(
        worst,
        detail=worst.detail if worst.status == "failed" else detail,
        unwritten=sum(verdict.unwritten for verdict in verdicts),
        points=points,
    )


def _count_not_finite(output: NDArray[Any]) -> tuple[int, int]:
    """Count NaN and infinite elements, a piece at a time."""
    unwritten = infinite = 0

    def count(cut: tuple[slice, ...]) -> tuple[int, int]:
        piece = output[cut]
        return int(np.isnan(piece).sum()), int(np.isinf(piece).sum())

    for nan, inf in in_threads(count, pieces(output)):
        unwritten, infinite = unwritten + nan, infinite + inf
    return unwritten, infinite

"""Theoretical compute peaks of GPUs: multiprocessors x FLOP per clock x clock."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.devices.gpu.cards import find_card
from pydlbench.devices.gpu.rates import accumulator, flop_rate, on_tensor_cores
from pydlbench.units import format_hz

if TYPE_CHECKING:
    from pydlbench.devices.gpu.facts import GpuFacts

__all__ = ["GpuPeak", "other_accumulators", "rated_clock", "theoretical_peak"]

# Modes that some products know with another accumulator too, at another rate.
_OTHERS = (("fp16", "float32"), ("fp16-tc", "float16"), ("fp8-tc", "float16"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuPeak:
    """A theoretical compute peak.

    Attributes:
        flops_per_s: of all multiprocessors together.
        flop_per_clock_per_multiprocessor: a multiply-add counts as two.
        multiprocessors: how many.
        hz: at which clock.
        accumulate: ``float32`` or ``float16``.
        derivation: the factors, for people.
        assumed: the product is not in the table.
    """

    flops_per_s: float
    flop_per_clock_per_multiprocessor: int
    multiprocessors: int
    hz: float
    accumulate: str
    derivation: str
    assumed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the peak for JSON: FLOP/s and Hz."""
        return dataclasses.asdict(self)


def rated_clock(facts: GpuFacts, precision: str) -> float | None:
    """Return the clock in Hz that the product's published figures are given at.

    Datasheets of some cards imply another one for the tensor cores (H200: 1.98 GHz for fp32, 1.83
    GHz for the tensor modes). A card that is not in the table has the driver's one, if it tells.
    """
    card = find_card(facts)
    if card is None:
        return facts.clock_hz
    return card.tensor_clock_hz if on_tensor_cores(precision) else card.clock_hz


def theoretical_peak(
    facts: GpuFacts,
    precision: str,
    clock_hz: float | None = None,
    accumulate: str = "float32",
) -> GpuPeak | None:
    """Return what a GPU can do at most at a clock, or None if it cannot do it or no clock is known.

    Args:
        facts: of the GPU.
        precision: ``fp32``, ``tf32``, ``fp16`` (CUDA cores), ``fp16-tc``, ``bf16-tc``, ``fp8-tc``.
        clock_hz: of the multiprocessors, in Hz; the rated one by default.
        accumulate: ``float32`` or ``float16``; see :func:`~pydlbench.devices.gpu.rates.lacks` for
            the reason of a None.
    """
    rate = flop_rate(facts, precision, accumulate)
    hz = rated_clock(facts, precision) if clock_hz is None else clock_hz
    if rate is None or not hz or not facts.multiprocessors:
        return None
    return GpuPeak(
        flops_per_s=rate.flop_per_clock * facts.multiprocessors * hz,
        flop_per_clock_per_multiprocessor=rate.flop_per_clock,
        multiprocessors=facts.multiprocessors,
        hz=hz,
        accumulate=accumulate,
        derivation=f"{facts.multiprocessors} SMs x {rate.flop_per_clock} FLOP/clock x "
        f"{format_hz(hz)} ({rate.derivation})",
        assumed=rate.assumed,
    )


def other_accumulators(facts: GpuFacts) -> dict[str, GpuPeak]:
    """Return the peaks at the rated clock with the accumulator that a mode does not stand for.

    By precision; only where it makes a difference. Kernels of ours accumulate the tensor modes in
    float32, but published figures of GeForce cards often count float16.
    """
    found = {}
    for precision, accumulate in _OTHERS:
        usual = theoretical_peak(facts, precision, accumulate=accumulator(precision))
        other = theoretical_peak(facts, precision, accumulate=accumulate)
        if usual and other and usual.flops_per_s != other.flops_per_s:
            found[precision] = other
    return found

"""Theoretical compute peaks of GPUs: multiprocessors x FLOP per clock x clock."""

import dataclasses
import re
from collections.abc import Mapping

from pydlbench.devices.findings import FlopRate, TheoreticalPeak
from pydlbench.devices.gpu.cards import find_card
from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.units import format_hz
from pydlbench.words import FP8_PRECISIONS, GPU_LAYER_PRECISIONS

# -----------------------------------------------------------------------------
# FLOP per clock and multiprocessor, from the number and the width of its arithmetic units.
#
# Sources: the throughput table of the CUDA C++ Programming Guide (results per clock and
# multiprocessor) for CUDA cores; for tensor cores NVIDIA's architecture whitepapers "Tesla V100",
# "Turing", "A100", "Ampere GA102", "Ada", "H100" and "RTX Blackwell", the datasheets of
# HGX B200, HGX B300, Jetson AGX Orin (8.7), Jetson T5000 (11.0) and DGX Spark (12.1).
# int8: the same whitepapers; twice the rate of fp16, also on GeForce cards. Capability 10.3 keeps a
# small part of it, which the datasheet of HGX B300 rounds to one digit: it is left out, as is 11.0.
# MXFP8 has the rate of fp8. NVFP4: four times that of fp16 (10.0, 11.0: datasheets of HGX B200 and
# Jetson T5000; 12.0, 12.1: whitepaper "RTX Blackwell"), six times in 10.3 (datasheet of HGX B300).
# The table holds what the units can do; it is never fitted to a measurement, because the
# measurement is checked against it.
#
# The compute capability alone does not decide everything: GeForce cards accumulate in float32 at
# half the rate of the same chip's professional cards, and some chips of capability 7.5 have no
# tensor cores.

# The capability that a mode needs, for messages.
_NEEDS = {
    "fp16": "6.0",
    "fp16-tc": "7.0",
    "tf32": "8.0",
    "bf16-tc": "8.0",
    "int8": "7.5",
    "mxfp8-tc": "10.0",
    "nvfp4-tc": "10.0",
} | dict.fromkeys(FP8_PRECISIONS, "8.9")
# Modes that GeForce cards have at the full rate.
_NEVER_HALVED = ("int8", "nvfp4-tc")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Multiprocessor:
    """One multiprocessor; all numbers are fused multiply-adds per clock, two FLOP each.

    Attributes:
        fp32: number of float32 lanes.
        fp16: number of float16 results outside the tensor cores; one half2 instruction gives two.
        tensor_cores: number of tensor cores.
        tensor: number of multiply-adds of one tensor core by mode, with float16 or narrower
            accumulation.
    """

    fp32: int
    fp16: int = 0
    tensor_cores: int = 0
    tensor: Mapping[str, int] = dataclasses.field(default_factory=dict)


def _tensor(
    fp16: int, *, tf32: bool = True, fp8: bool = False, int8: bool = True, **more: int
) -> dict[str, int]:
    modes = {"fp16-tc": fp16, **{f"{name}-tc": rate for name, rate in more.items()}}
    if tf32:
        modes |= {"bf16-tc": fp16, "tf32": fp16 // 2}
    if fp8:
        modes |= dict.fromkeys(FP8_PRECISIONS, 2 * fp16)
    if int8:
        modes["int8"] = 2 * fp16
    return modes


_KEPLER = _Multiprocessor(fp32=192)
_MAXWELL = _Multiprocessor(fp32=128)


def _blackwell(nvfp4: int, *, int8: bool) -> _Multiprocessor:
    tensor = _tensor(1024, fp8=True, int8=int8, mxfp8=2048, nvfp4=nvfp4)
    return _Multiprocessor(fp32=128, fp16=256, tensor_cores=4, tensor=tensor)


_RTX_BLACKWELL = _Multiprocessor(
    fp32=128, fp16=128, tensor_cores=4, tensor=_tensor(128, fp8=True, nvfp4=512)
)
_TABLE = {
    "3.0": _KEPLER,
    "3.5": _KEPLER,
    "3.7": _KEPLER,
    "5.0": _MAXWELL,
    "5.2": _MAXWELL,
    "6.0": _Multiprocessor(fp32=64, fp16=128),
    "6.1": _Multiprocessor(fp32=128, fp16=2),
    "7.0": _Multiprocessor(
        fp32=64, fp16=128, tensor_cores=8, tensor=_tensor(64, tf32=False, int8=False)
    ),
    "7.5": _Multiprocessor(fp32=64, fp16=128, tensor_cores=8, tensor=_tensor(64, tf32=False)),
    "8.0": _Multiprocessor(fp32=64, fp16=256, tensor_cores=4, tensor=_tensor(256)),
    "8.6": _Multiprocessor(fp32=128, fp16=128, tensor_cores=4, tensor=_tensor(128)),
    "8.7": _Multiprocessor(fp32=128, fp16=256, tensor_cores=4, tensor=_tensor(256)),
    "8.9": _Multiprocessor(fp32=128, fp16=128, tensor_cores=4, tensor=_tensor(128, fp8=True)),
    "9.0": _Multiprocessor(fp32=128, fp16=256, tensor_cores=4, tensor=_tensor(512, fp8=True)),
    "10.0": _blackwell(4096, int8=True),
    "10.3": _blackwell(6144, int8=False),
    "11.0": _blackwell(4096, int8=False),
    "12.0": _RTX_BLACKWELL,
    "12.1": _RTX_BLACKWELL,
}

# Chips whose GeForce cards accumulate in float32 at half rate.
_HALVED = ("7.5", "8.6", "8.9", "12.0")
# TU116 and TU117 report 7.5 and have no tensor cores.
_WITHOUT_TENSOR_CORES = re.compile(r"\bGTX 16\d\d\b|\bMX\d{3}\b|\bT(400|500|550|600|1000|1200)\b")


def on_tensor_cores(precision: str) -> bool:
    """Whether a mode runs on tensor cores."""
    return precision in ("tf32", "int8") or "-tc" in precision


def accumulator(precision: str) -> str:
    """Return the default accumulator of a mode.

    Tensor modes accumulate in float32 by definition; ``fp16`` on CUDA cores reaches its peak only
    with float16, and integers are summed in integers.
    """
    return {"fp16": "float16", "int8": "int32"}.get(precision, "float32")


def unknown_capability(facts: GpuFacts) -> bool:
    """Whether a GPU's compute capability is missing in the table of FLOP rates."""
    return facts.capability not in _TABLE


def lacks(facts: GpuFacts, precision: str) -> str | None:
    """Return why a GPU has no peak in ``precision``, or None if it has one."""
    if precision not in GPU_LAYER_PRECISIONS:
        return f"{precision}: no mode of GPUs; choices: {', '.join(GPU_LAYER_PRECISIONS)}"
    unit = _TABLE.get(facts.capability)
    if unit is None:
        return (
            f"{facts.label}: its compute capability is not in the table of FLOP rates, so there is "
            "no theoretical peak"
        )
    if precision == "fp32" or (precision == "fp16" and unit.fp16):
        return None
    if precision not in unit.tensor:
        if _version(facts.capability) > _version(_NEEDS[precision]):
            return f"{facts.label} has no {precision} with a published rate"
        return f"{facts.label} has no {precision}: it needs {_NEEDS[precision]}"
    if facts.capability == "7.5" and _WITHOUT_TENSOR_CORES.search(facts.name):
        return f"{facts.label} has no {precision}: this chip has no tensor cores"
    return None


def _version(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))


def flop_rate(facts: GpuFacts, precision: str, accumulate: str = "float32") -> FlopRate | None:
    """Return the FLOP per clock and multiprocessor; None with a reason from :func:`lacks`.

    Args:
        facts: facts of the GPU.
        precision: one of :data:`GPU_LAYER_PRECISIONS`.
        accumulate: accumulator, ``float32`` or ``float16``; matters for ``fp16``, ``fp16-tc`` and
            ``fp8-tc``.
    """
    if lacks(facts, precision) is not None:
        return None
    unit = _TABLE[facts.capability]
    assumed = find_card(facts) is None
    if precision == "fp16" and accumulate == "float16":
        text = f"{unit.fp16} float16 multiply-adds in half2 instructions x 2 FLOP"
        return FlopRate(flop_per_clock=2 * unit.fp16, derivation=text, assumed=assumed)
    if not on_tensor_cores(precision):
        text = f"{unit.fp32} float32 lanes x 2 FLOP"
        if precision == "fp16":
            text += ", which float32 accumulation needs"
        return FlopRate(flop_per_clock=2 * unit.fp32, derivation=text, assumed=assumed)
    per_core = unit.tensor[precision]
    text = f"{unit.tensor_cores} tensor cores x {per_core} multiply-adds x 2 FLOP"
    narrow = accumulate == "float16" and precision in ("fp16-tc", *FP8_PRECISIONS)
    narrow = narrow or precision in _NEVER_HALVED
    if _halved(facts) and not narrow:
        per_core //= 2
        text += ", half of it with float32 accumulation"
    flops = 2 * unit.tensor_cores * per_core
    return FlopRate(flop_per_clock=flops, derivation=text, assumed=assumed)


def _halved(facts: GpuFacts) -> bool:
    card = find_card(facts)
    if card is not None:
        return card.half_rate
    return facts.capability in _HALVED and "geforce" in facts.name.lower()


# Modes that some products have with another accumulator, at another rate.
_OTHER_ACCUMULATORS = (("fp16", "float32"), ("fp16-tc", "float16"), ("fp8-tc", "float16"))


def rated_clock(facts: GpuFacts, precision: str) -> float | None:
    """Return the clock of the product's published figures in Hz; None if unknown.

    Datasheets of some cards imply another clock for the tensor cores (H200: 1.98 GHz for fp32, 1.83
    GHz for the tensor modes). A card that is not in the table has the driver's clock.
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
) -> TheoreticalPeak | None:
    """Return a GPU's theoretical peak; None if it lacks the mode or the clock is unknown.

    Args:
        facts: facts of the GPU.
        precision: one of :data:`GPU_LAYER_PRECISIONS`; ``fp16`` is that of the CUDA cores.
        clock_hz: clock of the multiprocessors in Hz; the rated one by default.
        accumulate: ``float32`` or ``float16``; :func:`lacks` returns the reason for a None.
    """
    rate = flop_rate(facts, precision, accumulate)
    hz = rated_clock(facts, precision) if clock_hz is None else clock_hz
    if rate is None or not hz or not facts.multiprocessors:
        return None
    return TheoreticalPeak(
        flops_per_s=rate.flop_per_clock * facts.multiprocessors * hz,
        flop_per_clock=rate.flop_per_clock,
        units=facts.multiprocessors,
        hz=hz,
        accumulate=accumulate,
        derivation=f"{facts.multiprocessors} SMs x {rate.flop_per_clock} FLOP/clock x "
        f"{format_hz(hz)} ({rate.derivation})",
        assumed=rate.assumed,
    )


def other_accumulators(facts: GpuFacts) -> dict[str, TheoreticalPeak]:
    """Return the peaks at the rated clock with the other accumulator of a mode, where they differ.

    Our kernels accumulate the tensor modes in float32, but published figures of GeForce cards often
    assume float16.
    """
    peaks = {}
    for precision, accumulate in _OTHER_ACCUMULATORS:
        usual = theoretical_peak(facts, precision, accumulate=accumulator(precision))
        other = theoretical_peak(facts, precision, accumulate=accumulate)
        if usual and other and usual.flops_per_s != other.flops_per_s:
            peaks[precision] = other
    return peaks

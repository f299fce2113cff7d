"""What makes timings on a GPU unreliable, or slower than the card could be; each with the remedy.

Only what its facts and what NVML told beforehand can show; nothing is ever set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.devices.findings import Advice
from pydlbench.devices.gpu.cards import find_card
from pydlbench.devices.gpu.peaks import on_tensor_cores
from pydlbench.units import format_hz

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.devices.findings import PrecisionPeak
    from pydlbench.devices.gpu.facts import GpuFacts

# Loops of multiply-adds lose next to nothing; the library's products some tenths, and more where
# partial sums are promoted to float32.
_EXPECTED_SHARE = {False: 0.90, True: 0.60}
_EXPECTED_OF_PROMOTED = {"fp8-tc": 0.40}
# Large products sit at the power cap by nature; a plain loop that runs this slowly does not.
_SLOW_CLOCK = 0.85
# Cards are cooled to less than this.
_HOT_C = 80
_REPORT = "please report this GPU with the output of pydlbench device --device {} --json -"
# What the driver's event reasons say of every idle or busy card.
_HARMLESS = ("idle", "power cap", "sync boost")


def gpu_advice(facts: GpuFacts, nvml: Mapping[str, Any] | None = None) -> tuple[Advice, ...]:
    """Return what to know before believing timings taken on a GPU.

    Args:
        facts: of the GPU.
        nvml: what NVML told beforehand: ``power_limit_w``, ``mig``, ``persistence``,
            ``temperature_c``, ``throttle`` (names of event reasons), ``processes`` (ids of others),
            ``display``; or ``reason``, why there is nothing. Keys may be absent or None.
    """
    nvml_facts = {key: value for key, value in (nvml or {}).items() if value is not None}
    remarks = (
        _unwatched(nvml_facts),
        _processes(nvml_facts),
        _throttled(nvml_facts),
        _hot(nvml_facts),
        _power(facts, nvml_facts),
        _partition(facts, nvml_facts),
        _ecc(facts),
        _display(nvml_facts),
        _persistence(nvml_facts),
        _integrated(facts),
    )
    return tuple(advice for advice in remarks if advice is not None)


def gpu_peak_advice(facts: GpuFacts, peak: PrecisionPeak, rated_hz: float | None) -> Advice | None:
    """Return a warning if a measured compute peak or its clock falls far short.

    Args:
        facts: of the GPU.
        peak: measured and theoretical.
        rated_hz: the clock that the product's published figures are given at.
    """
    if peak.measured is None or peak.theoretical is None:
        return None
    tensor = on_tensor_cores(peak.precision)
    share = peak.measured / peak.theoretical.flops_per_s
    expected = _EXPECTED_OF_PROMOTED.get(peak.precision, _EXPECTED_SHARE[tensor])
    if not peak.theoretical.assumed and share < expected:
        what = "best matrix product" if tensor else "FMA probe"
        return Advice(
            symptom=f"the {peak.precision} {what} reached {100 * share:.0f} % of the theoretical "
            "peak at the clock it ran at",
            remedy="a newer cuBLAS may know better kernels"
            if tensor
            else "look for other work on the GPU: nvidia-smi",
        )
    if tensor or not peak.clock_hz or not rated_hz or peak.clock_hz >= _SLOW_CLOCK * rated_hz:
        return None
    return Advice(
        symptom=f"the {peak.precision} FMA probe ran at {format_hz(peak.clock_hz)}, "
        f"{100 * peak.clock_hz / rated_hz:.0f} % of the rated {format_hz(rated_hz)}",
        remedy=f"nvidia-smi -i {facts.index} -q -d PERFORMANCE,CLOCK names what holds it down",
    )


def assumption_advice(facts: GpuFacts, precision: str, measured: float, assumed: float) -> Advice:
    """Return the warning for a probe that beat what was only assumed about an unknown product.

    Args:
        facts: of the GPU.
        precision: of both.
        measured: FLOP/s.
        assumed: FLOP/s at the clock of the measurement.
    """
    return Advice(
        symptom=f"{precision}: {measured / assumed:.2f} x of what was assumed of this unknown "
        "product was measured: there is no theoretical peak, only the measured one",
        remedy=_REPORT.format(facts.device),
    )


def unknown_advice(facts: GpuFacts, reason: str) -> Advice:
    """Return the warning for a GPU that the table of FLOP rates does not hold."""
    return Advice(symptom=reason, remedy=_REPORT.format(facts.device))


def _unwatched(nvml: Mapping[str, Any]) -> Advice | None:
    if not nvml.get("reason"):
        return None
    return Advice(
        symptom=f"power, heat and throttling are not watched ({nvml['reason']})",
        remedy="rows stand without these readings; nvidia-smi shows what they would",
    )


def _processes(nvml: Mapping[str, Any]) -> Advice | None:
    others = tuple(nvml.get("processes", ()))
    if not others:
        return None
    some = f"{len(others)} process{'es' if len(others) > 1 else ''}"
    ids = ", ".join(map(str, others[:4])) + (", ..." if len(others) > 4 else "")
    return Advice(
        symptom=f"{some} beside this one on the GPU (pid {ids}; in a container one of these may be "
        "this one itself): work of others takes multiprocessors, bandwidth and clock",
        remedy="stop them, or take another GPU with --device",
    )


def _throttled(nvml: Mapping[str, Any]) -> Advice | None:
    reasons = [name for name in nvml.get("throttle", ()) if name not in _HARMLESS]
    if not reasons:
        return None
    return Advice(
        symptom=f"the clock is held down before anything runs: {', '.join(reasons)}",
        remedy="cool the card, or ask who set its clocks: nvidia-smi -q -d PERFORMANCE,CLOCK",
    )


def _hot(nvml: Mapping[str, Any]) -> Advice | None:
    heat = nvml.get("temperature_c")
    if heat is None or heat < _HOT_C:
        return None
    return Advice(
        symptom=f"the GPU is at {heat:.0f} degrees C before anything runs: it will soon slow down",
        remedy="let it cool down, and look at its cooling",
    )


def _power(facts: GpuFacts, nvml: Mapping[str, Any]) -> Advice | None:
    card, limit = find_card(facts), nvml.get("power_limit_w")
    if card is None or card.power_w is None or limit is None or limit >= 0.98 * card.power_w:
        return None
    return Advice(
        symptom=f"the power limit is {limit:.0f} W where the card's own is {card.power_w:.0f} W: "
        "large products run at a lower clock",
        remedy="compare cycles rather than times, or ask the administrator for the full limit",
    )


def _partition(facts: GpuFacts, nvml: Mapping[str, Any]) -> Advice | None:
    card = find_card(facts)
    fewer = card is not None and facts.multiprocessors < card.multiprocessors
    if not nvml.get("mig") and not fewer:
        return None
    there = f" of {card.multiprocessors}" if card is not None else ""
    return Advice(
        symptom=f"{facts.multiprocessors}{there} multiprocessors are to be had (MIG or another "
        "partition): peaks count these, neighbours share memory, power and clock",
        remedy="take a whole GPU for numbers that are to be compared",
    )


def _ecc(facts: GpuFacts) -> Advice | None:
    card = find_card(facts)
    if card is None:
        return None
    if facts.ecc and card.memory_type.startswith("GDDR"):
        return Advice(
            symptom="ECC is on: on GDDR memory it costs bandwidth and capacity, which published "
            "figures leave out",
            remedy="compare with cards in the same setting only",
        )
    if facts.ecc is False and card.memory_type.startswith("HBM") and card.name != "Titan V":
        return Advice(
            symptom="ECC is off, where such a card has it on as delivered",
            remedy="compare with cards in the same setting only",
        )
    return None


def _display(nvml: Mapping[str, Any]) -> Advice | None:
    if not nvml.get("display"):
        return None
    return Advice(
        symptom="a display is attached: drawing the desktop takes time from kernels",
        remedy="use another GPU for the display, or a text console",
    )


def _persistence(nvml: Mapping[str, Any]) -> Advice | None:
    if nvml.get("persistence", True):
        return None
    return Advice(
        symptom="persistence mode is off: the driver sets the card up anew for every first "
        "process, and its clock starts low",
        remedy="sudo nvidia-smi -pm 1, or keep a process on the card while measuring",
    )


def _integrated(facts: GpuFacts) -> Advice | None:
    if not facts.integrated:
        return None
    return Advice(
        symptom="the GPU shares its memory with the CPU: what runs there takes bandwidth",
        remedy="keep the host idle while measuring",
    )

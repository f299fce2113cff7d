"""Reasons why timings on a GPU are unreliable, or slower than the card allows; with remedies.

Derived from the GPU's facts and from NVML's state before the run; settings are never changed.
"""

import math
from collections.abc import Mapping
from typing import Any

from pydlbench.devices.findings import DeviceAdvice, PrecisionPeak, advice_where
from pydlbench.devices.gpu.cards import find_card
from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.devices.gpu.peaks import on_tensor_cores
from pydlbench.units import format_hz

# Loops of multiply-adds reach nearly the peak. The library's products lose some tenths, and more if
# partial sums are promoted to float32.
_EXPECTED_SHARE = {False: 0.90, True: 0.60}
_EXPECTED_OF_PROMOTED = {"fp8-tc": 0.40}
# Large products run at the power cap by nature, plain loops do not.
_SLOW_CLOCK = 0.85
# Coolers keep cards below this temperature.
_HOT_C = 80
_REPORT = "please report this GPU with the output of pydlbench device --device {} --json -"
# Event reasons that every idle or busy card has.
_HARMLESS = ("idle", "power cap", "sync boost")


def gpu_advice(facts: GpuFacts, nvml: Mapping[str, Any] | None = None) -> tuple[DeviceAdvice, ...]:
    """Return the reasons why timings on a GPU may be unreliable.

    Args:
        facts: facts of the GPU.
        nvml: NVML's state before the run: ``power_limit_w``, ``mig``, ``persistence``,
            ``temperature_c``, ``throttle`` (names of event reasons), ``processes`` (ids of other
            processes), ``display``, ``exclusive`` (one process at a time); or
            ``reason``, why it is unknown. Keys may be absent or None.
    """
    state = {key: value for key, value in (nvml or {}).items() if value is not None}
    others = tuple(state.get("processes", ()))
    some = f"{len(others)} process{'es' if len(others) > 1 else ''}"
    ids = ", ".join(map(str, others[:4])) + (", ..." if len(others) > 4 else "")
    throttle = [name for name in state.get("throttle", ()) if name not in _HARMLESS]
    limit_w, heat = state.get("power_limit_w", math.inf), state.get("temperature_c", 0)
    card = find_card(facts)
    board_w = math.inf if card is None or card.power_w is None else card.power_w
    there = "" if card is None else f" of {card.multiprocessors}"
    memory = "" if card is None or card.name == "Titan V" else card.memory_type
    return advice_where(
        (
            state.get("reason"),
            f"power, temperature and throttling are not monitored ({state.get('reason')})",
            "rows lack these readings; nvidia-smi shows them",
        ),
        (
            others,
            (
                f"{some} on the GPU besides this one (pid {ids}; in a container one of these may "
                "be this one itself): others take multiprocessors, bandwidth and clock"
            ),
            "stop them, or use another GPU with --device",
        ),
        (
            throttle,
            f"the clock is reduced before anything runs: {', '.join(throttle)}",
            "cool the card, or check its clock settings: nvidia-smi -q -d PERFORMANCE,CLOCK",
        ),
        (
            heat >= _HOT_C,
            f"the GPU is at {heat:.0f} degrees C before anything runs: it will soon slow down",
            "let it cool down, and check its cooling",
        ),
        (
            limit_w < 0.98 * board_w < math.inf,
            (
                f"the power limit is {limit_w:.0f} W where the card's own is {board_w:.0f} W: "
                "large products run at a lower clock"
            ),
            "compare cycles rather than times, or ask the administrator for the full limit",
        ),
        (
            state.get("mig") or (card and facts.multiprocessors < card.multiprocessors),
            (
                f"{facts.multiprocessors}{there} multiprocessors are available (MIG or another "
                "partition): peaks count these; neighbours share memory, power and clock"
            ),
            "use a whole GPU for numbers that will be compared",
        ),
        (
            facts.ecc and memory.startswith("GDDR"),
            (
                "ECC is on: on GDDR memory it costs bandwidth and capacity, which published "
                "figures do not include"
            ),
            "compare with cards in the same setting only",
        ),
        (
            facts.ecc is False and memory.startswith("HBM"),
            "ECC is off, although such a card is delivered with ECC on",
            "compare with cards in the same setting only",
        ),
        (
            state.get("exclusive"),
            (
                "the GPU admits one process at a time (compute mode): a second backend's worker "
                "cannot start, nor can a step beside native rows"
            ),
            f"sudo {_smi(facts)} -c DEFAULT, or one --backend at a time",
        ),
        (
            state.get("display"),
            "a display is attached: drawing the desktop takes time from kernels",
            "use another GPU for the display, or a text console",
        ),
        (
            not state.get("persistence", True),
            (
                "persistence mode is off: the driver initialises the card for every first process, "
                "and its clock starts low"
            ),
            "sudo nvidia-smi -pm 1, or keep a process on the card while measuring",
        ),
        (
            facts.integrated,
            "the GPU shares its memory with the CPU: processes there take bandwidth",
            "keep the host idle while measuring",
        ),
    )


def _smi(facts: GpuFacts) -> str:
    """Return the driver's command for a GPU. Its numbers of cards are not those of CUDA."""
    return f"nvidia-smi -i {facts.uuid or facts.index}"


def gpu_peak_advice(
    facts: GpuFacts, peak: PrecisionPeak, rated_hz: float | None
) -> DeviceAdvice | None:
    """Return a warning if a measured compute peak or its clock is far too low.

    Args:
        facts: facts of the GPU.
        peak: measured and theoretical peak.
        rated_hz: clock at which the product's published figures hold, in Hz.
    """
    if peak.measured is None or peak.theoretical is None:
        return None
    tensor = on_tensor_cores(peak.precision)
    share = peak.measured / peak.theoretical.flops_per_s
    expected = _EXPECTED_OF_PROMOTED.get(peak.precision, _EXPECTED_SHARE[tensor])
    if not peak.theoretical.assumed and share < expected:
        what = "best matrix product" if tensor else "FMA probe"
        return DeviceAdvice(
            symptom=f"the {peak.precision} {what} reached {100 * share:.0f} % of the theoretical "
            "peak at the clock it ran at",
            remedy="a newer cuBLAS may have faster kernels"
            if tensor
            else "look for other processes on the GPU: nvidia-smi",
        )
    if tensor or not peak.clock_hz or not rated_hz or peak.clock_hz >= _SLOW_CLOCK * rated_hz:
        return None
    return DeviceAdvice(
        symptom=f"the {peak.precision} FMA probe ran at {format_hz(peak.clock_hz)}, "
        f"{100 * peak.clock_hz / rated_hz:.0f} % of the rated {format_hz(rated_hz)}",
        remedy=f"{_smi(facts)} -q -d PERFORMANCE,CLOCK shows the reason",
    )


def assumption_advice(
    facts: GpuFacts, precision: str, measured: float, assumed: float
) -> DeviceAdvice:
    """Return the warning for a probe that exceeded the peak assumed for an unknown product.

    Args:
        facts: facts of the GPU.
        precision: precision of both peaks.
        measured: measured peak in FLOP/s.
        assumed: assumed peak in FLOP/s at the clock of the measurement.
    """
    return DeviceAdvice(
        symptom=f"{precision}: the probe reached {measured / assumed:.2f} x the peak assumed for "
        "this unknown product: there is only a measured peak, no theoretical one",
        remedy=_REPORT.format(facts.device),
    )


def unknown_advice(facts: GpuFacts, reason: str) -> DeviceAdvice:
    """Return the warning for a GPU that is not in the table of FLOP rates."""
    return DeviceAdvice(symptom=reason, remedy=_REPORT.format(facts.device))

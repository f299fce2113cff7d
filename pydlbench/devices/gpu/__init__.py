"""GPUs: facts from the driver, known cards, FLOP rates, what they could reach and what they do."""

from pydlbench.devices.gpu.cards import KnownCard, find_card, known_cards
from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.devices.gpu.peaks import (
    GpuPeak,
    other_accumulators,
    rated_clock,
    theoretical_peak,
)
from pydlbench.devices.gpu.rates import GpuRate, flop_rate, lacks
from pydlbench.devices.gpu.record import GpuRecord, LaunchCost, gpu_peak

__all__ = [
    "GpuFacts",
    "GpuPeak",
    "GpuRate",
    "GpuRecord",
    "KnownCard",
    "LaunchCost",
    "find_card",
    "flop_rate",
    "gpu_peak",
    "known_cards",
    "lacks",
    "other_accumulators",
    "rated_clock",
    "theoretical_peak",
]

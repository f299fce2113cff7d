"""The report of ``device`` for a GPU: facts, peaks, launch costs, bandwidths, libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.devices.gpu import find_card, other_accumulators
from pydlbench.report.device_tables import bandwidth_table, fact_lines, peak_lines
from pydlbench.units import format_bytes, format_hz, format_seconds, si

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.devices.gpu import GpuFacts, GpuRecord

__all__ = ["render_gpu"]

_LEVELS = {"memory": "device memory", "l2": "L2 cache"}


def render_gpu(record: GpuRecord) -> str:
    """Return facts and findings of a GPU; no newline at the end."""
    return "\n".join(_lines(record))


def _lines(record: GpuRecord) -> Iterator[str]:
    yield from fact_lines(_facts(record))
    yield from peak_lines(record.peaks, "rated")
    for precision, peak in other_accumulators(record.facts).items() if record.peaks else ():
        figure = si(peak.flops_per_s, "FLOP/s")
        yield f"{precision} with {peak.accumulate} accumulation: {figure}, {peak.derivation}"
    if record.launch is not None:
        yield ""
        yield (
            f"an empty kernel takes {format_seconds(record.launch.empty_kernel_s)} on the device, "
            f"{format_seconds(record.launch.graph_node_s)} as a node of a CUDA graph; "
            f"its launch takes the host {format_seconds(record.launch.host_s)}"
        )
    if record.bandwidths:
        limit = record.facts.memory_bytes_per_s
        yield ""
        yield bandwidth_table(
            record.bandwidths, _LEVELS, None if limit is None else {"memory": limit}
        )
        yield "GB/s as the pattern counts its arrays: a copy counts what it reads and writes."
    elif record.bandwidth_reason is not None:
        yield ""
        yield f"no bandwidths: {record.bandwidth_reason}"


def _facts(record: GpuRecord) -> Iterator[tuple[str, str]]:
    facts = record.facts
    ident = (
        facts.device,
        facts.name,
        f"compute capability {facts.capability}",
        f"PCI {facts.pci}" if facts.pci else None,
        facts.uuid,
    )
    yield "GPU", "  ".join(filter(None, ident))
    yield "product", _product(facts)
    yield "SMs", f"{facts.multiprocessors}, L2 {facts.l2_bytes / (1 << 20):.3g} MiB"
    yield "memory", _memory(facts)
    yield "clock", _clock(record)
    state = _state(record)
    if state:
        yield "state", state
    versions = (("driver", facts.driver_version), ("runtime", facts.runtime_version))
    told = [f"{version} ({name})" for name, version in versions if version]
    if told:
        yield "CUDA", ", ".join(told)
    for name, version in record.libraries.items():
        if not name.endswith(" path"):
            path = record.libraries.get(f"{name} path")
            yield name, f"{version}  {path}" if path else version


def _product(facts: GpuFacts) -> str:
    card = find_card(facts)
    if card is None:
        return "not among the known cards (pydlbench device --known): rates are assumed"
    note = f"; {card.note}" if card.note else ""
    return f"{card.name} ({card.year}), figures from: {card.source}{note}"


def _memory(facts: GpuFacts) -> str:
    items = [format_bytes(facts.memory_bytes)]
    if facts.memory_bus_bits is not None and facts.memory_clock_hz is not None:
        items.append(f"{facts.memory_bus_bits} bits at {format_hz(facts.memory_clock_hz)}, twice")
    if facts.ecc is not None:
        items.append(f"ECC {'on' if facts.ecc else 'off'}")
    return ", ".join(items)


def _clock(record: GpuRecord) -> str:
    facts, card = record.facts, find_card(record.facts)
    items = []
    if record.clock_hz is not None:
        items.append(f"{format_hz(record.clock_hz)} under load (measured)")
    if facts.clock_hz is not None:
        items.append(f"{format_hz(facts.clock_hz)} at most (driver)")
    if card is not None:
        tensor = ""
        if card.tensor_clock_hz != card.clock_hz:
            tensor = f", {format_hz(card.tensor_clock_hz)} for tensor cores"
        items.append(f"{format_hz(card.clock_hz)}{tensor} (datasheet)")
    return ", ".join(items) or "unknown"


def _state(record: GpuRecord) -> str:
    told = record.nvml
    items = []
    if told.get("power_limit_w") is not None:
        items.append(f"power limit {told['power_limit_w']:.0f} W")
    if told.get("temperature_c") is not None:
        items.append(f"{told['temperature_c']:.0f} degrees C before the probes")
    return ", ".join(items)

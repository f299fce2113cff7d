"""The report of ``device`` for a CPU: facts, peaks, cost of starting threads, bandwidths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.devices.cpu import format_cpus
from pydlbench.report.device_tables import bandwidth_table, fact_lines, peak_lines
from pydlbench.units import format_bytes, format_hz, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.devices import DeviceRecord
    from pydlbench.devices.cpu import Cache, CpuFacts

__all__ = ["render_cpu"]

_LEVELS = {"memory": "memory", "llc": "last-level cache", "l2": "level before it"}


def render_cpu(record: DeviceRecord) -> str:
    """Return facts and findings of a CPU; no newline at the end."""
    return "\n".join(_lines(record))


def _lines(record: DeviceRecord) -> Iterator[str]:
    yield from fact_lines(_facts(record))
    yield from peak_lines(record.peaks, "nominal")
    if record.launch_s:
        yield ""
        yield f"starting and joining the threads takes {format_seconds(record.launch_s)}"
    if record.bandwidths:
        yield ""
        yield bandwidth_table(record.bandwidths, _LEVELS)
        yield "GB/s as the pattern counts its arrays; what plain stores read first is not counted."


def _facts(record: DeviceRecord) -> Iterator[tuple[str, str]]:
    facts = record.facts
    ident = (
        f"{name} {value}"
        for name, value in (
            ("family", facts.family),
            ("model", facts.model),
            ("stepping", facts.stepping),
        )
        if value is not None
    )
    yield "CPU", "  ".join(filter(None, (facts.name, facts.vendor, *ident)))
    yield "cores", _cores(facts)
    yield "used", f"{len(record.cpus)} thread(s), one each on CPU {format_cpus(record.cpus)}"
    yield "limits", _limits(facts)
    yield "ISA", " ".join(facts.isa) or "unknown"
    yield "caches", _caches(facts.caches) or "unknown"
    if facts.memory_total_bytes is not None:
        available = facts.memory_available_bytes
        free = "" if available is None else f", {format_bytes(available)} available"
        nodes = len(facts.numa_nodes) or 1
        yield "memory", f"{format_bytes(facts.memory_total_bytes)}{free}, {nodes} NUMA node(s)"
    clocks = []
    if record.clock_hz is not None:
        clocks.append(f"{format_hz(record.clock_hz)} under load (measured)")
    if facts.nominal_hz is not None:
        clocks.append(f"{format_hz(facts.nominal_hz)} nominal ({facts.nominal_source})")
    clocks.append(f"governor {facts.governor or 'unknown'}")
    if facts.turbo is not None:
        clocks.append(f"turbo {'on' if facts.turbo else 'off'}")
    yield "clock", ", ".join(clocks)
    if record.libraries:
        versions = (f"{name} {version}" for name, version in record.libraries.items())
        yield "libraries", ", ".join(versions)
    for note in facts.notes:
        yield "note", note


def _cores(facts: CpuFacts) -> str:
    smt = f"{facts.threads_per_core} threads per core" if facts.threads_per_core > 1 else "no SMT"
    where = ""
    if facts.virtualised:
        where = f", virtual machine{f' ({facts.hypervisor})' if facts.hypervisor else ''}"
    return f"{facts.cores} in {facts.sockets} socket(s), {smt}{where}"


def _limits(facts: CpuFacts) -> str:
    quota = "no CPU quota" if facts.cpu_limit is None else f"CPU quota {facts.cpu_limit:g}"
    return f"affinity mask holds {len(facts.affinity)} of {facts.logical_cpus} CPUs, {quota}"


def _caches(caches: tuple[Cache, ...]) -> str:
    kinds: dict[tuple[int, str, int], int] = {}
    for cache in caches:
        key = (cache.level, cache.type, cache.size_bytes)
        kinds[key] = kinds.get(key, 0) + 1
    letters = {"Data": "d", "Instruction": "i"}
    return ", ".join(
        f"{count} x L{level}{letters.get(type_, '')} {_cache_size(size)}"
        for (level, type_, size), count in sorted(kinds.items())
    )


def _cache_size(size: int) -> str:
    """Caches come in powers of two, and everyone knows them by these."""
    mib, rest = divmod(size, 1 << 20)
    return f"{mib} MiB" if mib and not rest else f"{size / 1024:g} KiB"

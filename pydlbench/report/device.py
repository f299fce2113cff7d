"""The report of ``device``: facts, peaks, bandwidths, libraries; known cards."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.devices.cpu.affinity import format_cpus
from pydlbench.devices.gpu.cards import find_card
from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.devices.gpu.peaks import accumulator, other_accumulators, theoretical_peak
from pydlbench.report.text import plain_table
from pydlbench.units import format_bytes, format_hz, format_seconds, percent, si

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydlbench.devices.cpu.facts import Cache, CpuFacts
    from pydlbench.devices.cpu.record import DeviceRecord
    from pydlbench.devices.findings import Bandwidth, PrecisionPeak
    from pydlbench.devices.gpu.cards import KnownCard
    from pydlbench.devices.gpu.record import GpuRecord

__all__ = ["PricedCard", "price_cards", "render_cards", "render_cpu", "render_gpu"]


# -----------------------------------------------------------------------------
# The tables of ``device`` that all kinds of devices share: facts, peaks, bandwidths.


def fact_lines(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield one line per labelled fact."""
    for label, text in facts:
        yield f"{label:<10}{text}"


def ruled_table(titles: Sequence[str], rows: Sequence[Sequence[str]], align: Sequence[str]) -> str:
    """Return a table with a rule under its titles; ``align`` holds ``left`` or ``right``."""
    from tabulate import tabulate  # imported here: not every command prints a table

    return tabulate(rows, titles, tablefmt="simple", colalign=align, disable_numparse=True)


def peak_lines(peaks: Sequence[PrecisionPeak], rated: str) -> Iterator[str]:
    """Yield the table of compute peaks, an empty line before it, and the derivations.

    Args:
        peaks: one per precision.
        rated: what the clock that a product is sold with is called: ``nominal``, ``rated``.
    """
    if not peaks:
        return
    yield ""
    titles = ("precision", "measured", "theoretical", "share", rated, "clock", "probe")
    yield ruled_table(titles, [_peak_row(peak) for peak in peaks], ("left", *["right"] * 5, "left"))
    for peak in peaks:
        limit = peak.theoretical or peak.nominal
        if limit is not None:
            assumed = "; assumed" if limit.assumed else ""
            yield f"{peak.precision}: {limit.derivation}{assumed}"


def bandwidth_table(
    bandwidths: Sequence[Bandwidth],
    names: Mapping[str, str],
    theory: Mapping[str, float] | None = None,
) -> str:
    """Return the table of bandwidths in GB/s, one row per level, one column per pattern.

    Args:
        bandwidths: what was probed.
        names: of the levels, for people.
        theory: theoretical bandwidths in B/s, of levels that have one.
    """
    patterns = list(dict.fromkeys(item.pattern for item in bandwidths))
    rows = []
    for level in dict.fromkeys(item.level for item in bandwidths):
        found = {item.pattern: item for item in bandwidths if item.level == level}
        size = max(item.working_set_bytes for item in found.values())
        cells = [
            f"{found[pattern].bytes_per_s / 1e9:.1f}" if pattern in found else "-"
            for pattern in patterns
        ]
        if theory:
            limit = theory.get(level)
            best = max(item.bytes_per_s for item in found.values())
            cells += ["-", "-"] if limit is None else [f"{limit / 1e9:.1f}", percent(best / limit)]
        rows.append((names.get(level, level), format_bytes(size), *cells))
    titles = ("GB/s from", "working set", *patterns)
    if theory:
        titles += ("theoretical", "share")
    return ruled_table(titles, rows, ("left", *["right"] * (len(titles) - 1)))


def _peak_row(peak: PrecisionPeak) -> tuple[str, ...]:
    nominal = "-" if peak.nominal is None else si(peak.nominal.flops_per_s, "FLOP/s")
    if peak.measured is None:
        return (peak.precision, "-", "-", "-", nominal, "-", peak.reason or "not probed")
    limit = peak.theoretical
    return (
        peak.precision,
        si(peak.measured, "FLOP/s"),
        "-" if limit is None else si(limit.flops_per_s, "FLOP/s"),
        "-" if limit is None else percent(peak.measured / limit.flops_per_s),
        nominal,
        "-" if peak.clock_hz is None else format_hz(peak.clock_hz),
        peak.kernel or "-",
    )


# -----------------------------------------------------------------------------
# The report of ``device`` for a CPU: facts, peaks, cost of starting threads, bandwidths.

_CPU_LEVELS = {"memory": "memory", "llc": "last-level cache", "l2": "level before it"}


def render_cpu(record: DeviceRecord) -> str:
    """Return facts and findings of a CPU; no newline at the end."""
    return "\n".join(_cpu_lines(record))


def _cpu_lines(record: DeviceRecord) -> Iterator[str]:
    yield from fact_lines(_cpu_facts(record))
    yield from peak_lines(record.peaks, "nominal")
    if record.launch_s:
        yield ""
        yield f"starting and joining the threads takes {format_seconds(record.launch_s)}"
    if record.bandwidths:
        yield ""
        yield bandwidth_table(record.bandwidths, _CPU_LEVELS)
        yield "GB/s as the pattern counts its arrays; what plain stores read first is not counted."


def _cpu_facts(record: DeviceRecord) -> Iterator[tuple[str, str]]:
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


# -----------------------------------------------------------------------------
# The report of ``device`` for a GPU: facts, peaks, launch costs, bandwidths, libraries.

_GPU_LEVELS = {"memory": "device memory", "l2": "L2 cache"}


def render_gpu(record: GpuRecord) -> str:
    """Return facts and findings of a GPU; no newline at the end."""
    return "\n".join(_gpu_lines(record))


def _gpu_lines(record: GpuRecord) -> Iterator[str]:
    yield from fact_lines(_gpu_facts(record))
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
            record.bandwidths, _GPU_LEVELS, None if limit is None else {"memory": limit}
        )
        yield "GB/s as the pattern counts its arrays: a copy counts what it reads and writes."
    elif record.bandwidth_reason is not None:
        yield ""
        yield f"no bandwidths: {record.bandwidth_reason}"


def _gpu_facts(record: GpuRecord) -> Iterator[tuple[str, str]]:
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


# -----------------------------------------------------------------------------
# The table of known cards, with what a price makes of their figures.

# In this order they stand in the table.
_TITLES = {
    "fp32": "FP32",
    "fp16": "FP16",
    "tf32": "TF32 tc",
    "fp16-tc": "FP16 tc",
    "bf16-tc": "BF16 tc",
    "fp8-tc": "FP8 tc",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PricedCard:
    """A known card with what was given about it on the command line.

    Attributes:
        card: the known card.
        tflops: TFLOP/s by precision: as published, or else derived.
        derived: the precisions whose figure was not published.
        price_usd: what it costs.
        images_per_s: its throughput in some model.
    """

    card: KnownCard
    tflops: Mapping[str, float]
    derived: frozenset[str]
    price_usd: float | None = None
    images_per_s: float | None = None

    def tflops_per_kusd(self, precision: str) -> float | None:
        """Return TFLOP/s per 1000 USD, or None without a price or a figure."""
        value = self.tflops.get(precision)
        return None if value is None or self.price_usd is None else 1e3 * value / self.price_usd

    @property
    def images_per_s_per_usd(self) -> float | None:
        """Images per second and dollar, or None without a price or a throughput."""
        if self.images_per_s is None or self.price_usd is None:
            return None
        return self.images_per_s / self.price_usd

    def to_dict(self) -> dict[str, Any]:
        """Return the card for JSON: published figures, derived ones, and what a price makes."""
        return {
            **self.card.to_dict(),
            "tflops_derived": {name: self.tflops[name] for name in sorted(self.derived)},
            "price_usd": self.price_usd,
            "images_per_s": self.images_per_s,
            "tflops_per_kusd": {
                name: value for name in _TITLES if (value := self.tflops_per_kusd(name))
            },
            "images_per_s_per_usd": self.images_per_s_per_usd,
        }


def price_cards(
    cards: Sequence[KnownCard], prices: Mapping[str, float], images_per_s: Mapping[str, float]
) -> tuple[PricedCard, ...]:
    """Return the cards with all that can be said about them.

    Args:
        cards: known cards.
        prices: USD by card name.
        images_per_s: throughput by card name.
    """
    found = []
    for card in cards:
        derived = _derived(card)
        found.append(
            PricedCard(
                card=card,
                tflops={**derived, **card.tflops},
                derived=frozenset(derived),
                price_usd=prices.get(card.name),
                images_per_s=images_per_s.get(card.name),
            )
        )
    return tuple(found)


def render_cards(cards: Sequence[PricedCard]) -> str:
    """Return the table and its legend; columns of prices only where there are any."""
    titles = ["card", "year", "cc", "SMs", "memory", "GB/s"]
    titles += [*_TITLES.values(), "W"]
    priced = any(card.price_usd is not None for card in cards)
    imaged = any(card.images_per_s is not None for card in cards)
    if priced:
        titles += ["USD", "FP32/kUSD", "FP16 tc/kUSD"]
    if imaged:
        titles += ["images/s", "images/s/USD"]
    rows = []
    for item in cards:
        row = _row(item)
        if priced:
            row += [
                _number(item.price_usd),
                _number(item.tflops_per_kusd("fp32")),
                _number(item.tflops_per_kusd("fp16-tc")),
            ]
        if imaged:
            row += [_number(item.images_per_s), _number(item.images_per_s_per_usd)]
        rows.append(row)
    right = [title not in ("card", "memory") for title in titles]
    legend = (
        "TFLOP/s as published: dense, float32 accumulation (FP16 on CUDA cores: float16), tc:\n"
        "tensor cores; *: not published, SMs x FLOP per clock x clock; -: the card lacks it."
    )
    if priced:
        legend += "\n/kUSD: TFLOP/s per 1000 USD at the prices given with --price."
    if imaged:
        legend += "\nimages/s: as given with --throughput; images/s/USD: that over the price."
    return f"{legend}\n\n{plain_table(titles, rows, right)}"


def _row(item: PricedCard) -> list[str]:
    card = item.card
    figures = [
        f"{_number(item.tflops[name], 3)}*"
        if name in item.derived
        else _number(item.tflops.get(name))
        for name in _TITLES
    ]
    memory = f"{card.memory_gb:g} GB {card.memory_type}"
    place = [card.name, str(card.year), card.capability, str(card.multiprocessors), memory]
    return [*place, f"{card.bandwidth_gb_per_s:g}", *figures, _number(card.power_w)]


def _derived(card: KnownCard) -> dict[str, float]:
    """The figures that were not published, in TFLOP/s, of modes that the card has."""
    facts = GpuFacts(
        name=card.driver_names[0],
        capability=card.capability,
        multiprocessors=card.multiprocessors,
        memory_bytes=int(card.memory_gb * 1e9),
    )
    found = {}
    for name in _TITLES:
        peak = theoretical_peak(facts, name, accumulate=accumulator(name))
        if peak is not None and name not in card.tflops:
            found[name] = peak.flops_per_s / 1e12
    return found


def _number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.{digits}g}"

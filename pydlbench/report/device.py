"""The report of ``device``: facts, peaks, bandwidths, libraries; known cards."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, Final

from pydlbench.devices.cpu.affinity import format_cpus
from pydlbench.devices.cpu.facts import Cache, CpuFacts
from pydlbench.devices.cpu.record import DeviceRecord
from pydlbench.devices.findings import Bandwidth, PrecisionPeak
from pydlbench.devices.gpu.cards import KnownCard, find_card
from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.devices.gpu.peaks import accumulator, other_accumulators, theoretical_peak
from pydlbench.devices.gpu.record import GpuRecord
from pydlbench.devices.gpu.traffic import BETWEEN
from pydlbench.grouping import group_by
from pydlbench.records.record import Column
from pydlbench.report.blocks import Block, Facts, Headline, Lines, TableBlock
from pydlbench.units import (
    format_bytes,
    format_hz,
    format_seconds,
    holding,
    known_text,
    number,
    percent,
    si,
)

_CPU_LEVELS: Final = {
    "memory": "memory",
    "llc": "last-level cache",
    "l2": "level before it",
}
_GPU_LEVELS: Final = {"memory": "device memory", "l2": "L2 cache"} | dict.fromkeys(
    BETWEEN, "both of them"
)


def device_report(record: DeviceRecord | GpuRecord) -> list[Block]:
    """Return facts and findings: peaks, costs of a launch, bandwidths."""
    from pydlbench.devices.cpu.record import DeviceRecord

    blocks = _cpu_report(record) if isinstance(record, DeviceRecord) else _gpu_report(record)
    return [Headline(_conclusion(record)), *blocks]


def _conclusion(record: DeviceRecord | GpuRecord) -> list[str]:
    """Return the peak of the first precision, the memory's bandwidth, and what lies between."""
    peak = next((peak for peak in record.peaks if peak.measured), None)
    rates = [each.bytes_per_s for each in record.bandwidths if each.level == "memory"]
    if peak is None or not rates or not peak.measured:
        return []
    flops, rate = peak.measured, max(rates)
    rates_text = f"{si(flops, 'FLOP/s')} in {peak.precision} and {si(rate, 'B/s')} of memory"
    bound = f"layers below {number(flops / rate)} FLOP per byte are bound by memory"
    return [f"This device reaches {rates_text}: {bound}.", "next: pydlbench layers"]


def _cpu_report(record: DeviceRecord) -> list[Block]:
    launch = record.launch_s
    start = [f"starting and joining the threads takes {format_seconds(launch)}"] if launch else []
    counted = "GB/s as the pattern counts its arrays; what plain stores read first is not counted."
    return [
        Facts(_cpu_facts(record)),
        _peaks_table(record.peaks, "nominal"),
        Lines(_derivations(record.peaks)),
        Lines(start),
        *_bandwidths(record.bandwidths, _CPU_LEVELS, counted),
    ]


def _gpu_report(record: GpuRecord) -> list[Block]:
    other_sums = [
        f"{precision} with {peak.accumulate} accumulation: {si(peak.flops_per_s, 'FLOP/s')}, "
        f"{peak.derivation}"
        for precision, peak in other_accumulators(record.facts).items()
        if record.peaks
    ]
    start = known_text(
        record.launch,
        lambda launch: (
            f"an empty kernel takes {format_seconds(launch.empty_kernel_s)} on the device, "
            f"{format_seconds(launch.single_kernel_s)} alone between two events, "
            f"{format_seconds(launch.graph_node_s)} as a node of a CUDA graph; "
            f"its launch takes the host {format_seconds(launch.host_s)}"
        ),
    )
    if record.bandwidths:
        limit = record.facts.memory_bytes_per_s
        theory = None if limit is None else {"memory": limit}
        counted = "GB/s as the pattern counts its arrays: a copy counts what it reads and writes."
        bandwidths = _bandwidths(record.bandwidths, _GPU_LEVELS, counted, theory)
    else:
        reason = record.bandwidth_reason
        bandwidths = [Lines([f"no bandwidths: {reason}"] if reason is not None else [])]
    return [
        Facts(_gpu_facts(record)),
        _peaks_table(record.peaks, "rated"),
        Lines([*_derivations(record.peaks), *other_sums]),
        Lines([start] if start else []),
        *bandwidths,
    ]


def _peaks_table(peaks: Sequence[PrecisionPeak], rated: str) -> TableBlock:
    """Return the table of compute peaks.

    Args:
        peaks: peaks by precision.
        rated: name of the product's published clock: ``nominal``, ``rated``.
    """
    titles = ("precision", "measured", "tries", "theoretical", "share", rated, "clock", "probe")
    right = (False, True, True, True, True, True, True, False)
    return TableBlock(titles, list(map(_peak_cells, peaks)), right)


def _peak_cells(peak: PrecisionPeak) -> list[str]:
    def flops(value: float | None) -> str:
        return "-" if value is None else si(value, "FLOP/s")

    measured, limit = peak.measured, None
    if measured is not None and peak.theoretical is not None:
        limit = peak.theoretical.flops_per_s
    clock = "-" if measured is None or peak.clock_hz is None else format_hz(peak.clock_hz)
    tries = f"{len(peak.tries) or '-'}"
    if peak.low is not None and measured is not None:
        tries += f", from {flops(peak.low)}"
    tries += f", {peak.impossible} beyond theory" if peak.impossible else ""
    # Reasons of missing peaks are printed below.
    probe = "not probed" if peak.reason is None and measured is None else "-"
    return [
        *(peak.precision, flops(measured), tries, flops(limit)),
        percent(measured / limit if measured and limit else None),
        flops(peak.nominal.flops_per_s if peak.nominal else None),
        *(clock, probe if measured is None else peak.kernel or "-"),
    ]


def _derivations(peaks: Sequence[PrecisionPeak]) -> list[str]:
    lines = []
    for peak in peaks:
        limit = peak.theoretical or peak.nominal
        if limit is not None:
            assumed = "; assumed" if limit.assumed else ""
            lines.append(f"{peak.precision}: {limit.derivation}{assumed}")
        if peak.measured is None and peak.reason is not None:
            lines.append(f"{peak.precision}: not measured: {peak.reason}")
    return lines


def _bandwidths(
    bandwidths: Sequence[Bandwidth],
    names: Mapping[str, str],
    counted: str,
    theory: Mapping[str, float] | None = None,
) -> list[Block]:
    """Return the table in GB/s, one row per level, one column per pattern; and its notes.

    Args:
        bandwidths: probed bandwidths; none gives an empty table.
        names: names of the levels in words.
        counted: note on the traffic that a pattern counts.
        theory: theoretical bandwidths in B/s, by level.
    """
    patterns = list(dict.fromkeys(bandwidth.pattern for bandwidth in bandwidths))
    cells = []
    for level, probed in group_by(bandwidths, lambda bandwidth: bandwidth.level).items():
        by_pattern = {bandwidth.pattern: bandwidth for bandwidth in probed}
        size = max(bandwidth.working_set_bytes for bandwidth in probed)
        row = [names.get(level, level), format_bytes(size)]
        row += [_rate(by_pattern.get(pattern)) for pattern in patterns]
        limit = (theory or {}).get(level)
        best = max(bandwidth.bytes_per_s for bandwidth in probed)
        shares = ["-", "-"] if limit is None else [f"{limit / 1e9:.1f}", percent(best / limit)]
        cells.append([*row, *(shares if theory else ())])
    titles = ["GB/s from", "working set", *patterns, *(("theoretical", "share") if theory else ())]
    return [
        TableBlock(titles, cells, [title != "GB/s from" for title in titles]),
        Lines([*_windows(bandwidths), counted] if cells else []),
    ]


def _rate(bandwidth: Bandwidth | None) -> str:
    """Return the slowest, the fastest and the median window's GB/s."""
    if bandwidth is None:
        return "-"
    best, middle = bandwidth.bytes_per_s / 1e9, bandwidth.median_bytes_per_s / 1e9
    low = best if bandwidth.low_bytes_per_s is None else bandwidth.low_bytes_per_s / 1e9
    mark = "*" if bandwidth.disturbance is not None else ""
    return f"{low:.1f} .. {best:.1f} ({middle:.1f}){mark}"


def _windows(bandwidths: Sequence[Bandwidth]) -> Iterator[str]:
    """Yield notes on the figures of a bandwidth, and on the number of windows."""
    counts = [max(1, len(bandwidth.windows)) for bandwidth in bandwidths]
    some = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"
    yield (
        f"the best round of the slowest and of the fastest of {some} windows each, and in brackets "
        "the median round; the fastest is the roof"
    )
    disturbed = sum(bandwidth.disturbed for bandwidth in bandwidths)
    if disturbed:
        yield f"{disturbed} windows were disturbed and measured again"
    reasons = dict.fromkeys(
        bandwidth.disturbance for bandwidth in bandwidths if bandwidth.disturbance
    )
    yield from (f"*: no window was undisturbed: {reason}" for reason in reasons)


# -----------------------------------------------------------------------------
# Facts of a CPU.


def _cpu_facts(record: DeviceRecord) -> list[tuple[str, str]]:
    facts = record.facts
    numbers = {"family": facts.family, "model": facts.model, "stepping": facts.stepping}
    ident = (f"{name} {value}" for name, value in numbers.items() if value is not None)
    free = known_text(
        facts.memory_available_bytes, lambda count: f", {format_bytes(count)} available"
    )
    memory = known_text(
        facts.memory_total_bytes,
        lambda count: f"{format_bytes(count)}{free}, {len(facts.numa_nodes) or 1} NUMA node(s)",
    )
    clocks = (
        known_text(
            record.clock_hz,
            lambda hertz: f"{format_hz(hertz)} under load (measured{_of_each(record)})",
        ),
        known_text(
            facts.nominal_hz, lambda hertz: f"{format_hz(hertz)} nominal ({facts.nominal_source})"
        ),
        f"governor {facts.governor or 'unknown'}",
        known_text(facts.turbo, lambda on: f"turbo {'on' if on else 'off'}"),
    )
    libraries = ", ".join(f"{name} {version}" for name, version in record.libraries.items())
    return [
        ("CPU", "  ".join(filter(None, (facts.name, facts.vendor, *ident)))),
        ("cores", _cores(facts)),
        ("used", f"{len(record.cpus)} thread(s), one each on CPU {format_cpus(record.cpus)}"),
        ("limits", _limits(facts)),
        ("ISA", " ".join(facts.isa) or "unknown"),
        ("caches", _caches(facts.caches) or "unknown"),
        *([("memory", memory)] if memory else []),
        ("clock", ", ".join(filter(None, clocks))),
        *([("libraries", libraries)] if libraries else []),
        *(("note", note) for note in facts.notes),
    ]


def _of_each(record: DeviceRecord) -> str:
    """Return the slowest, the median and the fastest CPU's clock; empty if one alone was read."""
    peak = next((peak for peak in record.peaks if len(peak.clocks_hz) > 1), None)
    if peak is None:
        return ""
    clocks = sorted(peak.clocks_hz)
    ends = (clocks[0], median(clocks), clocks[-1])
    low, middle, high = (format_hz(end) for end in ends)
    return f"; all {len(clocks)} CPUs busy: {low} .. {high}, median {middle}"


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
    kinds = Counter((cache.level, cache.type, cache.size_bytes) for cache in caches)
    letters = {"Data": "d", "Instruction": "i"}
    return ", ".join(
        f"{count} x L{level}{letters.get(type_, '')} {_cache_size(size)}"
        for (level, type_, size), count in sorted(kinds.items())
    )


def _cache_size(size: int) -> str:
    """Return a cache's size in binary units, in which caches are specified."""
    mib, rest = divmod(size, 1 << 20)
    return f"{mib} MiB" if mib and not rest else f"{size / 1024:g} KiB"


# -----------------------------------------------------------------------------
# Facts of a GPU.


def _gpu_facts(record: GpuRecord) -> list[tuple[str, str]]:
    facts, state = record.facts, _state(record)
    ident = (
        facts.device,
        facts.name,
        f"compute capability {facts.capability}",
        f"PCI {facts.pci}" if facts.pci else None,
        facts.uuid,
    )
    versions = (("driver", facts.driver_version), ("runtime", facts.runtime_version))
    cuda = ", ".join(f"{version} ({name})" for name, version in versions if version)
    paths = {name: record.libraries.get(f"{name} path") for name in record.libraries}
    return [
        ("GPU", "  ".join(filter(None, ident))),
        ("product", _product(facts)),
        ("SMs", f"{facts.multiprocessors}, L2 {facts.l2_bytes / (1 << 20):.3g} MiB"),
        ("memory", _memory(facts)),
        ("clock", _clock(record)),
        *([("state", state)] if state else []),
        *([("CUDA", cuda)] if cuda else []),
        *(
            (name, "  ".join(filter(None, (version, paths[name]))))
            for name, version in record.libraries.items()
            if not name.endswith(" path")
        ),
    ]


def _product(facts: GpuFacts) -> str:
    card = find_card(facts)
    if card is None:
        return "not among the known cards (pydlbench device --known): rates are assumed"
    note = f"; {card.note}" if card.note else ""
    return f"{card.name} ({card.year}), figures from: {card.source}{note}"


def _memory(facts: GpuFacts) -> str:
    clock_hz, bits = facts.memory_clock_hz, facts.memory_bus_bits
    items = (
        format_bytes(facts.memory_bytes),
        f"{bits} bits at {format_hz(clock_hz)}, twice"
        if bits is not None and clock_hz is not None
        else "",
        known_text(facts.ecc, lambda on: f"ECC {'on' if on else 'off'}"),
    )
    return ", ".join(filter(None, items))


def _clock(record: GpuRecord) -> str:
    card = find_card(record.facts)
    tensor = ""
    if card is not None and card.tensor_clock_hz != card.clock_hz:
        tensor = f", {format_hz(card.tensor_clock_hz)} for tensor cores"
    items = (
        known_text(record.clock_hz, lambda hertz: f"{format_hz(hertz)} under load (measured)"),
        known_text(record.facts.clock_hz, lambda hertz: f"{format_hz(hertz)} at most (driver)"),
        known_text(card, lambda card: f"{format_hz(card.clock_hz)}{tensor} (datasheet)"),
    )
    return ", ".join(filter(None, items)) or "unknown"


def _state(record: GpuRecord) -> str:
    power, heat = (record.nvml.get(name) for name in ("power_limit_w", "temperature_c"))
    items = (
        known_text(power, "power limit {:.0f} W".format),
        known_text(heat, "{:.0f} degrees C before the probes".format),
    )
    return ", ".join(filter(None, items))


# -----------------------------------------------------------------------------
# The table of known cards, with ratios to prices.

# Columns of the table by precision.
_TITLES = {
    "fp32": "FP32",
    "fp16": "FP16",
    "tf32": "TF32 tc",
    "fp16-tc": "FP16 tc",
    "bf16-tc": "BF16 tc",
    "fp8-tc": "FP8 tc",
}


_LEGEND: Final = (
    "TFLOP/s as published: dense, float32 accumulation (FP16 on CUDA cores: float16), tc: tensor "
    "cores; *: not published, SMs x FLOP per clock x clock; -: the card lacks it; "
    "?: a figure is in no document of the manufacturer's."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PricedCard:
    """A known card with a price and a throughput from the command line.

    Attributes:
        card: the known card.
        tflops: TFLOP/s by precision: as published, or else derived.
        derived: the precisions whose figure was not published.
        price_usd: price of the card in USD.
        images_per_s: throughput of the card in some model.
    """

    card: KnownCard
    tflops: Mapping[str, float]
    derived: frozenset[str]
    price_usd: float | None = None
    images_per_s: float | None = None

    def tflops_per_kusd(self, precision: str) -> float | None:
        """Return TFLOP/s per 1000 USD, or None if the price or the figure is unknown."""
        value = self.tflops.get(precision)
        return None if value is None or self.price_usd is None else 1e3 * value / self.price_usd

    @property
    def images_per_s_per_usd(self) -> float | None:
        """Images per second and dollar, or None if the price or the throughput is unknown."""
        if self.images_per_s is None or self.price_usd is None:
            return None
        return self.images_per_s / self.price_usd

    def to_dict(self) -> dict[str, Any]:
        """Return the card for JSON: published figures, derived ones, and ratios to the price."""
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
    """Return the cards with derived figures, prices and throughputs.

    Args:
        cards: known cards.
        prices: USD by card name.
        images_per_s: throughput by card name.
    """
    derived = {card.name: _derived(card) for card in cards}
    return tuple(
        PricedCard(
            card=card,
            tflops={**derived[card.name], **card.tflops},
            derived=frozenset(derived[card.name]),
            price_usd=prices.get(card.name),
            images_per_s=images_per_s.get(card.name),
        )
        for card in cards
    )


def cards_report(cards: Sequence[PricedCard]) -> list[Block]:
    """Return the legend and the table; columns of prices only if there are any."""
    priced = any(card.price_usd is not None for card in cards)
    imaged = any(card.images_per_s is not None for card in cards)
    legend = {
        _LEGEND: True,
        "/kUSD: TFLOP/s per 1000 USD at the prices given with --price.": priced,
        "images/s: as given with --throughput; images/s/USD: that over the price.": imaged,
    }
    columns: list[Column[PricedCard]] = [
        Column("card", lambda row: row.card.name + "?" * row.card.unconfirmed, right=False),
        Column("year", lambda row: str(row.card.year)),
        Column("cc", lambda row: row.card.capability),
        Column("SMs", lambda row: str(row.card.multiprocessors)),
        Column(
            "memory", lambda row: f"{row.card.memory_gb:g} GB {row.card.memory_type}", right=False
        ),
        Column("GB/s", lambda row: f"{row.card.bandwidth_gb_per_s:g}"),
        *(Column(title, partial(_figure, precision=name)) for name, title in _TITLES.items()),
        Column("W", lambda row: _number(row.card.power_w)),
    ]
    prices: list[Column[PricedCard]] = [
        Column("USD", lambda row: _number(row.price_usd)),
        Column("FP32/kUSD", lambda row: _number(row.tflops_per_kusd("fp32"))),
        Column("FP16 tc/kUSD", lambda row: _number(row.tflops_per_kusd("fp16-tc"))),
    ]
    rates: list[Column[PricedCard]] = [
        Column("images/s", lambda row: _number(row.images_per_s)),
        Column("images/s/USD", lambda row: _number(row.images_per_s_per_usd)),
    ]
    columns += [*(prices if priced else ()), *(rates if imaged else ())]
    return [Lines(holding(legend)), TableBlock.from_rows(columns, cards)]


def _figure(row: PricedCard, precision: str) -> str:
    """Return TFLOP/s; a derived figure has three digits and a mark."""
    value = row.tflops.get(precision)
    return f"{_number(value, 3)}*" if precision in row.derived else _number(value)


def _derived(card: KnownCard) -> dict[str, float]:
    """Return figures that were not published, in TFLOP/s, of modes that the card has."""
    facts = GpuFacts(
        name=card.driver_names[0],
        capability=card.capability,
        multiprocessors=card.multiprocessors,
        memory_bytes=int(card.memory_gb * 1e9),
    )
    figures = {}
    for name in _TITLES:
        peak = theoretical_peak(facts, name, accumulate=accumulator(name))
        if peak is not None and name not in card.tflops:
            figures[name] = peak.flops_per_s / 1e12
    return figures


def _number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.{digits}g}"

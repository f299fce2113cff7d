"""``pydlbench device``: facts, peaks in theory and measured, bandwidths, clocks, libraries."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from pydlbench.devices.cpu.facts import Cache, CpuFacts
    from pydlbench.devices.record import DeviceRecord, PrecisionPeak

__all__ = ["add_parser", "run"]

_PRECISIONS = ("fp32", "bf16", "fp16")
_LEVELS = {"memory": "memory", "llc": "last-level cache", "l2": "level before it"}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "device",
        help="facts, peaks (theoretical and measured), bandwidth, clocks, libraries",
        description="Show what this machine is, what it could do and what probes reach on it.",
    )
    parser.add_argument("--threads", metavar="N", help="probe with N threads (default: all cores)")
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE, or - for stdout")
    parser.add_argument("--quiet", action="store_true", help="no warnings")


def run(args: argparse.Namespace, probe: Callable[..., DeviceRecord] | None = None) -> int:
    """Probe the device and show it.

    Args:
        args: the parsed options.
        probe: takes the place of ``measure.probe_device`` in tests.

    Raises:
        UsageError: Bad ``--threads``, unwritable file.
        PydlbenchError: The probes could not run.
    """
    from pydlbench.cli.values import whole_number
    from pydlbench.results.destination import STDOUT, check_writable, write_text

    threads = None if args.threads is None else whole_number("--threads", args.threads, 1)
    if args.json is not None:
        check_writable("--json", args.json)
    if probe is None:
        from pydlbench.measure import probe_device

        probe = probe_device
    record = probe(device="cpu", threads=threads, precisions=_PRECISIONS)
    if args.json != STDOUT:
        print("\n".join(_lines(record)))
    if args.json is not None:
        write_text(args.json, _to_json(record))
    if not args.quiet:
        for advice in record.warnings:
            print(f"warning: {advice.symptom}; {advice.remedy}", file=sys.stderr)
    return 0


def _to_json(record: DeviceRecord) -> str:
    import json

    from pydlbench.devices.environment import read_environment
    from pydlbench.results.records import SCHEMA_VERSION

    document = {
        "schema_version": SCHEMA_VERSION,
        "device": record.to_dict(),
        "environment": read_environment(),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _lines(record: DeviceRecord) -> Iterator[str]:
    from tabulate import tabulate

    from pydlbench.units import format_seconds

    for label, text in _facts(record):
        yield f"{label:<10}{text}"
    if record.peaks:
        yield ""
        headers = ("precision", "measured", "theoretical", "share", "nominal", "clock", "probe")
        rows = [_peak_row(peak) for peak in record.peaks]
        yield tabulate(
            rows,
            headers,
            tablefmt="simple",
            colalign=("left", *["right"] * 5, "left"),
            disable_numparse=True,
        )
        for peak in record.peaks:
            limit = peak.theoretical or peak.nominal
            if limit is not None:
                yield f"{peak.precision}: {limit.derivation}"
    if record.launch_s:
        yield ""
        yield f"starting and joining the threads takes {format_seconds(record.launch_s)}"
    if record.bandwidths:
        yield ""
        yield _bandwidth_table(record)
        yield "GB/s as the pattern counts its arrays; what plain stores read first is not counted."


def _facts(record: DeviceRecord) -> Iterator[tuple[str, str]]:
    from pydlbench.devices.cpu import format_cpus
    from pydlbench.units import format_bytes, format_hz

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


def _peak_row(peak: PrecisionPeak) -> tuple[str, ...]:
    from pydlbench.units import format_hz, format_percent, si

    nominal = "-" if peak.nominal is None else si(peak.nominal.flops_per_s, "FLOP/s")
    if peak.measured is None:
        return (peak.precision, "-", "-", "-", nominal, "-", peak.reason or "not probed")
    limit = peak.theoretical
    return (
        peak.precision,
        si(peak.measured, "FLOP/s"),
        "-" if limit is None else si(limit.flops_per_s, "FLOP/s"),
        "-" if limit is None else format_percent(peak.measured / limit.flops_per_s),
        nominal,
        "-" if peak.clock_hz is None else format_hz(peak.clock_hz),
        peak.kernel or "-",
    )


def _bandwidth_table(record: DeviceRecord) -> str:
    from tabulate import tabulate

    from pydlbench.units import format_bytes

    patterns = list(dict.fromkeys(item.pattern for item in record.bandwidths))
    rows = []
    for level in dict.fromkeys(item.level for item in record.bandwidths):
        found = {item.pattern: item for item in record.bandwidths if item.level == level}
        size = max(item.working_set_bytes for item in found.values())
        cells = [
            f"{found[pattern].bytes_per_s / 1e9:.1f}" if pattern in found else "-"
            for pattern in patterns
        ]
        rows.append((_LEVELS.get(level, level), format_bytes(size), *cells))
    return tabulate(
        rows,
        ("GB/s from", "working set", *patterns),
        tablefmt="simple",
        colalign=("left", *["right"] * (len(patterns) + 1)),
        disable_numparse=True,
    )

"""The section on where it was measured: processor, peaks, bandwidths, libraries, warnings."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from pydlbench.report.page.cleaning import finite, mapping, objects, positive
from pydlbench.report.page.markup import Html, el, join, plain
from pydlbench.report.page.section import Section, collected
from pydlbench.report.page.tables import Column, facts, table
from pydlbench.results.columns import number
from pydlbench.units import format_bytes, format_hz, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.report.page.runs import PageRun

__all__ = ["environment"]

_LEVELS = {"memory": "memory", "llc": "last-level cache", "l2": "L2 cache"}


def environment(runs: Sequence[PageRun]) -> Section:
    """Return the section: for each run its record, as facts and tables."""
    parts = []
    for run in runs:
        found, trouble = collected(partial(_run, run), f"The environment of run {run.number}")
        title = f"Run {run.number}: {run.record.id}" if len(runs) > 1 else f"Run {run.record.id}"
        parts.append(join([el("h3", title), *found, trouble]))
    return Section("environment", "Environment", join(parts))


def _run(run: PageRun) -> Iterator[Html]:
    record, device = run.record, run.record.device
    command = " ".join(shlex.quote(str(word)) for word in record.command)
    yield facts(
        [
            ("measured", plain(record.created_utc)),
            ("command", el("code", command) if command else None),
            ("status", run.status),
            ("tags", ", ".join(run.tags)),
            ("processor", run.machine),
            *_processor(device),
            *_software(record.environment, device),
        ]
    )
    for warning in objects(device.get("warnings")):
        text = f"{plain(warning.get('symptom'))}: {plain(warning.get('remedy'))}"
        yield el("p", text, class_="warning")
    peaks = objects(device.get("peaks"))
    if peaks:
        yield table("Compute peaks, all threads", _PEAKS, peaks, f"peaks-table-{run.number}")
    bandwidths = objects(device.get("bandwidths"))
    if bandwidths:
        ident = f"bandwidths-table-{run.number}"
        yield table("Measured bandwidths", _BANDWIDTHS, bandwidths, ident)


def _processor(device: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    told = mapping(device.get("facts"))
    threads, cores = finite(device.get("threads")), finite(device.get("cores"))
    if threads:
        on = f" on {cores:.0f} cores" if cores else ""
        yield "threads", f"{threads:.0f}{on}"
    clock = positive(device.get("clock_hz"))
    yield "clock", f"{format_hz(clock)} under load (measured)" if clock else None
    isa = told.get("isa")
    yield "instruction sets", " ".join(map(str, isa)) if isinstance(isa, list) else None
    caches = [
        f"{one.get('count', 1)} x L{one.get('level')} {one.get('type')} {size / 1024:g} KiB"
        for one in objects(told.get("caches"))
        if (size := positive(one.get("size_bytes")))
    ]
    yield "caches", ", ".join(caches)
    memory = positive(told.get("memory_total_bytes")) or positive(told.get("memory_bytes"))
    yield "memory", format_bytes(memory) if memory else None
    if told.get("virtualised") is True:
        yield "virtual machine", plain(told.get("hypervisor") or "yes")
    launch = positive(device.get("launch_s"))
    yield "starting a kernel", format_seconds(launch) if launch else None


def _software(
    environment: Mapping[str, Any], device: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    system = [environment.get(name) for name in ("os", "kernel", "machine")]
    yield "system", ", ".join(plain(one) for one in system if one)
    python = [environment.get(name) for name in ("implementation", "python")]
    yield "Python", " ".join(plain(one) for one in python if one)
    for title, found in (
        ("packages", environment.get("packages")),
        ("libraries", device.get("libraries")),
        ("build", environment.get("build")),
        ("variables", environment.get("variables")),
    ):
        if isinstance(found, dict) and found:
            yield title, ", ".join(f"{plain(name)} {plain(value)}" for name, value in found.items())


def _theory(one: Mapping[str, Any], key: str = "flops_per_s") -> Any:
    return mapping(one.get("theoretical")).get(key)


def _rate(value: Any) -> str:
    found = positive(value)
    return "-" if found is None else number(found / 1e12)


_PEAKS = [
    Column("precision", lambda one: one.get("precision")),
    Column(
        "theoretical TFLOP/s",
        lambda one: _rate(_theory(one)),
        lambda one: positive(_theory(one)),
        right=True,
    ),
    Column(
        "measured TFLOP/s",
        lambda one: _rate(one.get("measured_flops_per_s")),
        lambda one: positive(one.get("measured_flops_per_s")),
        right=True,
    ),
    Column("probe", lambda one: one.get("kernel") or one.get("reason")),
    Column("derivation", lambda one: el("span", _theory(one, "derivation") or "-")),
]
_BANDWIDTHS = [
    Column("level", lambda one: _LEVELS.get(str(one.get("level")), one.get("level"))),
    Column("pattern", lambda one: one.get("pattern")),
    Column(
        "GB/s",
        lambda one: number((positive(one.get("bytes_per_s")) or 0.0) / 1e9),
        lambda one: positive(one.get("bytes_per_s")),
        right=True,
    ),
    Column(
        "working set",
        lambda one: format_bytes(positive(one.get("working_set_bytes")) or 0.0),
        lambda one: positive(one.get("working_set_bytes")),
        right=True,
    ),
    Column("kernel", lambda one: one.get("kernel")),
]

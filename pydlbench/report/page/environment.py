"""Where and how runs were measured: what they all share, said once, and what differs."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydlbench.report.columns import AXES, axis_values
from pydlbench.report.page.blocks import (
    Column,
    Facts,
    Heading,
    Section,
    Table,
    Text,
    blocks_of,
    number_column,
)
from pydlbench.report.page.plain import plain
from pydlbench.report.page.runs import finite, level_name, mapping, objects, positive
from pydlbench.units import format_bytes, format_hz, format_seconds, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pydlbench.report.page.runs import PageRun

# What a run was asked for, as rows and steps name it.
_SETTINGS: Final = (
    *("batch", "phase", "pass", "precision", "device", "threads", "cache", "fuse", "layout"),
    *("framework", "backend", "mode"),
)
# Of a setting with many values, as the batches of a sweep.
_MOST_VALUES: Final = 8


def differences(runs: Sequence[PageRun]) -> Section:
    """Return the table of what differs between the runs; empty where there is only one."""
    title = "What differs between the runs"
    blocks = blocks_of(lambda: _differing(runs), title) if len(runs) > 1 else []
    return Section("differences", title, blocks)


def _differing(runs: Sequence[PageRun]) -> Iterator[Table]:
    facts = [_facts(run) for run in runs]
    names = [name for name in _names(facts) if len({one.get(name) for one in facts}) > 1]

    def cell(found: Mapping[str, str]) -> Callable[[str], str]:
        return lambda name: found.get(name, "-")

    columns = [Column("", lambda name: name)]
    columns += [
        Column(f"run {run.number}", cell(found), style="wrap")
        for run, found in zip(runs, facts, strict=True)
    ]
    if names:
        yield Table("Everything else is the same.", columns, names, "differences-table")


def environment(runs: Sequence[PageRun]) -> Section:
    """Return the section: the commands, what all runs share, and what their devices can do."""
    blocks = blocks_of(lambda: _environment(runs), "The environment")
    return Section("environment", "Environment", blocks)


def _environment(runs: Sequence[PageRun]) -> Iterator[Any]:
    several = len(runs) > 1
    commands = [
        (f"command of run {run.number}" if several else "command", _command(run)) for run in runs
    ]
    yield Facts(commands, frozenset(name for name, _ in commands))
    facts = [_facts(run) for run in runs]
    if several:
        yield Heading("The same in all runs")
    shared = [name for name in _names(facts) if len({one.get(name) for one in facts}) == 1]
    yield Facts(_joined((name, facts[0][name]) for name in shared))
    for warning, which in _once(runs, "warnings", _warning):
        yield Text(f"{_warning(warning)}{f' (run {which})' if which else ''}", "warning")
    for key, caption, columns in (
        ("peaks", "Compute peaks, all threads", _PEAKS),
        ("bandwidths", "Measured bandwidths", _BANDWIDTHS),
    ):
        rows = _once(runs, key, partial(_cells, columns))
        if rows:
            shown = [_of_first(column) for column in columns]
            of_run = [Column("run", lambda pair: pair[1] or "all")] if several else []
            yield Table(caption, [*shown, *of_run], rows, f"{key}-table")


def _once(
    runs: Sequence[PageRun], key: str, words: Callable[[Mapping[str, Any]], Any]
) -> list[tuple[Mapping[str, Any], str]]:
    """Return the objects of the runs' devices, those alike once, each with its runs.

    Args:
        runs: at least one.
        key: of the devices' lists of objects.
        words: what an object says on the page; alike are those that say the same.

    Returns:
        Objects and the numbers of their runs; no number stands for all runs.
    """
    found: dict[Any, tuple[Mapping[str, Any], dict[int, None]]] = {}
    for run in runs:
        for one in objects(run.record.device.get(key)):
            found.setdefault(words(one), (one, {}))[1][run.number] = None
    return [
        (one, "" if len(numbers) == len(runs) else ", ".join(map(str, numbers)))
        for one, numbers in found.values()
    ]


def _cells(columns: Sequence[Column], one: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(plain(column.cell(one)) for column in columns)


def _of_first(column: Column) -> Column:
    """Return a column for pairs whose first part is what the given one understands."""
    value = column.value
    return replace(
        column,
        cell=lambda pair: column.cell(pair[0]),
        value=None if value is None else lambda pair: value(pair[0]),
    )


def _warning(one: Mapping[str, Any]) -> str:
    return f"{plain(one.get('symptom'))}: {plain(one.get('remedy'))}"


def _command(run: PageRun) -> str:
    """Return the command line as it can be pasted: its first word may be a path in a package."""
    _, *words = run.record.command or ("",)
    return " ".join(["pydlbench", *(shlex.quote(str(word)) for word in words)])


def _joined(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return facts, those of one group (``packages: numpy``) joined in one."""
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        group, _, member = name.partition(": ")
        found.setdefault(group, []).append(f"{member} {value}" if member else value)
    return [(name, ", ".join(values)) for name, values in found.items()]


def _names(facts: Sequence[Mapping[str, str]]) -> dict[str, None]:
    return dict.fromkeys(name for one in facts for name in one)


def _facts(run: PageRun) -> dict[str, str]:
    """Return all that is known of where and how a run was made, but for its command line."""
    record, device = run.record, run.record.device
    pairs = [
        ("run", record.id),
        ("kind of run", run.info.kind),
        ("measured", record.created_utc),
        ("status", run.info.status),
        ("tags", ", ".join(run.info.tags)),
        ("models", ", ".join(run.models)),
        *_settings(run),
        ("processor", run.machine),
        *_processor(device),
        *_software(record.environment, device),
    ]
    return {name: plain(value) for name, value in pairs if value not in (None, "")}


def _settings(run: PageRun) -> Iterator[tuple[str, str]]:
    """Yield what was asked for, out of the rows and out of the steps that a run has."""
    steps: list[Any] = [*run.estimates, *run.checks]
    steps += [one.record.case for one in run.steps] + [one.step.case for one in run.findings]
    for name in _SETTINGS:
        values = axis_values(run.rows, name) if name in AXES else []
        told = (getattr(one, name, None) for one in steps)
        values += [str(value) for value in told if value is not None]
        found = list(dict.fromkeys(filter(None, values)))
        more = f" and {len(found) - _MOST_VALUES} more" if len(found) > _MOST_VALUES else ""
        yield name, ", ".join(found[:_MOST_VALUES]) + more


def _processor(device: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    told = mapping(device.get("facts"))
    threads, cores = finite(device.get("threads")), finite(device.get("cores"))
    if threads:
        on = f" on {cores:.0f} cores" if cores else ""
        yield "threads of the processor", f"{threads:.0f}{on}"
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
        ("settings", environment.get("settings")),
    ):
        for name, value in mapping(found).items():
            yield f"{title}: {plain(name)}", plain(value)


def _theory(one: Mapping[str, Any], key: str = "flops_per_s") -> Any:
    return mapping(one.get("theoretical")).get(key)


def _scaled(factor: float, value: float | None) -> str:
    return "-" if value is None else number(value / factor)


def _count(key: str, one: Mapping[str, Any]) -> int | None:
    """How many a list has; None where it is empty or not there."""
    return len(one.get(key) or ()) or None


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _bytes(value: float | None) -> str:
    return "-" if value is None else format_bytes(value)


_PEAKS = [
    Column("precision", lambda one: one.get("precision")),
    number_column(
        "theoretical TFLOP/s", lambda one: positive(_theory(one)), partial(_scaled, 1e12)
    ),
    number_column(
        "measured TFLOP/s",
        lambda one: positive(one.get("measured_flops_per_s")),
        partial(_scaled, 1e12),
    ),
    number_column(
        "slowest try", lambda one: positive(one.get("low_flops_per_s")), partial(_scaled, 1e12)
    ),
    number_column("tries", partial(_count, "tries_flop_per_cycle"), _or_dash),
    Column("probe", lambda one: one.get("kernel") or one.get("reason")),
    Column("derivation", lambda one: _theory(one, "derivation") or "-", style="wrap"),
]
_BANDWIDTHS = [
    Column("level", lambda one: level_name(one.get("level"))),
    Column("pattern", lambda one: one.get("pattern")),
    number_column("GB/s", lambda one: positive(one.get("bytes_per_s")), partial(_scaled, 1e9)),
    number_column(
        "slowest window", lambda one: positive(one.get("low_bytes_per_s")), partial(_scaled, 1e9)
    ),
    number_column("windows", partial(_count, "windows"), _or_dash),
    number_column("working set", lambda one: positive(one.get("working_set_bytes")), _bytes),
    Column("kernel", lambda one: one.get("kernel")),
]

"""Footnotes to rows of a GPU: clocks that disagree, units that were not used, throttling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.plain_table import plain_table
from pydlbench.results.columns import number
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydlbench.results.records import Measurement

__all__ = ["disagreement", "gpu_notes"]

# The three clocks of one kernel agree within this, or the row says how they differ.
_AGREE = 0.10
_NAMED = 4
_CLOCKS = ("event", "graph", "host")


def gpu_notes(rows: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Iterator[str]:
    """Yield a line for each thing that a reader of these rows has to know.

    Args:
        rows: ``ok`` rows; those of a CPU have nothing to say here.
        name_of: names a row.
    """
    apart = [(row, text) for row in rows if (text := disagreement(row)) is not None]
    if len(apart) > _NAMED:
        yield from _clocks([row for row, _ in apart], name_of)
    else:
        for row, text in apart:
            yield f"{name_of(row)}: {text}"
    for remark, names in _units(rows, name_of).items():
        yield f"{remark}: {_some(names, len(rows))}"
    for reason, names in _held_down(rows, name_of).items():
        yield f"clock held down by {reason}: {_some(names, len(rows))}"
    powers = [row.power_w for row in rows if row.power_w]
    if powers:
        low, high = (number(value) for value in (min(powers), max(powers)))
        watts = low if low == high else f"{low} to {high}"
        yield f"energy of executions back to back, at {watts} W"


def _clocks(rows: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Iterator[str]:
    """A table of the times by three clocks, for many rows whose clocks disagree."""
    yield f"{len(rows)} rows whose time depends on the clock by over {100 * _AGREE:.0f} %:"
    titles = ["", "between events", "in a graph", "host's clock", "launching it"]
    cells = [
        [name_of(row), *(_seconds(row, clock) for clock in (*_CLOCKS, "enqueue"))] for row in rows
    ]
    right = [False, *[True] * (len(titles) - 1)]
    yield from (f"  {line}".rstrip() for line in plain_table(titles, cells, right).splitlines())


def _seconds(row: Measurement, clock: str) -> str:
    seconds = (row.launch_s or {}).get(clock)
    return format_seconds(seconds) if seconds else "-"


def _some(names: Sequence[str], rows: int) -> str:
    if len(names) == rows > 1:
        return f"all {rows} rows"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED + 1 else ""
    return ", ".join(names[:_NAMED] if more else names) + more


def _units(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> dict[str, list[str]]:
    """Which rows ran on other arithmetic units than their precision suggests."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if not row.device.startswith("cuda") or row.kind not in ("conv2d", "gemm"):
            continue
        if row.precision == "fp16" and row.accumulate == "float32":
            remark = "fp16 accumulated in float32, so held against the fp32 peak"
        elif row.precision.endswith(("-tc", "tf32")) and row.tensor_cores is False:
            remark = "the fastest right kernel uses no tensor cores"
        else:
            continue
        found.setdefault(remark, []).append(name_of(row))
    return found


def disagreement(row: Measurement) -> str | None:
    """Say how a kernel's three times differ, if by more than 10 %; None where they agree.

    The time in a CUDA graph is what the kernel needs; between events the start of each launch
    counts too; on the host's clock a launch that takes longer than the kernel shows, as it does in
    a framework's step.
    """
    times = row.launch_s
    if not times or not all(times.get(name) for name in _CLOCKS):
        return None
    found = [times[name] for name in _CLOCKS]
    if max(found) <= (1 + _AGREE) * min(found):
        return None
    event, graph, host = map(format_seconds, found)
    text = f"{event} between events, {graph} in a graph, {host} on the host's clock"
    enqueue = times.get("enqueue")
    if enqueue is None:
        return text
    return f"{text} (launching it takes the host {format_seconds(enqueue)})"


def _held_down(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        for reason in (row.gpu or {}).get("reasons", ()):
            if reason != "idle":
                found.setdefault(reason, []).append(name_of(row))
    return found

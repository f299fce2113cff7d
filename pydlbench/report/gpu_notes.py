"""Footnotes to rows of a GPU: clocks that disagree, dear launches, throttling."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    for row, text in apart[:_NAMED]:
        yield f"{name_of(row)}: {text}"
    if len(apart) > _NAMED:
        yield f"and {len(apart) - _NAMED} more rows whose clocks disagree: launch_s in JSON"
    for reason, names in _held_down(rows, name_of).items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED + 1 else ""
        shown = ", ".join(names[:_NAMED] if more else names)
        yield f"clock held down by {reason}: {shown}{more}"


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

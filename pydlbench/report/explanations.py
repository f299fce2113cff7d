"""Why the slower backends are slower: one line each, and with ``--explain`` the measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.results.columns import number, percent
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.results.records import Measurement

__all__ = ["evidence", "explanations"]

_UNEXPLAINED = "unexplained"
# Two measurements that agree this well, as a share of the gap, add up.
_SLACK = 0.05


def explanations(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> Iterator[str]:
    """Yield a line for each row that is much slower than the fastest backend on its problem.

    Args:
        rows: ``ok`` rows.
        name_of: names a row.
    """
    for row in rows:
        if not row.causes or row.ratio is None:
            continue
        found = [cause for cause in row.causes if cause["cause"] != _UNEXPLAINED]
        rest = next((one for one in row.causes if one["cause"] == _UNEXPLAINED), None)
        parts = [_share(cause) for cause in found] or ["no cause found"]
        if rest is not None and found:
            share = rest["share"]
            more = f"together {percent(-share)} more than the gap"
            parts.append(more if share < -_SLACK else f"unexplained {percent(max(0.0, share))}")
        times = f"{number(row.ratio['median'], 3)}x the time of {row.ratio['to']}"
        yield f"{name_of(row)}: {times}: {', '.join(parts)}"


def evidence(rows: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Iterator[str]:
    """Yield the measurements behind :func:`explanations`, and what each backend's calls cost.

    Args:
        rows: ``ok`` rows.
        name_of: names a row.
    """
    for row in rows:
        lines = [
            f"  {cause['cause']}: {format_seconds(cause['seconds'])} "
            f"({_signed(cause['share'])} of the gap): {cause['how']}"
            for cause in row.causes
        ]
        if row.empty_call_s is not None:
            empty = format_seconds(row.empty_call_s)
            lines.append(f"  a call that does nothing takes {empty}; it is subtracted nowhere")
        faults = row.faults or {}
        if faults.get("default") is not None:
            kept = faults.get("warm")
            beside = "" if kept is None else f", {kept:.0f} with pages kept"
            lines.append(f"  page faults per call: {faults['default']:.0f}{beside}")
        lines += [f"  {note}" for note in row.notes]
        if lines:
            yield f"{name_of(row)}:"
            yield from lines


def _share(cause: Mapping[str, Any]) -> str:
    return f"{cause['cause']} {format_seconds(cause['seconds'])} ({percent(cause['share'])})"


def _signed(share: float) -> str:
    return f"-{percent(-share)}" if share < 0 else percent(share)

"""The roofs of a roofline plot: which limits a run knows, and how they are drawn."""

from __future__ import annotations

from math import atan2, cos, degrees, radians, sin
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pydlbench.report.page.cleaning import mapping, objects, positive
from pydlbench.report.page.markup import plain
from pydlbench.report.page.palette import LIGHT
from pydlbench.results.columns import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.report.page.runs import PageRun
    from pydlbench.results import Measurement

__all__ = ["Roof", "draw_roofs", "memory_roofs", "peak_roofs"]

_LEVELS: Final = {"memory": "memory", "llc": "last-level cache", "l2": "L2 cache"}


class Roof:
    """One limit: ``value`` in FLOP/s or B/s, whether it is theory, and its name."""

    def __init__(self, name: str, value: float, *, theory: bool) -> None:
        self.name, self.value, self.theory = name, value, theory


def peak_roofs(run: PageRun, rows: Sequence[Measurement]) -> list[Roof]:
    """Return the compute peaks of the precisions of ``rows``, in FLOP/s.

    Out of the device's record; where that has none, the medians of the rows' own.
    """
    found = []
    for precision in dict.fromkeys(row.precision for row in rows):
        alike = [row for row in rows if row.precision == precision]
        device = mapping(run.record.device_for(alike[0].threads))
        peaks = objects(device.get("peaks"))
        entry = next((one for one in peaks if one.get("precision") == precision), {})
        values = {
            "theoretical": positive(mapping(entry.get("theoretical")).get("flops_per_s")),
            "measured": positive(entry.get("measured_flops_per_s")),
        }
        for which, value in values.items():
            own = [peak * 1e12 for row in alike if (peak := getattr(row.peak, which))]
            best = value or (median(own) if own else None)
            if best:
                name = f"{which} {precision} peak {number(best / 1e12)} TFLOP/s"
                found.append(Roof(name, best, theory=which == "theoretical"))
    return found


def memory_roofs(run: PageRun, rows: Sequence[Measurement]) -> list[Roof]:
    """Return the bandwidths of memory and caches, in B/s: the best pattern of each level."""
    device = mapping(run.record.device_for(rows[0].threads))
    best: dict[str, float] = {}
    for one in objects(device.get("bandwidths")):
        value = positive(one.get("bytes_per_s"))
        if value:
            level = plain(one.get("level"), 30)
            best[level] = max(best.get(level, 0.0), value)
    found = [
        Roof(
            f"measured {_LEVELS.get(level, level)} {number(value / 1e9)} GB/s", value, theory=False
        )
        for level, value in best.items()
    ]
    theory = positive(mapping(device.get("facts")).get("memory_bytes_per_s"))
    if theory:
        found.append(Roof(f"theoretical memory {number(theory / 1e9)} GB/s", theory, theory=True))
    return found


def draw_roofs(axes: Any, peaks: Sequence[Roof], memories: Sequence[Roof]) -> None:
    """Draw the limits with their names into axes whose own limits are set.

    Args:
        axes: both logarithmic, FLOP/s over FLOP per byte.
        peaks: flat roofs, FLOP/s.
        memories: slanted ones, B/s.
    """
    low_x, high_x = axes.get_xlim()
    low_y, _ = axes.get_ylim()
    top = max((peak.value for peak in peaks), default=axes.get_ylim()[1])
    for peak in peaks:
        start = min((peak.value / one.value for one in memories), default=low_x)
        _line(axes, (max(low_x, start), high_x), (peak.value, peak.value), peak)
        axes.annotate(
            peak.name,
            (high_x, peak.value),
            # Above each other: where a probe reaches the theory, the two lines are one.
            xytext=(-3, 13 if peak.theory else 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=7.5,
            color=LIGHT["muted"],
        )
    before = 0.0
    for one in sorted(memories, key=lambda roof: -roof.value):
        start = max(low_x, low_y / one.value)
        end = min(high_x, top / one.value)
        if end <= start:
            continue
        _line(axes, (start, end), (start * one.value, end * one.value), one)
        # Of two roofs that are near to each other the lower one has its name below it.
        below = bool(before) and before < 2 * one.value
        before = one.value
        slope = _slope(axes)
        away = -2.5 if below else 2.5
        axes.annotate(
            one.name,
            (start, start * one.value),
            xytext=(
                9 * cos(radians(slope)) - away * sin(radians(slope)),
                9 * sin(radians(slope)) + away * cos(radians(slope)),
            ),
            textcoords="offset points",
            rotation=slope,
            rotation_mode="anchor",
            ha="left",
            va="top" if below else "bottom",
            fontsize=7.5,
            color=LIGHT["muted"],
        )


def _line(axes: Any, across: tuple[float, float], up: tuple[float, float], roof: Roof) -> None:
    style = (0, (5, 3)) if roof.theory else "solid"
    axes.plot(across, up, color=LIGHT["ink"], linewidth=1.1, linestyle=style, zorder=2)


def _slope(axes: Any) -> float:
    """Degrees of a line of constant bandwidth on the page."""
    (x0, y0), (x1, y1) = axes.transData.transform([(1.0, 1e9), (10.0, 1e10)])
    return degrees(atan2(y1 - y0, x1 - x0))

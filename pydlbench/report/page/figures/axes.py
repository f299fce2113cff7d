"""What several figures need of their axes: plain numbers, legends, labels that do not collide."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydlbench.report.page.palette import LIGHT

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["label_points", "log_ticks", "place"]

# Where a label may stand beside its point: offset in points, horizontal and vertical alignment.
_SPOTS = (
    (6, 0, "left", "center"),
    (-6, 0, "right", "center"),
    (0, 6, "center", "bottom"),
    (0, -6, "center", "top"),
    (5, 5, "left", "bottom"),
    (-5, 5, "right", "bottom"),
    (5, -5, "left", "top"),
    (-5, -5, "right", "top"),
)
_LETTER = 0.56  # of the font's size: what a letter is wide on average
_SIZE = 7.5
_JOINED = 20  # characters of a label that still takes another name


def place(fig: Any, left: float, bottom: float, right: float, top: float) -> Any:
    """Add axes with margins in inches: room for labels does not grow with the figure."""
    width, height = fig.get_size_inches()
    return fig.add_axes(
        (
            left / width,
            bottom / height,
            (width - left - right) / width,
            (height - bottom - top) / height,
        )
    )


def log_ticks(axis: Any, low: float, high: float) -> None:
    """Put plain numbers at 1, 2, 5 of each decade; at the decades only where there are many."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1.0, 2.0, 5.0) if last - first <= 3 else (1.0,)
    ticks = [
        step * 10.0**decade
        for decade in range(first, last + 1)
        for step in steps
        if low * 0.999 <= step * 10.0**decade <= high * 1.001
    ]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))


def label_points(
    axes: Any,
    points: Sequence[tuple[float, float, str]],
    obstacles: Sequence[tuple[float, float]] = (),
    ceiling: float | None = None,
) -> int:
    """Write names beside points, the first ones first; those without a free spot get none.

    Args:
        axes: with its limits set.
        points: x, y and name.
        obstacles: other points that no name may cover.
        ceiling: height above which no name may stand, in the data's units.

    Returns:
        How many points got no name.
    """
    scale = axes.figure.dpi / 72
    frame = axes.get_window_extent()
    top = frame.y1 if ceiling is None else axes.transData.transform((1, ceiling))[1]
    everything = [(x, y) for x, y, _ in points] + list(obstacles)
    pixels = axes.transData.transform(everything) if everything else []
    taken = [(x - 4 * scale, y - 4 * scale, x + 4 * scale, y + 4 * scale) for x, y in pixels]
    nameless = 0
    for (x, y), (data_x, data_y, name) in _clusters(pixels, points, 10 * scale):
        width, height = _LETTER * _SIZE * len(name) * scale, 1.1 * _SIZE * scale
        for dx, dy, across, up in _SPOTS:
            left = x + dx * scale - {"left": 0.0, "center": 0.5, "right": 1.0}[across] * width
            low = y + dy * scale - {"bottom": 0.0, "center": 0.5, "top": 1.0}[up] * height
            box = (left, low, left + width, low + height)
            inside = frame.x0 <= box[0] and box[2] <= frame.x1
            inside = inside and frame.y0 <= box[1] and box[3] <= top
            if inside and not any(_overlap(box, one) for one in taken):
                taken.append(box)
                axes.annotate(
                    name,
                    (data_x, data_y),
                    xytext=(dx, dy),
                    textcoords="offset points",
                    ha=across,
                    va=up,
                    fontsize=_SIZE,
                    color=LIGHT["ink"],
                )
                break
        else:
            nameless += 1
    return nameless


def _clusters(
    pixels: Sequence[tuple[float, float]], points: Sequence[tuple[float, float, str]], near: float
) -> list[tuple[tuple[float, float], tuple[float, float, str]]]:
    """Points that lie on each other get one label with all their names."""
    found: list[tuple[tuple[float, float], tuple[float, float, str]]] = []
    for pixel, point in zip(pixels, points, strict=False):
        for index, (at, known) in enumerate(found):
            if math.dist(at, pixel) < near and len(known[2]) < _JOINED:
                found[index] = (at, (known[0], known[1], f"{known[2]}, {point[2]}"))
                break
        else:
            found.append((pixel, point))
    return found


def _overlap(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return (
        first[0] < second[2]
        and second[0] < first[2]
        and first[1] < second[3]
        and second[1] < first[3]
    )

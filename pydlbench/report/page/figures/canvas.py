"""Drawing with matplotlib: our settings whatever the user's are, and what figures share."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import PydlbenchError
from pydlbench.report.page.palette import LIGHT
from pydlbench.report.page.plain import plain
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.report.page.palette import Look
    from pydlbench.report.page.runs import PageRun

#: What a caption says of :func:`ring` and of stars at numbers.
CONTENDED: Final = "A ring or a star: other work disturbed it, and its time is an upper bound."
#: Inches; what a page in print is wide.
WIDTH: Final = 9.6
_SETTINGS: Final[Mapping[str, Any]] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": False,
    "axes.edgecolor": LIGHT["muted"],
    "axes.facecolor": LIGHT["paper"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.titlecolor": LIGHT["ink"],
    "figure.facecolor": LIGHT["paper"],
    "savefig.facecolor": LIGHT["paper"],
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "text.color": LIGHT["ink"],
    # A name with dollar signs is a name.
    "text.parse_math": False,
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "xtick.labelcolor": LIGHT["ink"],
    "ytick.labelcolor": LIGHT["ink"],
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    # Text stays text: it takes the page's font, can be searched, read aloud and recoloured.
    "svg.fonttype": "none",
    "svg.hashsalt": "pydlbench",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure with all that belongs to it.

    Attributes:
        name: of its files, and in front of every identifier in its SVG: ``roofline-1``.
        title: above it.
        alt: what it shows in words, with the numbers that matter.
        caption: below it: how to read it, and what was left out.
        figure: matplotlib's.
        values: what the marks stand for, in the order of their numbers; see :func:`mark`.
    """

    name: str
    title: str
    alt: str
    caption: str
    figure: Any
    values: list[dict[str, Any]] = field(default_factory=list)


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw in here: matplotlib's own settings and ours, then the caller's again.

    Raises:
        PydlbenchError: matplotlib cannot be imported.
    """
    # The first import on a machine looks for fonts, and says so.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise PydlbenchError(
            f"report: matplotlib cannot be imported ({error}); install it: pip install matplotlib"
        ) from error
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        # Names may hold characters that the font of the files lacks; a browser has others.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def figure(height: float, width: float = WIDTH) -> Any:
    """Return an empty figure, without pyplot and its windows. Sizes in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def points(axes: Any, x: Sequence[float], y: Sequence[float], **look: Any) -> Any:
    """Put markers or a line into axes whose limits are set, and return the artist.

    What ``axes.plot`` does besides (colour cycles, units, new limits) takes most of its time, and a
    page has hundreds of marks.
    """
    from matplotlib.lines import Line2D

    return axes.add_artist(Line2D(x, y, **look))


def bar(axes: Any, left: float, middle: float, width: float, height: float, **look: Any) -> Any:
    """Put a lying bar into axes whose limits are set, likewise, and return it."""
    from matplotlib.patches import Rectangle

    return axes.add_artist(Rectangle((left, middle - height / 2), width, height, **look))


def ring(axes: Any, x: float, y: float) -> None:
    """Put a ring around a mark whose row other work disturbed."""
    look = {"marker": "o", "markersize": 11, "fillstyle": "none", "linestyle": "none"}
    points(axes, [x], [y], color=LIGHT["vermillion"], markeredgewidth=1.2, zorder=5, **look)


def mark(artist: Any, chart_values: list[dict[str, Any]], label: str, **value: Any) -> None:
    """Note what an artist stands for; the page shows ``label`` when it is pointed at.

    Args:
        artist: matplotlib's.
        chart_values: of the chart; ``value`` is appended.
        label: in words.
        value: numbers in SI units and names.
    """
    artist.set_gid(f"v{len(chart_values)}")
    chart_values.append({"label": label, **value})


def mark_row(
    artist: Any, chart_values: list[dict[str, Any]], row: Measurement, words: str, **value: Any
) -> None:
    """Note which timed row an artist stands for; see :func:`mark`.

    Args:
        artist: matplotlib's.
        chart_values: of the chart.
        row: with a time.
        words: what the figure says of it besides its name and its time.
        value: likewise, as numbers.
    """
    assert row.time is not None  # the caller draws timed rows only
    time = f"{format_seconds(row.time.median)}{', contended' if row.contended else ''}"
    mark(
        artist,
        chart_values,
        f"{row.layer} {row.pass_} {row.who} {row.precision}: {time}, {words}",
        layer=row.layer,
        pass_=row.pass_,
        who=row.who,
        precision=row.precision,
        time_s=row.time.median,
        **value,
    )


def row_notes(
    runs: Sequence[PageRun], rows: Iterable[Measurement], *, cold: bool = False
) -> list[str]:
    """Return what a caption says of drawn rows: which are left out, and which were disturbed.

    Args:
        runs: that they are of.
        rows: that are drawn.
        cold: whether those with cold caches are left out where there are others.
    """
    notes = [run.part for run in runs if run.part]
    left = sum(len(run.timed) - len(run.representative) for run in runs) if cold else 0
    if left:
        notes.append(f"{left} rows with cold caches are in the table only.")
    if any(row.contended for row in rows):
        notes.append(CONTENDED)
    return notes


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


def lines_of(axes: Any, names: Sequence[str]) -> None:
    """Let axes have a line for each name, from top to bottom, and a grid across them."""
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.grid(visible=True)


def beside(axes: Any, line: int, text: str) -> None:
    """Write a line's number to the right of the axes."""
    axes.annotate(
        text,
        (1.0, line),
        xycoords=("axes fraction", "data"),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
    )


def patch(look: Look) -> Any:
    """Return what stands for a bar of that look in a legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor=look.pale, edgecolor=look.color, hatch=look.hatch)


def marker(look: Look, *, line: bool = False) -> Any:
    """Return what stands for marks of that look in a legend, on their line or without one."""
    from matplotlib.lines import Line2D

    style = look.line if line else "none"
    return Line2D([], [], color=look.color, linestyle=style, marker=look.marker, markersize=6)


def legend(holder: Any, entries: Mapping[str, Any], **where: Any) -> None:
    """Put a legend above the axes or the figure that holds it, in a row; or elsewhere.

    Args:
        holder: axes or a figure.
        entries: what stands for each name.
        where: matplotlib's words for another place.
    """
    usual = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "ncols": 7}
    holder.legend(
        list(entries.values()),
        [plain(name, 44) for name in entries],
        **{**usual, "borderaxespad": 0.2, "handletextpad": 0.4, "columnspacing": 1.3, **where},
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

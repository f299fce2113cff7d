"""Drawing with matplotlib: our settings whatever the user's are, SVG and PNG out of one figure."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import PydlbenchError
from pydlbench.report.page.palette import LIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["WIDTH", "Chart", "bar", "draw_png", "draw_svg", "drawing", "figure", "mark", "points"]

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


def draw_svg(chart: Chart) -> str:
    """Return matplotlib's SVG of a chart, in the light theme."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    target = io.StringIO()
    FigureCanvasSVG(chart.figure).print_svg(target, metadata={"Date": None, "Creator": None})
    return target.getvalue()


def draw_png(chart: Chart) -> bytes:
    """Return a chart as PNG, in the light theme."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    target = io.BytesIO()
    chart.figure.set_dpi(160)
    FigureCanvasAgg(chart.figure).print_png(target)
    return target.getvalue()

"""Colours of figures, and drawing with Vega-Lite, without a browser and without a network.

vl-convert contains Vega-Lite and draws a specification as SVG or PNG. Figures are drawn in the
light theme's colours; on a page each colour becomes a CSS variable. The hues are those of M. Okabe
and K. Ito, "Color Universal Design" (2008), which are distinct for people of any colour vision; the
dark theme has lighter versions of them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydlbench.errors import PydlbenchError
from pydlbench.report.blocks import Figure

#: Width of a figure between its axes in pixels, without labels and legend.
WIDTH: Final = 440
#: The same on a narrow screen, such as a phone's.
NARROW_WIDTH: Final = 190
#: Maximum number of characters of a row's label.
MAX_LABEL: Final = 40
LIGHT: Final = {
    "paper": "#ffffff",
    "raised": "#f4f5f7",
    "ink": "#1b1d21",
    "muted": "#565c66",
    "grid": "#d8dbe1",
    "link": "#00568a",
    "blue": "#0072b2",
    "orange": "#b87f00",
    "green": "#00805c",
    "vermillion": "#d55e00",
    "purple": "#b5548a",
    "sky": "#2f8fc4",
    "grey": "#767c87",
    "pale": "#dcf0fb",
}
DARK: Final = {
    "paper": "#15171b",
    "raised": "#1e2127",
    "ink": "#e9ebee",
    "muted": "#aab1bc",
    "grid": "#383d46",
    "link": "#7cc0ee",
    "blue": "#56aee6",
    "orange": "#e9b13f",
    "green": "#3cc49c",
    "vermillion": "#ff8b4d",
    "purple": "#e39ac4",
    "sky": "#9bd6f7",
    "grey": "#9aa1ac",
    "pale": "#244859",
}
#: Colours of series, in order; the first is that of native rows.
HUES: Final = ("blue", "vermillion", "green", "orange", "purple", "sky", "grey")
#: Marks of series, in order, so that series do not differ by colour only.
MARKS: Final = (
    *("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"),
)
_TEXT: Final = {"labelColor": LIGHT["ink"], "titleColor": LIGHT["ink"], "titleFontWeight": "normal"}
CONFIG: Final[dict[str, Any]] = {
    "font": "DejaVu Sans, system-ui, sans-serif",
    "axis": {
        **_TEXT,
        "domainColor": LIGHT["muted"],
        "gridColor": LIGHT["grid"],
        "labelFontSize": 11,
        "labelLimit": 320,
        "tickColor": LIGHT["muted"],
        "titleFontSize": 12,
    },
    "legend": {**_TEXT, "labelFontSize": 11, "labelLimit": 0, "orient": "bottom", "title": None},
    "range": {"category": [LIGHT[hue] for hue in HUES], "symbol": list(MARKS)},
    "mark": {"color": LIGHT["blue"]},
    "point": {"filled": True, "opacity": 1, "size": 55},
    "rule": {"color": LIGHT["ink"]},
    "text": {"color": LIGHT["muted"], "fontSize": 11},
    "view": {"stroke": None},
}
_HEX: Final = re.compile("|".join(LIGHT.values()))
_VARIABLES: Final = {value: f"var(--{name})" for name, value in LIGHT.items()}


def series(names: Sequence[str]) -> dict[str, Any]:
    """Return the encoding of rows by the field ``series``: a colour and a mark for each.

    Args:
        names: names of the series, in order; if there are more than colours, they share colours
            with other marks.
    """
    known = list(dict.fromkeys(names))
    columns = 1 if max(map(len, known), default=0) > 40 else 3
    look = {"field": "series", "type": "nominal", "sort": known, "legend": {"columns": columns}}
    colors = [LIGHT[HUES[at % len(HUES)]] for at in range(len(known))]
    marks = [MARKS[(at + at // len(HUES)) % len(MARKS)] for at in range(len(known))]
    return {
        "color": {**look, "scale": {"domain": known, "range": colors}},
        "shape": {**look, "scale": {"domain": known, "range": marks}},
    }


def labels(names: Sequence[str], most: int = MAX_LABEL) -> list[str]:
    """Return short names of rows that tell them apart.

    Words that all rows have are left out, long names are cut in the middle, and equal ones are
    numbered.

    Args:
        names: names of the rows; words are separated by blanks.
        most: maximum number of characters.
    """
    words = [name.split() for name in names]
    common = set(words[0]).intersection(*words[1:]) if len(words) > 1 else set()
    short: list[str] = []
    for name, some in zip(names, words, strict=True):
        text = " ".join(word for word in some if word not in common) or name
        end = (most - 1) // 2
        text = (
            text
            if len(text) <= most
            else f"{text[: most - 1 - end]}\N{HORIZONTAL ELLIPSIS}{text[-end:]}"
        )
        short.append(text if text not in short else f"{text} ({short.count(text) + len(short)})")
    return short


def line_spec(
    values: Sequence[Mapping[str, Any]], x: Mapping[str, Any], y: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the specification of lines with marks, one for each series.

    Args:
        values: points with ``series`` and ``words``, and the fields of the axes.
        x: encoding of the horizontal axis.
        y: encoding of the vertical axis.
    """
    look = series([value["series"] for value in values])
    encoding = {"x": x, "y": y, "color": look["color"]}
    marks = {**encoding, **look, "description": {"field": "words"}}
    return {
        "height": 240,
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.3}, "encoding": encoding},
            {"mark": {"type": "point"}, "encoding": marks},
        ],
    }


def svg(figure: Figure, *, themed: bool = False, narrow: bool = False) -> str:
    """Return a figure as SVG, in the light theme's colours or in those of a page's style sheet.

    Args:
        figure: the figure.
        themed: whether its colours are those of a page's style sheet.
        narrow: whether it is for a narrow screen.

    Raises:
        PydlbenchError: vl-convert cannot be imported.
    """
    whole = _whole(figure, None if themed else LIGHT["paper"])
    if narrow:
        axis = {**CONFIG["axis"], "labelLimit": 150}
        legend = {**CONFIG["legend"], "columns": 1}
        # The last number of an axis would move to the one before.
        config = {**CONFIG, "axis": axis, "axisX": {"labelFlush": False}, "legend": legend}
        whole |= {"width": NARROW_WIDTH, "config": config}
    text: str = _converter().vegalite_to_svg(whole)
    return _HEX.sub(lambda match: _VARIABLES[match.group()], text) if themed else text


def png(figure: Figure) -> bytes:
    """Return a figure as PNG, in the light theme's colours and at twice its size.

    Raises:
        PydlbenchError: vl-convert cannot be imported.
    """
    return bytes(_converter().vegalite_to_png(_whole(figure, LIGHT["paper"]), scale=2))


def _whole(figure: Figure, background: str | None) -> dict[str, Any]:
    return {"width": WIDTH, "config": CONFIG, **figure.spec, "background": background}


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise PydlbenchError(
            f"report: vl-convert cannot be imported ({error}); install it: "
            "pip install 'pydlbench[report]'"
        ) from error
    return vl_convert

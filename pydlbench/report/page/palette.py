"""Colours of the page and of its figures: one table for light, dark and files.

Figures are drawn in the light theme's colours; on the page each of them becomes a CSS variable.
The hues are those of M. Okabe and K. Ito, "Color Universal Design" (2008), which people of any
colour vision can tell apart; the dark theme's are lighter versions of them. Pale ones lie behind
text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pydlbench.backends import capabilities
from pydlbench.ops.table import without_sides

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    "pale-blue": "#cfe4f2",
    "pale-orange": "#f8e6bd",
    "pale-green": "#c9e9df",
    "pale-vermillion": "#f9dcc6",
    "pale-purple": "#f1dbe7",
    "pale-sky": "#dcf0fb",
    "pale-grey": "#e6e8eb",
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
    "pale-blue": "#16405d",
    "pale-orange": "#543f0f",
    "pale-green": "#124a3b",
    "pale-vermillion": "#5c3116",
    "pale-purple": "#533048",
    "pale-sky": "#244859",
    "pale-grey": "#343840",
}
#: Kind of layer, without the number of its sides -> hue and hatching of its bars.
KINDS: Final = {
    "conv": ("blue", ""),
    "deconv": ("sky", "\\\\"),
    "gemm": ("orange", "//"),
    "pool": ("green", ".."),
    "pointwise": ("purple", "xx"),
    "elementwise": ("vermillion", "++"),
    "reduction": ("vermillion", "oo"),
    "move": ("grey", "--"),
    "gather": ("grey", "\\"),
    "recurrent": ("blue", "//"),
    "attention": ("orange", "xx"),
    "resize": ("green", "//"),
    "other": ("grey", "||"),
}
_OTHERS: Final = (
    ("grey", "*", "++"),
    ("sky", "<", "o"),
    ("green", ">", "\\"),
    ("purple", "p", "/"),
    ("orange", "h", "-"),
    ("vermillion", "d", "|"),
)
_HUES: Final = ("blue", "vermillion", "green", "orange", "purple", "sky", "grey")
_MARKERS: Final = "os^DvP*X<>phd8"
#: How many lines of a figure can be told apart, by colour and dashes, and each by its marker.
LINES: Final = 2 * len(_HUES)
_NAMES: Final = {value: name for name, value in LIGHT.items()}
_HEX: Final = re.compile(r"#[0-9a-fA-F]{6}\b")


class Look:
    """How one series is drawn.

    Attributes:
        hue: name of a colour of :data:`LIGHT`.
        marker: of matplotlib.
        hatch: of matplotlib.
        line: likewise, its style.
    """

    def __init__(self, hue: str, marker: str = "o", hatch: str = "", line: str = "-") -> None:
        self.hue, self.marker, self.hatch, self.line = hue, marker, hatch, line

    @property
    def color(self) -> str:
        """The strong colour: of lines, markers and edges."""
        return LIGHT[self.hue]

    @property
    def pale(self) -> str:
        """The pale one: behind text and hatching."""
        return LIGHT[f"pale-{self.hue}"]


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Return a look for each series; a known backend always has its own."""
    own = {
        " ".join(filter(None, (one.name, mode))): look
        for one in capabilities.every()
        for mode, look in one.looks.items()
    }
    found: dict[str, Look] = {}
    others = 0
    for name in names:
        if name in own:
            found[name] = Look(*own[name])
        else:
            found[name] = Look(*_OTHERS[others % len(_OTHERS)])
            others += 1
    return found


def line_looks(names: Sequence[str]) -> dict[str, Look]:
    """Return looks for at most :data:`LINES` lines of one figure, all of them different."""
    return {
        name: Look(
            _HUES[index % len(_HUES)],
            _MARKERS[index],
            line="-" if index < len(_HUES) else "--",
        )
        for index, name in enumerate(names[:LINES])
    }


def kind_look(kind: str) -> Look:
    """Return the look of a kind of layer; pointwise operations share one."""
    hue, hatch = KINDS.get(without_sides(kind), KINDS["pointwise"])
    return Look(hue, hatch=hatch)


def css_variables() -> str:
    """Return the style sheet's variables: light, and on a dark screen the dark ones."""
    light, dark = (
        "".join(f"--{name}:{value};" for name, value in theme.items()) for theme in (LIGHT, DARK)
    )
    # Paper is light, whatever the screen is: the dark theme is for screens only.
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}\n"
    )


def themed(style: str) -> str:
    """Replace the light theme's colours by the variables that hold them."""

    def variable(found: re.Match[str]) -> str:
        name = _NAMES.get(found.group().lower())
        return found.group() if name is None else f"var(--{name})"

    return _HEX.sub(variable, style)

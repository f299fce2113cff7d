"""A chart as a file, or as an SVG element that lives in the page.

The page's are themed, described for those who do not see them, and their marks are numbered.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Final

from pydlbench.report.page.palette import themed
from pydlbench.report.page.plain import plain

if TYPE_CHECKING:
    from pydlbench.report.page.figures.canvas import Chart

_NAMESPACE: Final = "http://www.w3.org/2000/svg"
_SVG: Final = f"{{{_NAMESPACE}}}"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_SPACE: Final = "{http://www.w3.org/XML/1998/namespace}space"
_FONT: Final = "'DejaVu Sans'"
# A hundredth of a point is finer than any screen or printer.
_FINE: Final = re.compile(r"-?\d+\.\d{3,}")
_PLACES: Final = frozenset({"d", "x", "y", "width", "height", "transform", "points"})
_URL: Final = re.compile(r"url\(#([^)]+)\)")
_NO_TURN: Final = re.compile(r"rotate\(-?0(?:\.0*)? [^)]*\)")


def inline_svg(chart: Chart) -> str:
    """Return the SVG element for the page: its colours are CSS variables, its font the page's."""
    root = _tidy(chart)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    for node in root.iter():
        # Variables belong into a style; as attributes they are nothing that SVG knows.
        for name in {"fill", "stroke"} & node.attrib.keys():
            rest = node.attrib.get("style", "")
            node.set("style", f"{name}: {node.attrib.pop(name)}; {rest}".rstrip("; "))
        if "style" in node.attrib:
            style = themed(node.attrib["style"])
            node.attrib["style"] = style.replace(f" {_FONT}", " var(--font)")
    return ET.tostring(root, encoding="unicode")


def file_svg(chart: Chart) -> str:
    """Return the same as a document of its own, in the light theme."""
    root = _tidy(chart)
    root.set("xmlns", _NAMESPACE)
    for node in root.iter():
        if "style" in node.attrib:
            node.attrib["style"] = node.attrib["style"].replace(_FONT, f"{_FONT}, sans-serif")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _tidy(chart: Chart) -> ET.Element:
    """Parse, drop what nobody needs, make identifiers unique, describe."""
    root = ET.fromstring(draw_svg(chart))  # noqa: S314 - matplotlib's own, made a moment ago
    for child in [one for one in root if one.tag == f"{_SVG}metadata"]:
        root.remove(child)
    short = {name: f"{chart.name}-{index}" for index, name in enumerate(_linked(root))}
    for node in root.iter():
        node.tag = node.tag.removeprefix(_SVG)
        node.attrib.pop(_SPACE, None)
        if _LINK in node.attrib:
            node.set("href", f"#{short[node.attrib.pop(_LINK).removeprefix('#')]}")
        for name, value in node.attrib.items():
            if "url(#" in value:
                node.set(name, _URL.sub(lambda found: f"url(#{short[found[1]]})", value))
        own = node.attrib.pop("id", None)
        if own is None:
            continue
        if own in short:
            node.set("id", short[own])
        elif own[0] == "v" and own[1:].isdigit():
            _note(node, chart, int(own[1:]))
    _compact(root)
    _describe(root, chart)
    return root


def _compact(node: ET.Element) -> None:
    """Drop groups without a purpose, white space and digits that nobody can see."""
    node.text = node.text if node.text and node.text.strip() else None
    node.tail = None
    for name in _PLACES & node.attrib.keys():
        node.set(name, _FINE.sub(_rounded, node.attrib[name]).replace("  ", " ").strip())
    turn = _NO_TURN.sub("", node.attrib.get("transform", "")).strip()
    if turn:
        node.set("transform", turn)
    else:
        node.attrib.pop("transform", None)
    children: list[ET.Element] = []
    for child in node:
        _compact(child)
        if child.tag == "style":
            continue  # on a page it would apply to everything
        children.extend(child if child.tag == "g" and not child.attrib else [child])
    node[:] = children
    _share_style(node)


def _share_style(node: ET.Element) -> None:
    """Say the style of many marks that look alike once, where they inherit it."""
    styles = {child.attrib.get("style") for child in node if child.tag == "use"}
    if len(node) > 1 and len(styles) == 1 and all(child.tag == "use" for child in node):
        style = styles.pop()
        if style and "style" not in node.attrib:
            node.set("style", style)
            for child in node:
                del child.attrib["style"]


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found.group()):.2f}".rstrip("0").rstrip(".")


def _linked(root: ET.Element) -> dict[str, None]:
    """Which identifiers something refers to; the rest are matplotlib's own bookkeeping."""
    found: dict[str, None] = {}
    for node in root.iter():
        if _LINK in node.attrib:
            found[node.attrib[_LINK].removeprefix("#")] = None
        for value in node.attrib.values():
            found |= dict.fromkeys(_URL.findall(value))
    return found


def _note(node: ET.Element, chart: Chart, index: int) -> None:
    """Write what a mark stands for onto it, and the words that a pointer shows."""
    for name, value in chart.values[index].items():
        if name != "label" and value is not None:
            exact = repr(value) if isinstance(value, float) else plain(value)
            node.set(f"data-{name.rstrip('_').replace('_', '-')}", exact)
    node.set("class", "mark")
    title = ET.Element("title")
    title.text = plain(chart.values[index]["label"])
    node.insert(0, title)


def _describe(root: ET.Element, chart: Chart) -> None:
    title, description = ET.Element("title"), ET.Element("desc")
    title.set("id", f"{chart.name}-title")
    description.set("id", f"{chart.name}-desc")
    title.text, description.text = plain(chart.title), plain(chart.alt)
    root.set("role", "img")
    root.set("style", "stroke-linejoin: round")  # matplotlib's default, which is not SVG's
    root.set("aria-labelledby", f"{chart.name}-title {chart.name}-desc")
    root.insert(0, title)
    root.insert(1, description)


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

"""The whole page: sections behind each other in one file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING

from pydlbench.report.page.blocks import Facts, Figure, Section
from pydlbench.report.page.environment import differences, environment
from pydlbench.report.page.figures.canvas import drawing
from pydlbench.report.page.figures.svg import draw_png, file_svg, inline_svg
from pydlbench.report.page.fleets import fleets
from pydlbench.report.page.palette import css_variables
from pydlbench.report.page.plain import plain
from pydlbench.report.page.sections import (
    batches,
    by_framework,
    comparison,
    conclusion,
    findings,
    layers,
    method,
    roofline,
    samples,
    step,
)
from pydlbench.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.report.page.figures.canvas import Chart
    from pydlbench.report.page.runs import PageRun

# In the order of the page, below the picture that opens it.
_SECTIONS = (
    differences,
    conclusion,
    fleets,
    comparison,
    findings,
    step,
    layers,
    by_framework,
    batches,
    roofline,
    samples,
    environment,
    method,
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page and the figures on it.

    Attributes:
        html: the document.
        charts: its figures in their order, for files.
    """

    html: str
    charts: list[Chart]

    def figure(self, chart: Chart, kind: str) -> bytes:
        """Return one of the charts as a file, in the light theme: ``png`` or ``svg``."""
        with drawing():
            return draw_png(chart) if kind == "png" else file_svg(chart).encode("utf-8")


def build_page(runs: Sequence[PageRun], title: str | None = None) -> Page:
    """Return the page of one or several runs.

    Args:
        runs: at least one.
        title: of the page; None names models and machines.

    Raises:
        PydlbenchError: matplotlib cannot be imported.
    """
    import jinja2
    from markupsafe import Markup

    def drawn(chart: Chart) -> Markup:
        return Markup(inline_svg(chart))  # noqa: S704 - our own SVG, its texts escaped

    def shown(value: object) -> object:
        return value if isinstance(value, Markup) else plain(value)

    surroundings = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=shown
    )
    template = surroundings.from_string(_data("page.html.j2"))
    script = f"\n{_data('page.js')}"
    # Nothing may be fetched, and no script runs but ours: not even one that a name smuggled in.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    with drawing():
        made = [make(runs) for make in _SECTIONS]
        alone = all(run.fleet is not None for run in runs)
        lacking = [] if alone else [one for one in made if not one.blocks and one.ident != "fleets"]
        missing = Facts([(one.title, one.command) for one in lacking])
        sections = [one for one in _opened(made) if one.blocks]
        html = template.render(
            title=plain(title or _title(runs), 160),
            subtitle=_subtitle(runs),
            policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
            style=Markup(css_variables() + _data("page.css")),  # noqa: S704 - files of our own
            script=Markup(script),  # noqa: S704 - likewise
            sections=sections,
            missing=missing.shown(),
            drawn=drawn,
            version=__version__,
        )
    return Page(f"{html}\n", [one for part in sections for one in part.charts])


def _opened(sections: Sequence[Section]) -> list[Section]:
    """Put the first figure, with what belongs below it, before everything else.

    It is that of a step where a run knows of one, else the first of the layers or frameworks.
    """
    for index, whole in enumerate(sections):
        first = next((one for one in whole.blocks if isinstance(one, Figure)), None)
        if first is not None:
            rest = replace(whole, blocks=[one for one in whole.blocks if one is not first])
            opening = Section("picture", "At a glance", [first])
            return [opening, *sections[:index], rest, *sections[index + 1 :]]
    return list(sections)


def _data(name: str) -> str:
    return resources.files("pydlbench.report.page").joinpath(name).read_text(encoding="utf-8")


def _title(runs: Sequence[PageRun]) -> str:
    nodes = [len(run.fleet.nodes) for run in runs if run.fleet is not None]
    if len(nodes) == len(runs):
        return f"A fleet of {max(nodes)} nodes"
    models = list(dict.fromkeys(model for run in runs for model in run.models))
    machines = list(dict.fromkeys(run.machine for run in runs))
    more = f" and {len(models) - 3} more" if len(models) > 4 else ""
    what = ", ".join(models[:3] if more else models) + more or "runs"
    return f"{what} on {', '.join(machines[:3])}"


def _subtitle(runs: Sequence[PageRun]) -> str:
    first = runs[0].record
    if len(runs) == 1:
        return f"{runs[0].info.kind}, run {first.id}, {first.created_utc}"
    dates = sorted(str(run.record.created_utc) for run in runs)
    return f"{len(runs)} runs, {dates[0]} to {dates[-1]}"

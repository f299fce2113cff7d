"""The whole page: sections behind each other in one file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from pydlbench import __version__
from pydlbench.report.page.figures.canvas import draw_png, drawing, file_svg
from pydlbench.report.page.html import Html, el, join, plain
from pydlbench.report.page.palette import css_variables
from pydlbench.report.page.sections import (
    batches,
    by_framework,
    conclusion,
    environment,
    findings,
    layers,
    method,
    roofline,
    samples,
    step,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.report.page.figures.canvas import Chart
    from pydlbench.report.page.runs import PageRun

__all__ = ["Page", "build_page"]

_SECTIONS = (
    conclusion,
    findings,
    roofline,
    step,
    layers,
    by_framework,
    batches,
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
    with drawing():
        made = [make(runs) for make in _SECTIONS]
        sections = [one for one in made if one is not None]
        bodies = join((one.html() for one in sections), "\n")
    shown = plain(title or _title(runs), 160)
    links = [el("li", el("a", one.title, href=f"#{one.ident}")) for one in sections]
    body = el(
        "body",
        el("a", "to the content", href="#conclusion", class_="skip"),
        el("header", el("h1", shown), el("p", _subtitle(runs), class_="subtitle")),
        el("nav", el("ul", *links), aria_label="sections"),
        el("main", Html(f"\n{bodies}\n")),
        el("footer", el("p", f"made by pydlbench {__version__}; this file loads nothing else")),
        el("script", Html(_script())),
    )
    document = el("html", _head(shown), Html("\n"), body, lang="en")
    return Page(f"<!DOCTYPE html>\n{document}\n", [one for part in sections for one in part.charts])


def _head(title: str) -> Html:
    # Nothing may be fetched, and no script runs but ours: not even one that a name smuggled in.
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("style", Html(f"\n{css_variables()}{_data('page.css')}")),
    )


def _script() -> str:
    return f"\n{_data('page.js')}"


def _data(name: str) -> str:
    return resources.files("pydlbench.report.page").joinpath(name).read_text(encoding="utf-8")


def _title(runs: Sequence[PageRun]) -> str:
    models = list(dict.fromkeys(model for run in runs for model in run.models))
    machines = list(dict.fromkeys(run.machine for run in runs))
    more = f" and {len(models) - 3} more" if len(models) > 4 else ""
    what = ", ".join(models[:3] if more else models) + more or "runs"
    return f"{what} on {', '.join(machines[:3])}"


def _subtitle(runs: Sequence[PageRun]) -> str:
    first = runs[0].record
    if len(runs) == 1:
        return f"{runs[0].kind}, run {first.id}, {first.created_utc}"
    dates = sorted(str(run.record.created_utc) for run in runs)
    return f"{len(runs)} runs, {dates[0]} to {dates[-1]}"

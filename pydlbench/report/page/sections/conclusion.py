"""The first section: what follows from every run, before any figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.page.markup import Html, el, join
from pydlbench.report.page.section import Section, paragraphs
from pydlbench.report.page.sentences import conclusions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.report.page.runs import PageRun

__all__ = ["conclusion"]


def conclusion(runs: Sequence[PageRun]) -> Section:
    """Return the section: for each run what was run, and the sentences that its command prints."""
    return Section("conclusion", "Conclusion", join(_run(run, len(runs)) for run in runs))


def _run(run: PageRun, count: int) -> Html:
    parts = []
    for index, one in enumerate(conclusions(run)):
        number = f"run {run.number}: " if count > 1 and not index else ""
        first, *rest = one.lines or ["nothing was measured in this run."]
        parts.append(el("h3", f"{number}{one.about}"))
        parts.append(el("p", first, class_="first"))
        parts.append(paragraphs(rest))
    notes = list(run.troubles)
    if run.status not in ("done", "unknown"):
        notes.insert(0, f"this run is {run.status}: it is not all that was asked for.")
    return el("div", *parts, *(el("p", note, class_="alarm") for note in notes), class_="verdict")

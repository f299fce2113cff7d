"""The section of findings: what ``diagnose`` measured that would save time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.report.page.cleaning import finite, mapping, objects
from pydlbench.report.page.markup import Html, el, join
from pydlbench.report.page.section import Section, collected
from pydlbench.report.page.tables import Column, table
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.report.page.runs import PageRun

__all__ = ["findings"]


def findings(runs: Sequence[PageRun]) -> Section | None:
    """Return the section; None where nothing was diagnosed."""
    if not any(run.findings for run in runs):
        return None
    tables, trouble = collected(lambda: _tables(runs), "A finding")
    return Section("findings", "Findings", join([*tables, trouble]))


def _tables(runs: Sequence[PageRun]) -> Iterator[Html]:
    count = 0
    for run in runs:
        for document in run.findings:
            found = objects(document.get("findings"))
            words = [str(document.get(key)) for key in ("model", "batch", "phase", "framework")]
            what = f"{' '.join(words)}{run.within(len(runs))}"
            count += 1
            if found:
                caption = f"What would save time: {what}. Savings of findings that overlap do not "
                yield table(f"{caption}add up.", _COLUMNS, found, f"findings-{count}")
            else:
                yield el("p", f"{what}: nothing found that would save 1 % of the step.")


def _saving(one: Mapping[str, Any], key: str) -> float | None:
    return finite(mapping(one.get("saving")).get(key))


def _seconds(one: Mapping[str, Any]) -> str:
    found = _saving(one, "seconds")
    return "-" if found is None else format_seconds(found)


def _share(one: Mapping[str, Any]) -> str:
    found = _saving(one, "share")
    return "-" if found is None else format_percent(found)


_COLUMNS = [
    Column("problem", lambda one: one.get("problem")),
    Column("where", lambda one: ", ".join(map(str, one.get("where") or ()))),
    Column("saves", _seconds, lambda one: _saving(one, "seconds"), right=True),
    Column("of the step", _share, lambda one: _saving(one, "share"), right=True),
    Column("cause", lambda one: el("span", one.get("cause"))),
    Column("next", lambda one: el("code", one.get("next"))),
]

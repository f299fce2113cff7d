"""The list of runs as a table, and what a line of a sweep says of a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.records.fields import columns_of
from pydlbench.records.measurement import MATERIAL
from pydlbench.records.run import RunInfo
from pydlbench.report.blocks import TableBlock
from pydlbench.units import format_seconds, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def runs_table(runs: Sequence[RunInfo]) -> TableBlock:
    """Return the table, in the order given; times are local ones."""
    return TableBlock.from_rows(columns_of(runs, RunInfo.columns), runs)


# -----------------------------------------------------------------------------
# What a line of a sweep says of a document.


def time_text(time: Mapping[str, Any] | None) -> str:
    """Return a time with its spread and n, without which none is shown; a dash without one."""
    if not time:
        return "-"
    low, high = time.get("ci_low"), time.get("ci_high")
    width = None if low is None or high is None else (high - low) / 2 / time["median"]
    spread = "no interval" if width is None else f"+-{percent(width)}"
    return f"{format_seconds(time['median'])} {spread} (n {time['n']})"


def dominant(document: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return what dominates an estimate, and how many layers that is.

    None where there is nothing, and where other work disturbed it: see ``disturbed_share``.
    """
    group = document.get("dominant_group") or {}
    name = group.get("layer") or document.get("dominant")
    if not name or _disturbed(document):
        return None
    return str(name), group.get("layers") or 1


def _disturbed(document: Mapping[str, Any]) -> bool:
    """Whether other work disturbed what dominates a sum, or so much of it that it tells nothing."""
    return (document.get("disturbed_share") or 0.0) > MATERIAL or _first_is_disturbed(document)


def _first_is_disturbed(document: Mapping[str, Any]) -> bool:
    name = (document.get("dominant_group") or {}).get("layer") or document.get("dominant")
    return any(
        layer.get("contended") and name in (layer.get("name"), layer.get("like"))
        for layer in document.get("layers") or ()
    )

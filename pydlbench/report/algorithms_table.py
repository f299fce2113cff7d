"""``--algorithms``: every implementation that was tried for one layer, fastest first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydlbench.report.layers_table import plain_table
from pydlbench.results.columns import number, spread, time_in, time_unit
from pydlbench.results.parts import TimeSummary
from pydlbench.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from pydlbench.results.records import Measurement

__all__ = ["render_algorithms"]


def render_algorithms(row: Measurement, name: str) -> str:
    """Return the table of a measurement's candidates, or one line where there are none.

    Those that failed or were wrong stand last, with the reason in the place of a verdict.

    Args:
        row: Measurement with ``candidates``.
        name: What to call it in the title.
    """
    candidates = [(item, _time(item)) for item in row.candidates or ()]
    if not candidates:
        return f"{name}: no candidates were recorded"
    candidates.sort(key=lambda pair: pair[1].median if pair[1] else math.inf)
    medians = [time.median for _, time in candidates if time]
    unit = time_unit(medians)
    cells = []
    for item, time in candidates:
        reorders = sum((item.get("reorder_s") or {}).values())
        workspace = item.get("workspace_bytes")
        cells.append(
            [
                "*" if item.get("chosen") else "",
                str(item.get("algorithm") or "-"),
                str(item.get("layout") or "-"),
                time_in(unit, time.median) if time else "-",
                spread(time) if time else "-",
                str(time.n) if time else "-",
                f"{number(time.median / medians[0])}x" if time and medians[0] > 0 else "-",
                format_seconds(reorders) if reorders else "-",
                format_bytes(workspace) if workspace else "-",
                _verdict(item),
            ]
        )
    titles = ["", "algorithm", "layout", "median", "CI", "n", "ratio", "reorders", "workspace"]
    right = [False, False, False, True, True, True, True, True, True, False]
    title = f"{name}: {len(candidates)} candidates, fastest first; * is the row above"
    return f"{title}\n\n{plain_table([*titles, 'verdict'], cells, right)}"


def _time(item: Mapping[str, Any]) -> TimeSummary | None:
    value = item.get("time_s")
    if item.get("status", "ok") != "ok" or not value:
        return None
    # Trials are short; what they do not know is shown as unknown.
    unknown = dict.fromkeys(("q1", "q3", "min"), math.nan) | {"ci_low": None, "ci_high": None}
    known = value if isinstance(value, Mapping) else {"median": value}
    return TimeSummary.from_dict({**unknown, "n": 1, **known})


def _verdict(item: Mapping[str, Any]) -> str:
    status, reason = str(item.get("status", "ok")), item.get("reason")
    if reason:
        return f"{status}: {' '.join(str(reason).split())}"
    # Candidates that cannot win are not worth a verification unless asked for.
    return f"{status}, unchecked" if status == "ok" and not item.get("correct") else status

"""``--algorithms``: every implementation that was tried for one layer, fastest first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydlbench.report.plain_table import plain_table
from pydlbench.results.columns import number, scientific, spread, time_in, time_unit
from pydlbench.results.parts import TimeSummary
from pydlbench.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from pydlbench.results.records import Measurement

__all__ = ["render_algorithms"]

_TEXTS = 3  # columns before the numbers


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
    reordered = any(item.get("reorder_s") for item, _ in candidates)
    on_gpu = any(item.get("tensor_cores") is not None for item, _ in candidates)
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
                *([format_seconds(reorders) if reorders else "-"] if reordered else ()),
                format_bytes(workspace) if workspace else "-",
                *(_on_gpu(item) if on_gpu else ()),
                _verdict(item),
            ]
        )
    titles = ["", "algorithm", "layout", "median", "CI", "n", "ratio"]
    titles += [*(["reorders"] if reordered else ()), "workspace"]
    titles += ["tensor cores", "built in"] if on_gpu else []
    right = [index >= _TEXTS for index in range(len(titles))] + [False]
    many = f"{len(candidates)} candidate{'s' if len(candidates) > 1 else ''}"
    title = f"{name}: {many}, fastest first; * is the row above"
    return f"{title}\n\n{plain_table([*titles, 'verdict'], cells, right)}"


def _on_gpu(item: Mapping[str, Any]) -> list[str]:
    tensor_cores = item.get("tensor_cores")
    used = "-" if tensor_cores is None else "yes" if tensor_cores else "no"
    seconds = item.get("setup_s")
    return [used, format_seconds(seconds) if seconds else "-"]


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
    verdict = item.get("correct")
    if status != "ok" or verdict:
        error = (verdict or {}).get("rel_error")
        return f"{status} {scientific(error)}" if error else status
    # Candidates that cannot win are not worth a verification unless asked for.
    return f"{status}, unchecked"

"""The rungs of the ladder side by side: from what the hardware allows to the real step."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from pydlbench.report.check_numbers import Scale, clip, signed_percent
from pydlbench.report.plain_table import plain_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.compose import Plan
    from pydlbench.crosscheck import CheckRecord
    from pydlbench.results import Measurement

__all__ = ["TITLES", "Limits", "ladder_cells", "ladder_table", "limits", "rungs"]

TITLES = (
    "theoretical",
    "measured roof",
    "native, hot..cold",
    "operators",
    "predicted",
    "end-to-end",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The two lowest rungs of a step, in seconds.

    Attributes:
        theoretical_s: executed FLOPs over the peaks derived from the device's facts, at the clock
            it ran; None where no peak is known. Bytes are not in it: a processor does not say what
            its memory can do.
        roof_s: the rooflines of the measured peaks and bandwidths; None without any row.
    """

    theoretical_s: float | None
    roof_s: float | None


def limits(plan: Plan, rows: Mapping[Case, Measurement]) -> Limits:
    """Sum the limits of a step's native rows; rows without a time are not in the sums.

    Args:
        plan: the step's work.
        rows: a measurement for each of its cases.
    """
    theoretical: list[float] = []
    roofs: list[float] = []
    for term in plan.terms:
        row = rows[term.hot]
        if not row.ok or row.time is None:
            continue
        if row.peak.theoretical and row.flops_executed:
            theoretical.append(row.flops_executed / (row.peak.theoretical * 1e12))
        roofs.append(row.roofline.time_s if row.roofline else row.time.median)
    return Limits(
        theoretical_s=sum(theoretical) if theoretical else None,
        roof_s=sum(roofs) if roofs else None,
    )


def rungs(record: CheckRecord, found: Limits) -> dict[str, float | None]:
    """Return the rungs by name, in seconds."""
    return {
        "theoretical_s": found.theoretical_s,
        "roof_s": found.roof_s,
        "native_low_s": record.native_low_s,
        "native_high_s": record.native_high_s,
        "operators_s": operators_s(record),
        "estimate_s": record.estimate_s,
        "measured_s": record.measured.median,
    }


def operators_s(record: CheckRecord) -> float:
    """Return the framework's operators one by one, pages kept: the median over the rounds."""
    return median(one.pieces_s for one in record.rounds) if record.rounds else record.estimate_s


def ladder_cells(record: CheckRecord, found: Limits, scale: Scale) -> list[str]:
    """Return a row of the table under :data:`TITLES`."""
    low, high = scale.bare(record.native_low_s), scale.text(record.native_high_s)
    return [
        scale.text(found.theoretical_s),
        scale.text(found.roof_s),
        f"{low} .. {high}",
        scale.text(operators_s(record)),
        scale.text(record.estimate_s),
        scale.text(record.measured.median),
    ]


def ladder_table(records: Sequence[CheckRecord], found: Limits) -> str:
    """Return the ladder: of one check its rungs, of several also how far each is off.

    Args:
        records: checks of the same step.
        found: its two lowest rungs.
    """
    scale = Scale.of(max(one.measured.median for one in records))
    if len(records) == 1:
        cells = ladder_cells(records[0], found, scale)
        return clip(plain_table(TITLES, [cells], [False] * len(TITLES)))
    titles = ["", *TITLES, "error", "native", "unexplained"]
    rows = [
        [
            f"{one.framework} {one.mode}",
            *ladder_cells(one, found, scale),
            signed_percent(one.error),
            signed_percent(one.error_native),
            signed_percent(one.unexplained),
        ]
        for one in records
    ]
    return clip(plain_table(titles, rows, [title != "" for title in titles]))

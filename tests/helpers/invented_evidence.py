"""Invented native rows and evidence, which the tests of the ledger share."""

from __future__ import annotations

from invented_rows import row_of

from pydlbench.ladder.ledger import Evidence, ledger
from pydlbench.records.measurement import Peaks, Roofline, TimeSummary


def row(case, median, roof=None, status="ok", *, reason="no such kernel", width=0.0):
    """The row of a native kernel; ``width`` is its interval's, to both sides."""
    time = TimeSummary(
        median=median,
        ci_low=median - width,
        ci_high=median + width,
        q1=median,
        q3=median,
        min=median,
        n=9,
    )
    roofline = roof and Roofline(bound="memory", time_s=roof, efficiency=roof / median)
    own = {"time": time} if status == "ok" else {"time": None, "reason": reason}
    return row_of(case, status=status, roofline=roofline, peak=Peaks(), **own)


def evidence(found, native, **changes):
    values = {
        "measured_s": 5000.0,
        "times": {one.name: 7.0 for one in found},
        "native": native,
        "allocation_s": 30.0,
        "allocation_how": "A minus B",
        "dispatch_s": 0.125,
        "operators": {one.name: len(one.nodes) for one in found},
        "reorder_s": 11.0,
        "reorder_how": "a log",
    }
    return Evidence(**{**values, **changes})


def terms(model, found, seen):
    return {one.term: one for one in ledger(model, found, seen)}

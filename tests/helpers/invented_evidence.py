"""Invented native rows, which the tests of sums share."""

from invented_rows import row_of

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

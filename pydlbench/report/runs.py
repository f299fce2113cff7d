"""The list of runs as a table, and texts for the progress lines of a sweep."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydlbench.records.record import columns_of
from pydlbench.records.run import RunInfo, local_time
from pydlbench.report.blocks import Block, Headline, TableBlock
from pydlbench.units import format_seconds, percent


def runs_report(runs: Sequence[RunInfo]) -> list[Block]:
    """Return the number of listed runs, the newest one with its command, and the table."""
    if not runs:
        return []
    newest = runs[0]
    count = "1 run is" if len(runs) == 1 else f"{len(runs)} runs are"
    when = f"the newest, of {local_time(newest.created_utc)}, is {newest.status}"
    following = f"next: pydlbench runs show {newest.id}"
    return [Headline([f"{count} listed; {when}: {newest.line}", following]), runs_table(runs)]


def runs_table(runs: Sequence[RunInfo]) -> TableBlock:
    """Return the table of runs, in the order given and with local times."""
    return TableBlock.from_rows(columns_of(runs, RunInfo.columns), runs)


# -----------------------------------------------------------------------------
# Texts for the lines of a sweep.


def time_text(time: Mapping[str, Any] | None) -> str:
    """Return a time with its spread and n; a dash if there is no time."""
    if not time:
        return "-"
    low, high = time.get("ci_low"), time.get("ci_high")
    width = None if low is None or high is None else (high - low) / 2 / time["median"]
    spread = "no interval" if width is None else f"+-{percent(width)}"
    return f"{format_seconds(time['median'])} {spread} (n {time['n']})"

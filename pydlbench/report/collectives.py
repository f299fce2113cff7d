"""The report of ``collectives``: times and bandwidths by size, the fitted lines, slow pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.records.collectives import OTHERS
from pydlbench.records.metrics import Column
from pydlbench.report.json import dump
from pydlbench.report.text import Heading, Lines, Table, csv_text
from pydlbench.timing.statistics import median
from pydlbench.units import format_bytes, format_seconds, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.records.collectives import (
        CollectiveFit,
        CollectiveRow,
        CollectivesResult,
        OverlapRow,
        PairRow,
    )
    from pydlbench.records.run import RunRecord
    from pydlbench.report.text import Block


# From this error of the line on at a size, it is said that it does not hold there.
_WRONG: Final = 0.25
_PAIRS: Final = 12
# From so many on, the pairs of one rank are fewer than the others.
_RANKS: Final = 5

CSV_COLUMNS: Final = (
    *("run_id", "created_utc", "operation", "bytes", "ranks", "hosts", "device", "library"),
    *("threads", "processor", "status", "reason", "time_s_median", "time_s_ci_low"),
    *("time_s_ci_high", "time_s_min", "time_s_n", "algorithm_gbps", "bus_gbps", "verified"),
    "contended",
)


def collectives_report(found: CollectivesResult, fits: Sequence[CollectiveFit]) -> list[Block]:
    """Return the report.

    Args:
        found: with at least one row.
        fits: of its operations.
    """
    rows, pairs, overlap = found.rows, found.pairs, found.overlap
    errors: dict[tuple[str, int], float] = {
        (one.operation, size): error for one in fits for size, error in one.errors.items()
    }
    timed = [one for one in rows if one.time is not None]
    refused = [one for one in rows if one.time is None]
    blocks: list[Block] = [
        Heading([_who(rows[0])], bold=1),
        Table.of(_columns(errors), timed),
        Lines([f"{one.case.label}: {one.status}: {one.reason}" for one in refused], alarm=True),
        Lines(_disturbed(found)),
        Lines([line for one in fits for line in _fitted(one)]),
        Lines(_paired(pairs), alarm=any(one.slow for one in pairs)),
        Lines(_beside(overlap) if overlap is not None else []),
    ]
    return [one for one in blocks if not isinstance(one, Table) or one.cells]


def _disturbed(found: CollectivesResult) -> list[str]:
    lines = []
    if any(one.contended for one in found.rows):
        lines.append("* other work disturbed most samples: an upper bound")
    if found.others is not None and found.others > OTHERS:
        share = percent(found.others)
        lines.append(f"others had {share} of the ranks' cores: all times are upper bounds")
    return lines


def _who(row: CollectiveRow) -> str:
    place = row.place
    words = [f"{place.ranks} ranks", place.library, "fp32", place.processor]
    if place.device == "cpu":
        words.append(f"{place.threads} thread{'' if place.threads == 1 else 's'} each")
    words.append("one machine" if place.hosts == 1 else f"{place.hosts} machines")
    return "  ".join(words)


def _columns(errors: dict[tuple[str, int], float]) -> list[Column[CollectiveRow]]:
    def interval(one: CollectiveRow) -> str:
        time = one.time
        if time is None or time.ci_low is None or time.ci_high is None:
            return "-"
        return f"{format_seconds(time.ci_low)} .. {format_seconds(time.ci_high)}"

    def middle(one: CollectiveRow) -> str:
        assert one.time is not None, "rows without a time are in no table"
        return format_seconds(one.time.median) + ("*" if one.contended else "")

    def error(one: CollectiveRow) -> str:
        return percent(errors.get((one.case.operation, one.case.bytes)), signed=True)

    return [
        Column("operation", lambda one: one.case.operation, right=False),
        Column("bytes", lambda one: format_bytes(one.case.bytes)),
        Column("slowest rank", middle),
        Column("95 % CI", interval),
        Column("n", lambda one: "-" if one.time is None else str(one.time.n)),
        Column("algorithm GB/s", lambda one: f"{one.algorithm_gbps:.3g}"),
        Column("bus GB/s", lambda one: f"{one.bus_gbps:.3g}"),
        Column("line's error", error),
        Column("checked", lambda one: "ok" if one.verified else "-", right=False),
    ]


def _fitted(one: CollectiveFit) -> list[str]:
    alpha = format_seconds(one.alpha_s)
    if one.alpha_low is not None and one.alpha_high is not None:
        alpha += f" ({format_seconds(one.alpha_low)} .. {format_seconds(one.alpha_high)})"
    line = f"t = {alpha}"
    if one.bytes_per_s is None:
        line += ", times do not grow with the size: no bandwidth can be told"
    else:
        line += f" + S / {one.bytes_per_s / 1e9:.3g} GB/s"
    if one.bytes_low is not None:
        high = "" if one.bytes_high is None else f".. {one.bytes_high / 1e9:.3g}"
        least = "" if high else "at least "
        line += f" ({least}{one.bytes_low / 1e9:.3g} {high}".rstrip() + ")"
    lines = [f"{one.operation}: {line}, error up to {percent(one.worst)}"]
    wrong = [size for size, error in one.errors.items() if abs(error) > _WRONG]
    if wrong:
        sizes = ", ".join(map(format_bytes, sorted(wrong)))
        lines.append(f"  the line does not hold (by more than {percent(_WRONG)}) at {sizes}")
    return lines


def _paired(pairs: Sequence[PairRow]) -> list[str]:
    if not pairs:
        return []
    slow = [one for one in pairs if one.slow]
    middle = median(median(one.visits_s) for one in pairs)
    rate = f"{format_bytes(pairs[0].bytes)} each way in {format_seconds(middle)}"
    ranks = max(max(one.first, one.second) for one in pairs) + 1
    # Of fewer, half of the pairs or more are one rank's.
    few = "" if ranks >= _RANKS else f"; a slow rank shows from {_RANKS} ranks on"
    if not slow:
        return [f"{len(pairs)} pairs of ranks, none slow: {rate} in the median{few}"]
    verb = "is" if len(slow) == 1 else "are"
    lines = [f"{len(slow)} of {len(pairs)} pairs of ranks {verb} SLOW; the median pair: {rate}"]
    lines += [f"  {_pair(one)}: {one.ratio:.2f} times as long" for one in slow[:_PAIRS]]
    named: dict[int, int] = {}
    for one in slow:
        for rank in (one.first, one.second):
            named[rank] = named.get(rank, 0) + 1
    # A slow card or node is in all of its pairs, a slow cable in some.
    whole = [rank for rank, count in sorted(named.items()) if count == ranks - 1]
    if whole:
        lines.append(f"  all pairs of rank {', '.join(map(str, whole))} are among them")
    return lines


def _pair(one: PairRow) -> str:
    first, second = one.hosts
    where = "" if first == second else f" ({first} and {second})"
    return f"ranks {one.first} and {one.second}{where}"


def _beside(one: OverlapRow) -> list[str]:
    text = (
        f"beside an all-reduce of {format_bytes(one.bytes)} a rank computes at "
        f"{percent(median(one.compute))} of its speed alone, and the all-reduce runs at "
        f"{percent(median(one.transfer))} of its own"
    )
    return [text]


def to_json(
    run: RunRecord, found: CollectivesResult, fits: Sequence[CollectiveFit], *, interrupted: bool
) -> str:
    """Return one object with the run and all of it."""
    head = {"kind": "collectives", "interrupted": interrupted, "run": run.to_dict()}
    return dump({**head, **found.to_dict(), "fits": [one.to_dict() for one in fits]})


def to_csv(run: RunRecord, rows: Sequence[CollectiveRow]) -> str:
    """Return the header and one line per operation and size."""
    head = {"run_id": run.id, "created_utc": run.created_utc}
    lines = []
    for one in rows:
        document = {**one.to_dict(), **head}
        time = document.pop("time_s") or {}
        document |= {f"time_s_{name}": value for name, value in time.items()}
        lines.append([document.get(name) for name in CSV_COLUMNS])
    return csv_text(CSV_COLUMNS, lines)

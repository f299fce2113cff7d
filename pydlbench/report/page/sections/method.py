"""The section on how it was measured: the formulae, and what the rows say of their own making."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from pydlbench.report.page.markup import el, join, plain
from pydlbench.report.page.section import Section
from pydlbench.report.page.tables import facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pydlbench.report.page.runs import PageRun
    from pydlbench.results import Measurement

__all__ = ["method"]

_TERMS = (
    (
        "time",
        (
            "the median of the samples, each the seconds of one execution; its interval is that "
            "of the median and assumes no distribution. Creating a plan and reordering layouts "
            "are not in it."
        ),
    ),
    (
        "TFLOP/s",
        (
            "2 x multiply-adds, padding counted as papers do, over the median. Percentages and the "
            "roofline use the executed FLOPs only, without the padded taps."
        ),
    ),
    (
        "theoretical peak",
        "FLOP per cycle and core x cores x the clock that was read beside the samples.",
    ),
    (
        "measured roof",
        (
            "the larger of executed FLOPs over the peak that a probe reached, and least bytes over "
            "the measured bandwidths of the levels that they fit into; or the cost of starting a "
            "kernel."
        ),
    ),
    (
        "estimate of a step",
        (
            "the sum of its layers, each alone: low with hot caches, high with cold ones, the "
            "middle between them."
        ),
    ),
    (
        "ledger",
        "every term has an experiment of its own; only what is unexplained is a difference.",
    ),
    (
        "checked",
        (
            "outputs are poisoned before the run; checksums cover every element, and exact results "
            "in float64 at random places give the error."
        ),
    ),
)


def method(runs: Sequence[PageRun]) -> Section:
    """Return the section."""
    rows = [row for run in runs for row in run.timed]
    parts = [facts(_TERMS)]
    if rows:
        parts += [el("h3", "Of the layers on this page"), facts(_of(rows))]
    return Section("method", "How it was measured", join(parts))


def _of(rows: Sequence[Measurement]) -> Iterator[tuple[str, str]]:
    counts = [row.time.n for row in rows if row.time is not None]
    yield "samples", f"{min(counts)} to {max(counts)} kept per row, {sum(counts)} in all"
    dropped = sum(row.discarded for row in rows)
    if dropped:
        yield "discarded", f"{dropped} disturbed samples"
    yield "caches", _counted(row.cache for row in rows)
    yield "clock of the samples", _counted(row.timing for row in rows)
    # "known to 0.43% at" and "known to 0.44% at" are one reason.
    yield "stopped by", _counted(row.stop_rule or _reason(row) for row in rows)
    yield "verification", _counted(row.correct.status for row in rows)
    yield "libraries", _counted(row.library for row in rows if row.library)
    disturbed = sum(bool(row.contended) for row in rows)
    if disturbed:
        yield "disturbed", f"{disturbed} of {len(rows)} times are upper bounds"


def _reason(row: Measurement) -> str:
    return re.sub(r"[\d.]+ ?%?", "...", plain(row.stop_reason or "not told", 60))


def _counted(words: Iterable[str]) -> str:
    found = Counter(plain(word, 60) for word in words).most_common(8)
    return ", ".join(f"{word} ({count})" for word, count in found)

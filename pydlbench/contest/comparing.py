"""The rows of a contest: who is the fastest, who how much slower, and why."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.explain import Entry, explained
from pydlbench.results.accumulators import less_exact
from pydlbench.results.ratios import SLOW
from pydlbench.side_by_side import RatioToBest, clock_beside, ratios

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.contest.host import Host
    from pydlbench.timing.procedure import Samples

__all__ = ["compare"]


def compare(host: Host, entries: Sequence[Entry]) -> None:
    """Make the entries' rows.

    Args:
        host: makes rows, and knows what logs and empty calls tell.
        entries: those with samples.
    """
    timed = {i: entry.samples for i, entry in enumerate(entries) if entry.samples is not None}
    found = ratios(timed, _references({index: entries[index] for index in timed}))
    for index, samples in timed.items():
        entry, ratio = entries[index], found[index]
        if entry.kernel is None:
            continue
        facts, warm = entry.kernel.facts, entry.warm_samples
        clocked, clock_from = _clocked(entry.case, samples, entries)
        row = host.row(entry.case, facts, clocked)
        row = dataclasses.replace(
            row,
            clock_from=clock_from,
            ratio=_ratio(ratio, entries[ratio.best].name),
            warm_s=None if warm is None else warm.summary().median,
            faults=_faults(samples, warm),
            empty_call_s=None if entry.case.backend == "native" else host.empty_call_s(entry.case),
        )
        entry.row = row
    for index, entry in enumerate(entries):
        ratio = found[index]
        if entry.row is not None and ratio.median > SLOW and (ratio.low is None or ratio.low > 1):
            if entry.kernel is not None and "kernel_s" not in entry.kernel.facts["evidence"]:
                variant = entry.kernel.facts["evidence"].get("variant")
                beside = entry.warm if entry.warm_samples is not None else None
                entry.log = host.logged(entry.case, variant, beside)
            entry.row = explained(entry.row, entry, entries[ratio.best])


def _references(entries: Mapping[int, Entry]) -> set[int]:
    """Return whom others may be compared with: who sums as exactly as the native kernel.

    Without a native one it is who sums as exactly as any of them: rounding partial sums to fewer
    bits saves time, and its results are not the same.
    """
    sums = {
        index: entry.kernel.facts["accumulate"]
        for index, entry in entries.items()
        if entry.kernel is not None
    }
    native = {sums[index] for index in sums if entries[index].case.backend == "native"}
    wanted = native or set(sums.values())
    return {index for index, own in sums.items() if not any(less_exact(own, one) for one in wanted)}


def _clocked(case: Case, samples: Samples, entries: Sequence[Entry]) -> tuple[Samples, str | None]:
    """Give samples without a clock that of the native ones on the same cores, and say whose it is.

    A framework's process reads none, and its peak would be that of the clock of the probe, minutes
    ago. With code of other widths the clock may differ; between rounds it differs more.
    """
    if samples.clock_hz is not None or case.on_gpu:
        return samples, None
    for other in entries:
        if other.case.backend == "native" and other.samples is not None:
            clock = clock_beside(samples, other.samples)
            if clock is not None:
                return dataclasses.replace(samples, clock_hz=clock), other.name
    return samples, None


def _ratio(ratio: RatioToBest, best: str) -> dict[str, Any]:
    return {
        "to": best,
        "median": ratio.median,
        "ci_low": ratio.low,
        "ci_high": ratio.high,
        "rounds": ratio.rounds,
    }


def _faults(samples: Samples, warm: Samples | None) -> dict[str, float] | None:
    found = {"default": samples.faults, "warm": None if warm is None else warm.faults}
    known = {name: value for name, value in found.items() if value is not None}
    return known or None

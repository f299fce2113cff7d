"""From what a contest has measured of two backends to the causes in the slow one's row."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydlbench.causes import LOG, Account, Evidence, causes, unexplained_s
from pydlbench.layers import result_role
from pydlbench.side_by_side import saved_s
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.backends.case import Case
    from pydlbench.results import Measurement
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel

__all__ = ["Entry", "explained"]

# Weights of products as they are, plain or transposed, in a kernel's layout.
_UNPACKED = re.compile(r"\bweights g?(kn|nk)\b")


@dataclass(slots=True)
class Entry:
    """One backend's way through a contest.

    Attributes:
        case: what it computes.
        kernel: as users run it.
        warm: the same in a process whose allocator keeps the pages that were freed.
        row: what came of it.
        samples: of ``kernel``.
        warm_samples: of ``warm``, in the same rounds.
        log: what the library itself reports of a call, from a process that does nothing else.
    """

    case: Case
    kernel: RemoteKernel | None = None
    warm: RemoteKernel | None = None
    row: Measurement | None = None
    samples: Samples | None = None
    warm_samples: Samples | None = None
    log: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The backend with its mode: ``torch compiled``."""
        return " ".join(filter(None, (self.case.backend, self.case.mode)))


def explained(row: Measurement, entry: Entry, best: Entry) -> Measurement:
    """Return the row with its causes.

    Args:
        row: of a slow entry, with its ratio to the fastest.
        entry: the slow one.
        best: the fastest one, its row made.
    """
    if row.time is None or row.ratio is None or best.row is None or best.row.time is None:
        return row
    # Of the same rounds: the machine may have been another one in others.
    best_s = row.time.median / row.ratio["median"]
    evidence = Evidence(
        own=_account(entry, row, row.time.median),
        best=_account(best, best.row, best_s),
        kind=entry.case.layer.kind,
        plain_over_packed=_packing(entry, best),
    )
    found = causes(evidence)
    rest = unexplained_s(evidence)
    listed = [cause.to_dict() for cause in found]
    listed.append(
        {
            "cause": "unexplained",
            "seconds": rest,
            "share": rest / evidence.gap_s if evidence.gap_s else 0.0,
            "how": "the gap less the causes above",
        }
    )
    return dataclasses.replace(row, causes=tuple(listed))


def _account(entry: Entry, row: Measurement, time_s: float) -> Account:
    """What is known of where an entry's time goes; ``time_s`` may be that of fewer rounds."""
    if entry.kernel is None or entry.samples is None or row.time is None:
        return Account(time_s=time_s)
    # With a log of the process whose pages are there, no fault is counted in the kernel as well.
    kept = entry.warm if entry.warm_samples is not None else None
    seen = {**(kept or entry.kernel).facts["evidence"], **entry.log}
    saved, faults = None, row.faults or {}
    busy, kept_s = entry.samples.busy, time_s
    if entry.warm_samples is not None:
        saved = saved_s(entry.samples, entry.warm_samples) * time_s / row.time.median
        busy, kept_s = entry.warm_samples.busy, time_s - saved
    on_gpu, roof = entry.case.on_gpu, row.roofline
    # Samples behind a gate and in a graph leave out what the calls cost.
    called = not on_gpu or row.timing not in ("events", "cuda-graph")
    return Account(
        time_s=time_s,
        allocation_s=saved,
        faults=faults["default"] - faults["warm"] if len(faults) == 2 else None,
        empty_s=row.empty_call_s if called else None,
        queued=on_gpu and entry.samples.inner > 1,
        kernel=seen.get("kernel") or entry.kernel.facts["algorithm"],
        **_inside(seen, kept_s),
        detail=seen.get("detail", ""),
        limit_s=None if roof is None else roof.time_s * time_s / row.time.median,
        bound="compute" if roof is None else roof.bound,
        busy=None if on_gpu else busy,
        threads=row.threads or 1,
    )


def _inside(seen: Mapping[str, Any], call_s: float) -> dict[str, Any]:
    """What of a call that takes so long its kernels and reorders are, and how that is known.

    The library's log counts before the backend's own measurement of the kernel alone. Either was
    made beside a call as a whole, when the machine may have been faster or slower than it is now:
    what counts is a part's share of that call.
    """
    logged = seen.get("kernel_s") is not None
    names = ("kernel_s", "reorder_s") if logged else ("alone_s", "alone_reorder_s")
    parts = {
        part: seen[name]
        for part, name in zip(("kernel", "reorder"), names, strict=True)
        if seen.get(name) is not None
    }
    if not parts or not seen.get("call_s"):
        return {}
    # The logged call may have been slower than the one beside it; parts are no more than the whole.
    whole = max(seen["call_s"], sum(parts.values()))
    by = LOG if logged else seen["alone_by"]
    found: dict[str, Any] = {}
    for part, seconds in parts.items():
        share = seconds / whole
        found[f"{part}_s"] = share * call_s
        found[f"{part}_by"] = f"{by}, where it was {100 * share:.0f} % of a call"
    return found


def _packing(entry: Entry, best: Entry) -> float | None:
    """What packed weights bring the fastest backend, where this one has none.

    From the candidates of the native row, if that is the fastest and packs its weights. A library
    that brings its operands into other layouts in each call packs them, whatever it is given; and
    a pass whose result they are has none to pack.
    """
    if entry.kernel is None or best.kernel is None or entry.case.layer.kind != "gemm":
        return None
    if result_role(entry.case.layer, entry.case.pass_) == "weights":
        return None
    facts = entry.kernel.facts
    if not _UNPACKED.search(facts["layout"]) or _reorders(facts["evidence"]):
        return None
    times: dict[bool, float] = {}
    for candidate in best.kernel.facts["candidates"]:
        if candidate["status"] == "ok" and candidate["seconds"] and candidate.get("variant"):
            plain, time = candidate["variant"] == "plain", median(candidate["seconds"])
            times[plain] = min(time, times.get(plain, time))
    if best.case.backend != "native" or len(times) < 2:
        return None
    return times[True] / times[False] if times[True] > times[False] > 0 else None


def _reorders(seen: Mapping[str, Any]) -> bool:
    return bool(seen.get("reorder_s") or seen.get("alone_reorder_s"))

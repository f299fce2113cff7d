"""One problem through several backends: prepared, sampled in turn, and the slow ones explained."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.errors import PydlbenchError, UnsupportedError, WorkerError
from pydlbench.explain import Entry, explained
from pydlbench.results.ratios import SLOW
from pydlbench.rows import empty_row
from pydlbench.side_by_side import (
    Contestant,
    RatioToBest,
    clock_beside,
    ratios,
    sample_in_turn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.results import Measurement
    from pydlbench.timing.policy import Policy
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel

__all__ = ["Host", "contest", "groups"]

# The fewest rounds whose interval of the ratio at 95 % leaves out the two extremes.
_ROUNDS = 9
# Six rounds have such an interval; one or two may be disturbed.
_LEAST_ROUNDS = 8


class Host(Protocol):
    """What a contest needs of a session."""

    @property
    def seed(self) -> int:
        """Of the order of the rounds."""

    def threads(self, case: Case) -> int | None:
        """Return the threads of a row."""

    def prepare(
        self, case: Case, *, warm: bool = False, variant: str | None = None
    ) -> RemoteKernel:
        """Have a case made ready; ``warm`` in a process whose allocator keeps its pages."""

    def sampling_policy(self, case: Case, facts: dict[str, Any]) -> Policy:
        """Return the constants for a kernel."""

    def row(self, case: Case, facts: dict[str, Any], samples: Samples) -> Measurement:
        """Return the row of a timed case, its limits included."""

    def empty_call_s(self, case: Case) -> float | None:
        """Return the seconds of a call that does nothing, made as this case's backend calls."""

    def logged(self, case: Case, variant: str | None) -> dict[str, Any]:
        """Return what the library itself logs of a call, where its backend has not told."""

    def allocates(self, case: Case) -> bool:
        """Whether a backend allocates its outputs in each call, from the C library."""


def groups(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Yield cases that differ in backend and mode only, together; in the order of their first.

    A case that is asked for twice competes with others, not with itself: it opens another group.
    """
    found: list[list[Case]] = []
    open_: dict[Case, list[Case]] = {}
    for case in cases:
        problem = dataclasses.replace(case, backend="native", mode=None)
        group = open_.get(problem)
        if group is None or case in group:
            group = open_[problem] = []
            found.append(group)
        group.append(case)
    yield from found


def contest(host: Host, cases: Sequence[Case]) -> list[Measurement]:
    """Measure one problem's cases in turn and return their rows, in the order given.

    Whoever cannot be prepared, dies or hangs gets a row that says so; the others go on.

    Args:
        host: prepares kernels and makes rows.
        cases: of one group.
    """
    entries = [Entry(case) for case in cases]
    try:
        for number, entry in enumerate(entries):
            _prepare(host, entry, entries[:number])
        _sample(host, entries)
        _compare(host, [entry for entry in entries if entry.samples is not None])
    finally:
        for entry in entries:
            for kernel in (entry.kernel, entry.warm):
                if kernel is not None:
                    with contextlib.suppress(PydlbenchError):  # its worker has died meanwhile
                        kernel.release()
    return [entry.row for entry in entries if entry.row is not None]


def _prepare(host: Host, entry: Entry, before: Sequence[Entry]) -> None:
    """Have an entry made ready; those that its crash takes along are made ready once more."""
    same = [
        one
        for one in before
        if (one.case.backend, one.case.device) == (entry.case.backend, entry.case.device)
    ]
    if _prepare_default(host, entry):
        for one in same:
            if one.kernel is not None:
                _prepare_default(host, one)
    if entry.kernel is not None and host.allocates(entry.case) and _prepare_warm(host, entry):
        for one in same:
            if one.warm is not None:
                _prepare_warm(host, one)


def _prepare_default(host: Host, entry: Entry) -> bool:
    """Prepare as users run it; return whether the worker died of it."""
    entry.kernel = None
    try:
        entry.kernel = host.prepare(entry.case)
    except PydlbenchError as error:
        entry.row = _empty(host, entry.case, error)
        return isinstance(error, WorkerError)
    return False


def _prepare_warm(host: Host, entry: Entry) -> bool:
    """Prepare the same where pages are kept; return whether the worker died of it."""
    entry.warm = None
    if entry.kernel is None:
        return False
    variant = entry.kernel.facts["evidence"].get("variant")
    try:
        entry.warm = host.prepare(entry.case, warm=True, variant=variant)
    except PydlbenchError as error:
        # The column stays empty; the row itself is what was asked for.
        return isinstance(error, WorkerError)
    return False


def _sample(host: Host, entries: Sequence[Entry]) -> None:
    running: list[tuple[Entry, RemoteKernel, bool]] = []
    for entry in entries:
        if entry.kernel is not None:
            running.append((entry, entry.kernel, False))
        if entry.warm is not None:
            running.append((entry, entry.warm, True))
    if not running:
        return
    contestants = [
        Contestant(
            sample=kernel.sample,
            policy=_in_rounds(host.sampling_policy(entry.case, kernel.facts)),
        )
        for entry, kernel, _ in running
    ]
    order = random.Random(host.seed)  # noqa: S311 - an order, not a secret
    outcomes = sample_in_turn(contestants, order)
    for (entry, _, warm), outcome in zip(running, outcomes, strict=True):
        if warm:
            entry.warm_samples = outcome.samples
        elif outcome.samples is None:
            error = outcome.error or UnsupportedError("no samples")
            entry.row = _empty(host, entry.case, error)
        else:
            entry.samples = outcome.samples


def _in_rounds(policy: Policy) -> Policy:
    """Return the policy with rounds enough for a ratio, and within a small budget all the same.

    A dozen processes take turns: each chunk and each warm-up is waited for by all others.
    """
    return dataclasses.replace(
        policy,
        min_rounds=_ROUNDS,
        least_rounds=_LEAST_ROUNDS,
        chunk_s=min(policy.chunk_s, policy.budget_s / _ROUNDS),
        warmup_limit_s=min(policy.warmup_limit_s, policy.budget_s),
    )


def _compare(host: Host, entries: Sequence[Entry]) -> None:
    timed = {i: entry.samples for i, entry in enumerate(entries) if entry.samples is not None}
    found = ratios(timed)
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
                entry.log = host.logged(entry.case, variant)
            entry.row = explained(entry.row, entry, entries[ratio.best])


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


def _empty(host: Host, case: Case, error: PydlbenchError) -> Measurement:
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    return empty_row(case, host.threads(case), status, str(error))

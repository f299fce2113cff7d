"""Operators' times by signature: looked up in a store, and those that it lacks measured apart.

A row is of one operator in one place (framework, mode, version, threads, processor), whatever model
asked for it. It is visited several times, each in a process of its own, on operands that are made
up from its signature; no step is run.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydlbench.backends.steps import requests
from pydlbench.records.forecast import OperatorTime, Place
from pydlbench.records.operator import OperatorsFacts, RecordedCall
from pydlbench.timing.chunk import Request
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median, middle_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.store.reader import Reader
    from pydlbench.timing.chunk import Chunk
    from pydlbench.workers.host import RemoteKernel

#: The operator that stands for a page fault; its row has seconds of one.
FAULT: Final = RecordedCall(signature="page fault of a result", operator="page fault")

_POLICY = Policy()
# Seconds of sampling for each operator in a visit, on the average.
_EACH_S = 0.04
_LEAST, _MOST = 3, 15
# How often so many blocks of so many bytes are written in a visit of page faults.
_REPLAYS = 9
_BLOCK, _BLOCKS = 36 << 20, 8
# Operands that lie in memory together take no more than this share of what is available: what is
# overwritten is there twice. In bytes where nobody knows that; operators where theirs are unknown.
_ROOM = 1 / 8
_TOGETHER = 1 << 30
_NUMBER = 24


@dataclass(slots=True)
class Rows:
    """Rows by signature, and why there are no others.

    Attributes:
        times: by signature.
        fresh: signatures of those that were measured just now.
        refused: by signature, why an operator could not be measured.
    """

    times: dict[str, OperatorTime] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)


def now_utc() -> str:
    """Return the time of day in ISO 8601."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def stored_rows(
    store: Reader | None, place: Place, calls: Sequence[RecordedCall]
) -> dict[str, OperatorTime]:
    """Return the newest stored row of each call, by signature.

    Args:
        store: None knows none.
        place: rows of other places are not looked at.
        calls: those without a row are left out.
    """
    if store is None:
        return {}
    by_key = {place.key("operator", call.signature): call.signature for call in calls}
    newest = store.newest(by_key)
    return {by_key[key]: OperatorTime.from_dict(document) for key, document in newest.items()}


def measure_rows(
    step: StepSpec,
    session: Session,
    place: Place,
    calls: Sequence[RecordedCall],
    rows: Rows,
    *,
    visits: int,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[OperatorTime]:
    """Measure calls that have no row, and yield each row once all of its visits are made.

    The visits of a row lie as far apart as the others' take: all are visited once, then again.

    Args:
        step: how the step runs whose calls they are.
        session: whose workers are used.
        place: of the rows.
        calls: that have no row yet.
        rows: takes them over, and why there are none.
        visits: processes that each call is timed in.
        tell: called with what is done next.

    Raises:
        UnsupportedError: the framework times no calls by signature.
        WorkerError: a worker died.
    """
    # Forwards and backwards a call may be the same.
    once = list({call.signature: call for call in calls}.values())
    available = session.room_bytes(step.device)
    together = list(batches(once, int(_ROOM * available) if available else _TOGETHER))
    visited: dict[str, list[_Visit]] = {}
    for visit in range(visits):
        for number, batch in enumerate(together):
            tell(f"operators {number + 1} of {len(together)}, visit {visit + 1} of {visits}")
            for signature, entry in _visit(step, session, place, batch, rows).items():
                visited.setdefault(signature, []).append(entry)
            if visit + 1 < visits:
                continue
            when = now_utc()
            for call in batch:
                own = visited.get(call.signature)
                if own is None:
                    rows.refused.setdefault(call.signature, "the worker has not timed it")
                    continue
                row = OperatorTime(
                    signature=call.signature,
                    operator=call.operator,
                    place=place,
                    created_utc=when,
                    visits_s=tuple(each.seconds for each in own),
                    enqueue_s=tuple(each.enqueue_s for each in own if each.enqueue_s is not None),
                    samples=sum(each.samples for each in own),
                    disturbed=sum(not each.ours for each in own),
                )
                rows.times[call.signature] = row
                rows.fresh.add(call.signature)
                yield row


def batches(calls: Sequence[RecordedCall], room: int = _TOGETHER) -> Iterator[list[RecordedCall]]:
    """Yield calls whose operands have room together; that of page faults comes alone.

    Args:
        calls: any.
        room: in bytes.
    """
    batch: list[RecordedCall] = []
    size = 0
    for call in calls:
        if call.signature == FAULT.signature:
            yield [call]
            continue
        each = call.bytes or room // _NUMBER
        if batch and size + each > room:
            yield batch
            batch, size = [], 0
        batch.append(call)
        size += each
    if batch:
        yield batch


class _Visit(NamedTuple):
    """What a visit has measured of a call.

    Attributes:
        seconds: of an execution.
        samples: that these are of.
        ours: nobody else used the cores.
        enqueue_s: on a GPU, the host's seconds.
    """

    seconds: float
    samples: int
    ours: bool
    enqueue_s: float | None = None


def _visit(
    step: StepSpec,
    session: Session,
    place: Place,
    batch: Sequence[RecordedCall],
    rows: Rows,
) -> dict[str, _Visit]:
    """Time calls in a new process; return those that were timed, by signature."""
    if batch[0].signature == FAULT.signature:
        return _visit_faults(session)
    # A row has no page faults: how many there are is a property of the step, not of the call.
    worker = session.worker(place.framework, place.device, warm=place.device == "cpu")
    # Other addresses and other pages than the last visit had.
    worker.close()
    try:
        kernel = worker.build(
            requests.request_calls,
            OperatorsFacts,
            spec=step.to_dict(),
            signatures=[each.signature for each in batch],
        )
        rows.refused |= kernel.facts.refused
        names = kernel.facts.names
        if not names:
            return {}
        once = kernel.sample(Request(samples=1, untimed=1))
        each = max(sum(once.seconds), 1e-6)
        count = min(_MOST, max(_LEAST, int(_EACH_S * len(names) / each)))
        chunk, ours = _sampled(kernel, Request(samples=count), session)
    finally:
        worker.close()
    seconds = middle_rounds(chunk.seconds, len(names))
    enqueued: Sequence[float | None] = [None] * len(names)
    if chunk.enqueue_s:
        enqueued = middle_rounds(chunk.enqueue_s, len(names))
    return {
        name: _Visit(taken, count, ours, enqueue_s)
        for name, taken, enqueue_s in zip(names, seconds, enqueued, strict=True)
    }


def _visit_faults(session: Session) -> dict[str, _Visit]:
    """Write large blocks, with fresh pages and with kept ones: the difference is faults."""
    worker = session.worker("native", "cpu")
    worker.close()
    seconds, faults, alone = [], [], []
    try:
        for keeps in (False, True):
            kernel = worker.build(
                requests.request_blocks, OperatorsFacts, size=_BLOCK, count=_BLOCKS, keeps=keeps
            )
            chunk, ours = _sampled(kernel, Request(samples=_REPLAYS, untimed=1), session)
            seconds.append(median(chunk.seconds))
            faults.append(chunk.faults or 0.0)
            alone.append(ours)
    finally:
        worker.close()
    number = faults[0] - faults[1]
    if number < 1:
        return {}
    each = max(0.0, seconds[0] - seconds[1]) / number
    return {FAULT.signature: _Visit(each, _REPLAYS, all(alone))}


def _sampled(kernel: RemoteKernel[Any], request: Request, session: Session) -> tuple[Chunk, bool]:
    """Take a chunk; return it, and whether the cores were ours by bursts before and after it."""
    before = _cores_are_ours(session)
    chunk = kernel.sample(request)
    return chunk, before and _cores_are_ours(session)


def _cores_are_ours(session: Session) -> bool:
    share = session.interference(reads=False).fma
    return share is None or share >= _POLICY.burst_share

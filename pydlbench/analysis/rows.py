"""Times of operators by signature: read from a store, or measured alone.

A row belongs to one operator in one place (framework, mode, version, threads, processor), whatever
the model. It is visited several times, each in a process of its own, with operands that are made up
from its signature; no step is run.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pydlbench.backends.steps import requests
from pydlbench.calls.meaning import Meaning
from pydlbench.devices.gpu.cards import KnownCard, card_named
from pydlbench.records.estimate import OperatorTime, Place
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall
from pydlbench.runner.session import Session
from pydlbench.store.store import Reader
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median, middle_rounds
from pydlbench.workers.host import RemoteKernel

#: A page fault as an operator; its row has the seconds of one.
FAULT: Final = RecordedCall(signature="page fault of a result", operator="page fault")

_POLICY = Policy()
# Mean seconds of sampling for an operator in a visit, and bounds of the number of samples.
_SAMPLING_S = 0.04
_MIN_SAMPLES, _MAX_SAMPLES = 3, 15
# A visit of page faults writes blocks of this size several times.
_FAULT_SAMPLES = 9
_BLOCK_BYTES, _BLOCKS = 36 << 20, 8
# Share of the available memory for the operands of a batch of operators; overwritten operands are
# there twice. Bytes if the available memory is unknown; operators if the size of operands is.
_MEMORY_SHARE = 1 / 8
_BATCH_BYTES = 1 << 30
_BATCH_OPERATORS = 24


@dataclass(slots=True)
class Rows:
    """Rows of operators, and the reasons for missing ones.

    Attributes:
        times: the rows by signature.
        fresh: signatures of rows that were measured in this run.
        refused: why an operator could not be measured, by signature.
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
        store: store with the rows; None if there are no stored rows.
        place: framework, mode, device and so on that the rows belong to.
        calls: calls to look up; calls without a row are left out.
    """
    if store is None:
        return {}
    by_key = {place.key("operator", call.signature): call.signature for call in calls}
    return {
        by_key[key]: OperatorTime.from_dict(document)
        for key, document in store.newest(by_key).items()
    }


def fastest_kernels(
    store: Reader | None, card: KnownCard | None
) -> Callable[[Meaning, str], float | None]:
    """Return a function for the time of the fastest stored kernels of a meaning on a card.

    It takes the meaning and a precision, and returns seconds: the sum over the layers of the
    meaning; None if a layer has no row that is ok.

    Args:
        store: store with rows of layers; None if there is none.
        card: card whose rows count; rows of other machines do not.
    """
    best: dict[tuple[str, str, str], float] = {}
    names = ("status", "fuse", "problem", "pass", "precision", "median")
    for info in () if store is None or card is None else store.runs():
        if card_named(info.machine) is not card:
            continue
        for status, fuse, *key, seconds in store.columns(info.id, names=names) if store else ():
            if status == "ok" and fuse in (None, "none") and seconds:
                place: tuple[str, str, str] = tuple(key)
                best[place] = min(seconds, best.get(place, seconds))

    def best_s(meaning: Meaning, precision: str) -> float | None:
        keys = [(each.layer.problem, each.pass_, precision) for each in meaning.layers]
        return sum(map(best.__getitem__, keys)) if keys and best.keys() >= set(keys) else None

    return best_s


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
    """Measure calls without a row, and yield each row after the last of its visits.

    All calls are visited once, then all again, so that the visits of a row are far apart.

    Args:
        step: the step with these calls.
        session: provides the workers.
        place: framework, mode, device and so on that the rows belong to.
        calls: calls without a row.
        rows: gets the rows, and the reasons for missing ones.
        visits: processes in which each call is timed.
        tell: called with the name of what comes next.

    Raises:
        UnsupportedError: the framework times no calls by signature.
        WorkerError: a worker died.
    """
    # The same call may occur forward and backward.
    once = list({call.signature: call for call in calls}.values())
    available = session.room_bytes(step.device)
    batched = list(batches(once, int(_MEMORY_SHARE * available) if available else _BATCH_BYTES))
    visited: dict[str, list[_Visit]] = {}
    for visit in range(visits):
        for number, batch in enumerate(batched):
            tell(f"operators {number + 1} of {len(batched)}, visit {visit + 1} of {visits}")
            for signature, entry in _visit(step, session, place, batch, rows).items():
                visited.setdefault(signature, []).append(entry)
            if visit + 1 < visits:
                continue
            when = now_utc()
            for call in batch:
                taken = visited.get(call.signature)
                if taken is None:
                    rows.refused.setdefault(call.signature, "the worker has not timed it")
                    continue
                row = OperatorTime(
                    signature=call.signature,
                    operator=call.operator,
                    place=place,
                    created_utc=when,
                    visits_s=tuple(each.seconds for each in taken),
                    enqueue_s=tuple(each.enqueue_s for each in taken if each.enqueue_s is not None),
                    samples=sum(each.samples for each in taken),
                    disturbed=sum(not each.undisturbed for each in taken),
                )
                rows.times[call.signature] = row
                rows.fresh.add(call.signature)
                yield row


def batches(
    calls: Sequence[RecordedCall], room: int = _BATCH_BYTES
) -> Iterator[list[RecordedCall]]:
    """Yield batches of calls whose operands fit into memory; page faults are a batch alone.

    Args:
        calls: all calls.
        room: available memory in bytes.
    """
    batch: list[RecordedCall] = []
    size = 0
    for call in calls:
        if call.signature == FAULT.signature:
            yield [call]
            continue
        each = call.bytes or room // _BATCH_OPERATORS
        if batch and size + each > room:
            yield batch
            batch, size = [], 0
        batch.append(call)
        size += each
    if batch:
        yield batch


class _Visit(NamedTuple):
    """A visit of a call.

    Attributes:
        seconds: time of an execution.
        samples: number of samples.
        undisturbed: whether no other process used the cores.
        enqueue_s: on a GPU, the host's time to enqueue the call.
    """

    seconds: float
    samples: int
    undisturbed: bool
    enqueue_s: float | None = None


def _visit(
    step: StepSpec,
    session: Session,
    place: Place,
    batch: Sequence[RecordedCall],
    rows: Rows,
) -> dict[str, _Visit]:
    """Time calls in a new process; return the visits by signature."""
    if batch[0].signature == FAULT.signature:
        return _visit_faults(session)
    # Kept pages: page faults depend on the step, not on the call.
    worker = session.worker(place.framework, place.device, warm=place.device == "cpu")
    # A new process has other addresses and other pages.
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
        once = kernel.sample(ChunkRequest(samples=1, untimed=1))
        each = max(sum(once.seconds), 1e-6)
        count = min(_MAX_SAMPLES, max(_MIN_SAMPLES, int(_SAMPLING_S * len(names) / each)))
        chunk, undisturbed = _sampled(kernel, ChunkRequest(samples=count), session)
    finally:
        worker.close()
    seconds = middle_rounds(chunk.seconds, len(names))
    enqueued: Sequence[float | None] = [None] * len(names)
    if chunk.enqueue_s:
        enqueued = middle_rounds(chunk.enqueue_s, len(names))
    return {
        name: _Visit(taken, count, undisturbed, enqueue_s)
        for name, taken, enqueue_s in zip(names, seconds, enqueued, strict=True)
    }


def _visit_faults(session: Session) -> dict[str, _Visit]:
    """Write large blocks, in fresh and in kept pages: the difference is the cost of faults."""
    worker = session.worker("native", "cpu")
    worker.close()
    seconds, faults, alone = [], [], []
    try:
        for keeps in (False, True):
            kernel = worker.build(
                requests.request_blocks,
                OperatorsFacts,
                size=_BLOCK_BYTES,
                count=_BLOCKS,
                keeps=keeps,
            )
            chunk, undisturbed = _sampled(
                kernel, ChunkRequest(samples=_FAULT_SAMPLES, untimed=1), session
            )
            seconds.append(median(chunk.seconds))
            faults.append(chunk.faults or 0.0)
            alone.append(undisturbed)
    finally:
        worker.close()
    number = faults[0] - faults[1]
    if number < 1:
        return {}
    each = max(0.0, seconds[0] - seconds[1]) / number
    return {FAULT.signature: _Visit(each, _FAULT_SAMPLES, all(alone))}


def _sampled(
    kernel: RemoteKernel[Any], request: ChunkRequest, session: Session
) -> tuple[Chunk, bool]:
    """Take a chunk; return it, and whether bursts before and after it were undisturbed."""
    before = _is_undisturbed(session)
    chunk = kernel.sample(request)
    return chunk, before and _is_undisturbed(session)


def _is_undisturbed(session: Session) -> bool:
    share = session.interference(reads=False).fma
    return share is None or share >= _POLICY.burst_share

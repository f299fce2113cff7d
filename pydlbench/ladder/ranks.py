"""A data-parallel step: one rank's step, and the messages that its backward pass does not hide.

PyTorch's ``DistributedDataParallel`` gathers gradients in buckets in the order in which they become
ready, and sends a bucket as soon as it is full. Here the recorded calls of a step, whose times sum
up to its forecast, are gone through in their order; each bucket is an all-reduce of ``alpha + S /
B`` that begins when its last gradient is ready and the bucket before it is through. While a message
is under way both it and what is computed are slower, by what ``pydlbench collectives`` has measured
beside each other. A rank has its own cores: ranks that share some are slower than this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError
from pydlbench.ladder.collectives import fits
from pydlbench.records.collectives import CollectivesResult, bus_factor
from pydlbench.records.forecast import RankedForecast
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.ladder.rows import Rows
    from pydlbench.records.collectives import CollectiveFit, OverlapRow
    from pydlbench.records.forecast import ForecastRecord
    from pydlbench.steps.operations import OperatorsFacts
    from pydlbench.store.reader import Reader


#: Of ``DistributedDataParallel`` by default: the first bucket is small, so that sending begins.
FIRST_BYTES: Final = 1 << 20
BUCKET_BYTES: Final = 25 << 20
# Buffers cross in messages of one type each: floating-point numbers, and counts.
_BUFFER_MESSAGES: Final = 2
# Whatever was measured: nothing stands still for ever.
_LEAST_SPEED: Final = 0.01
# A line is followed to so many times the largest size that it was fitted to.
_BEYOND: Final = 4


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are sent together.

    Attributes:
        ready: calls of the step that are made when its last gradient is there.
        bytes: of all of them.
    """

    ready: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What messages between ranks cost, from a stored run.

    Attributes:
        ranks: that it was measured between.
        hosts: machines that they were on.
        reduce: of all-reduce.
        broadcast: of broadcast; None where that was not timed.
        overlap: None where it is not known: nothing is slowed then.
        created_utc: when the run began.
        disturbed: whether others had the cores meanwhile.
    """

    ranks: int
    hosts: int = 1
    reduce: CollectiveFit
    broadcast: CollectiveFit | None
    overlap: OverlapRow | None
    created_utc: str
    disturbed: bool = False

    def reaches(self, buckets: Sequence[Bucket], buffers: int) -> bool:
        """Whether the lines were fitted near what is sent: buckets, and buffers if there are any.

        Args:
            buckets: whose largest is far beyond no line.
            buffers: bytes of them.
        """
        parts = [(self.reduce, max(one.bytes for one in buckets))]
        if buffers:
            if self.broadcast is None:
                return False
            parts.append((self.broadcast, buffers))
        return all(size <= _BEYOND * max(fit.errors) for fit, size in parts)


def stored_links(
    store: Reader | None, processor: str, device: str, threads: int, hosts: int = 1
) -> list[Link]:
    """Return the links of this machine in a store, the newest first; interrupted runs have none.

    Args:
        store: None has none.
        processor: of the ranks.
        device: ``cpu`` or ``cuda:N``.
        threads: of each rank; not asked on a GPU.
        hosts: machines that the ranks are on.

    Raises:
        UsageError: there is none; it names the command that measures one, or other threads of which
            there is one.
    """
    found, others = [], set()
    kind = "cpu" if device == "cpu" else "cuda"
    for info in store.runs() if store is not None else ():
        if info.kind != "collectives":
            continue
        assert store is not None, "there are runs"
        for entry in store.entries(info.id, "collectives"):
            result = CollectivesResult.from_dict(entry.document)
            place = result.rows[0].place
            lines = {one.operation: one for one in fits(result.rows)}
            here = (place.processor, place.device, place.hosts) == (processor, kind, hosts)
            if not here or "all-reduce" not in lines or result.stop_rule == "interrupted":
                continue
            if kind == "cpu" and place.threads != threads:
                others.add(place.threads)
                continue
            found.append(
                Link(
                    ranks=place.ranks,
                    hosts=place.hosts,
                    reduce=lines["all-reduce"],
                    broadcast=lines.get("broadcast"),
                    overlap=result.overlap,
                    created_utc=info.created_utc,
                    disturbed=result.disturbed,
                )
            )
    if not found:
        each = "" if kind != "cpu" else f" with {threads} thread{'s' * (threads > 1)} each"
        where = "this machine" if hosts == 1 else f"{hosts} machines like this"
        near = f"--threads {max(others)}" if others else collectives_command(kind, threads, hosts)
        what = f"no run of collectives between ranks of {where}{each} is kept"
        raise UsageError(f"--ranks: {what}; nearest: {near}")
    return found


def collectives_command(device: str, threads: int, hosts: int, options: str = "") -> str:
    """Return the command that measures what messages cost between two ranks, or one per machine."""
    start = "" if hosts == 1 else f"torchrun --nnodes {hosts} --nproc-per-node 1 --no-python "
    what = " --device cuda" if device != "cpu" else f" --threads {threads}"
    return f"{start}pydlbench collectives{' --ranks 2' if hosts == 1 else ''}{what}{options}"


def fitting_links(
    links: Sequence[Link], found: OperatorsFacts, model: str, command: str
) -> dict[int, Link]:
    """Return by the number of ranks the newest link that knows messages as large as a step's.

    Args:
        links: the newest first.
        found: the step's gradients and buffers.
        model: its name, for the message.
        command: that measures others, up to its sizes.

    Raises:
        UsageError: the step has no gradients, or no link does.
    """
    if not found.gradients:
        raise UsageError(
            f"--ranks: {model} has no gradients that ranks would share; "
            "nearest: --phase forward-backward"
        )
    buckets = buckets_of(found.gradients)
    fitting = {one.ranks: one for one in reversed(links) if one.reaches(buckets, found.buffers)}
    if not fitting:
        largest = max(found.buffers, *(one.bytes for one in buckets))
        what = "all-reduce and broadcast" if found.buffers else "all-reduce"
        size = f"{max(1, -(-largest // (1 << 20)))}M"
        raise UsageError(
            f"--ranks: {model} sends up to {largest} bytes at once, and no kept run of collectives "
            f"has {what} near that; nearest: {command} --sizes 1K..{size}"
        )
    return fitting


def buckets_of(
    gradients: Sequence[tuple[int, int]], first: int = FIRST_BYTES, other: int = BUCKET_BYTES
) -> list[Bucket]:
    """Return the buckets that ``DistributedDataParallel`` fills from its second step on.

    A bucket is closed by the gradient with which it is full, so that it may be much larger
    (``compute_bucket_assignment_by_size`` in ``reducer.cpp``).

    Args:
        gradients: calls that are made when each is ready, and its bytes, in that order.
        first: bytes at which the first one is full.
        other: at which all others are.
    """
    found: list[Bucket] = []
    held = ready = 0
    for ready, size in gradients:
        held += size
        if held >= (other if found else first):
            found.append(Bucket(ready, held))
            held = 0
    if held:
        found.append(Bucket(ready, held))
    return found


def ranked(
    ranks: Sequence[int],
    record: ForecastRecord,
    found: OperatorsFacts,
    rows: Rows,
    links: Mapping[int, Link],
) -> tuple[RankedForecast, ...]:
    """Return the forecast of a step on several ranks.

    Args:
        ranks: each number of ranks.
        record: of one rank's step.
        found: its recorded calls and gradients.
        rows: the calls' times.
        links: what messages cost, by the number of ranks; see :func:`fitting_links`.
    """
    buckets = buckets_of(found.gradients)
    return tuple(_on(one, record, found, rows, buckets, links) for one in ranks)


def _on(
    ranks: int,
    record: ForecastRecord,
    found: OperatorsFacts,
    rows: Rows,
    buckets: Sequence[Bucket],
    links: Mapping[int, Link],
) -> RankedForecast:
    """Forecast the step on so many ranks, from the nearest number that was measured."""
    near = min(links, key=lambda one: (abs(one - ranks), one))
    link = links[near]
    each = record.calibration.call_s if record.calibration is not None else 0.0
    weights = [
        each + (rows.times[call.signature].seconds if call.signature in rows.times else 0.0)
        for call in (found.calls[place] for place in found.order)
    ]
    last = max((n for n, _ in found.gradients), default=0)
    middle = _step(ranks, record.seconds, weights, last, found.buffers, buckets, link, 0)
    low = _step(ranks, record.ci_low, weights, last, found.buffers, buckets, link, -1)
    high = _step(ranks, record.ci_high, weights, last, found.buffers, buckets, link, 1)
    messages = sum(_transfer_s(link, ranks, one.bytes, 0) for one in buckets)
    messages += _buffers_s(link, ranks, found.buffers, 0)
    exposed = middle - record.seconds
    return RankedForecast(
        ranks=ranks,
        seconds=middle,
        ci_low=min(low, middle),
        ci_high=max(high, middle),
        compute_s=record.seconds,
        communication_s=messages,
        exposed_s=exposed,
        hidden=max(0.0, 1 - exposed / messages) if messages > 0 else 0.0,
        efficiency=record.seconds / middle,
        buckets=tuple(one.bytes for one in buckets),
        measured_at=near,
        measured_utc=link.created_utc,
        hosts=link.hosts,
        disturbed=link.disturbed,
    )


def _step(
    ranks: int,
    total_s: float,
    weights: Sequence[float],
    last: int,
    buffers: int,
    buckets: Sequence[Bucket],
    link: Link,
    end: int,
) -> float:
    """Return the seconds of a step: its middle (0), or the lower (-1) or upper (1) end."""
    beside = link.overlap
    compute = transfer = 1.0
    copy_s = 0.0
    if beside is not None:
        compute, transfer = _at(beside.compute, -end), _at(beside.transfer, -end)
        copy_s = _at(beside.copy_s_per_byte, end)
    scale = total_s / sum(weights)
    # What is computed until each bucket is there, its gradients copied into it.
    parts, begin = [], 0
    for one in buckets:
        parts.append(scale * sum(weights[begin : one.ready]) + copy_s / 2 * one.bytes)
        begin = one.ready
    parts.append(scale * sum(weights[begin:last]))
    messages = [_transfer_s(link, ranks, one.bytes, end) for one in buckets]
    backward = makespan(parts, messages, compute, transfer)
    # Then the buckets are copied back, and what follows is the optimizer's.
    rest = scale * sum(weights[last:]) + copy_s / 2 * sum(one.bytes for one in buckets)
    return _buffers_s(link, ranks, buffers, end) + backward + rest


def _at(visits: Sequence[float], end: int) -> float:
    """Return the median of visits (0), the least (-1) or the largest (1)."""
    return median(visits) if end == 0 else (min if end < 0 else max)(visits)


def makespan(
    parts: Sequence[float], messages: Sequence[float], compute: float, transfer: float
) -> float:
    """Return the seconds until everything is computed and all messages are through.

    Args:
        parts: seconds of what is computed before each message is ready, and behind the last.
        messages: seconds of each, in their order, one at a time.
        compute: speed of computing while a message is under way, 1 is undisturbed.
        transfer: speed of a message while something is computed.
    """
    compute, transfer = max(compute, _LEAST_SPEED), max(transfer, _LEAST_SPEED)
    now = sending = 0.0  # seconds of messages that are ready and not through
    for part, message in zip(parts, [*messages, 0.0], strict=True):
        left = part
        if sending > 0:
            # Both until one of the two is done, at their speeds beside each other.
            both = min(left / compute, sending / transfer)
            now += both
            left = max(0.0, left - both * compute)
            sending = max(0.0, sending - both * transfer)
        now += left
        sending += message
    return now + sending


def _transfer_s(link: Link, ranks: int, size: int, end: int) -> float:
    return _message_s(link.reduce, "all-reduce", ranks, size, end)


def _buffers_s(link: Link, ranks: int, size: int, end: int) -> float:
    """Return what sharing buffers costs, which nothing hides."""
    if not size or link.broadcast is None:
        return 0.0
    parts = [size] + [0] * (_BUFFER_MESSAGES - 1)
    return sum(_message_s(link.broadcast, "broadcast", ranks, one, end) for one in parts)


def _message_s(fit: CollectiveFit, operation: str, ranks: int, size: int, end: int) -> float:
    """Return the seconds of a message on so many ranks: the bus's bandwidth stays as it is.

    So does the latency of a hop; a ring has one hop for each other rank.
    """
    alpha, rate = fit.alpha_s, fit.bytes_per_s
    if end and fit.alpha_low is not None and fit.alpha_high is not None:
        alpha = fit.alpha_low if end < 0 else fit.alpha_high
        rate = fit.bytes_high if end < 0 else fit.bytes_low
    per_byte = 1 / rate if rate is not None else 0.0
    per_byte *= bus_factor(operation, ranks) / bus_factor(operation, fit.ranks)
    seconds = alpha * (ranks - 1) / (fit.ranks - 1) + size * per_byte
    return max(0.0, seconds * (1 + end * fit.error_at(size)))

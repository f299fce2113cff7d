"""What is kept of collectives: their times by size, exchanges of pairs, compute beside them."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from pydlbench.records.measurement import Status, TimeSummary
from pydlbench.records.record import Record, one_of
from pydlbench.words import COLLECTIVES

Operation: TypeAlias = Annotated[str, one_of(*COLLECTIVES)]

#: Share of the ranks' cores that others had, beyond which times are upper bounds: as in the
#: timing's policy, less than a disturbed chunk would lose.
OTHERS: Final = 0.05


def bus_factor(operation: str, ranks: int) -> float:
    """Return the bus bandwidth over the algorithm's, as nccl-tests counts it.

    It is what makes the bandwidth that of the slowest link, whatever the number of ranks
    (``doc/PERFORMANCE.md`` of nccl-tests).

    Args:
        operation: one of :data:`pydlbench.words.COLLECTIVES`.
        ranks: that take part.
    """
    if operation == "all-reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in ("all-gather", "reduce-scatter") else 1.0


def partner_of(rank: int, ranks: int, round_: int) -> int:
    """Return whom a rank exchanges messages with in a round; itself where it sits out.

    By the circle method: in ``ranks - 1`` rounds (``ranks`` of an odd number) each rank meets each
    other one once.
    """
    seats = ranks + ranks % 2
    last = seats - 1
    if rank == last:
        found = (round_ * (seats // 2)) % last
    else:
        found = (round_ - rank) % last
        if found == rank:
            found = last
    return rank if found >= ranks else found


class CollectivePlace(Record, frozen=True, kw_only=True):
    """Between whom: rows of another place are never used for a forecast.

    Attributes:
        ranks: processes that take part.
        device: ``cpu`` or ``cuda``: of a GPU each rank has one of its own.
        library: ``gloo`` or ``nccl``.
        threads: of each rank, a core of its own each; 0 on a GPU.
        processor: the CPU's name; the GPU's before it on one.
        hosts: how many machines the ranks are on.
    """

    ranks: int
    device: Annotated[str, one_of("cpu", "cuda")] = "cpu"
    library: Annotated[str, one_of("gloo", "nccl")] = "gloo"
    threads: int = 0
    processor: str = ""
    hosts: int = 1


class CollectiveSpec(Record, frozen=True, kw_only=True):
    """A collective that is to be timed.

    Attributes:
        operation: one of :data:`pydlbench.words.COLLECTIVES`.
        bytes: as nccl-tests counts them: of a rank's buffer; of all-gather the result's, of
            reduce-scatter the operand's.
    """

    operation: Operation
    bytes: int

    @property
    def label(self) -> str:
        """A short name for progress lines."""
        return f"{self.operation} of {self.bytes} bytes"


class CollectiveRow(Record, frozen=True, kw_only=True, rename={"time": "time_s"}):
    """A collective of float32 numbers, of one size. Times in seconds.

    Attributes:
        case: operation and size; its fields stand in the object itself.
        place: between whom; likewise.
        status: ``ok``, ``skipped`` or ``failed``: a result that is wrong is a failure.
        reason: why it is not ok.
        time: of the slowest rank, call by call (JSON: ``time_s``).
        rank_s: median of each rank by itself.
        algorithm_gbps: bytes over the time, in 1e9 bytes per second.
        bus_gbps: the same as the slowest link has it, see :func:`bus_factor`.
        verified: whether every element of every rank's result was compared and is right.
        contended: other work disturbed most samples.
    """

    case: CollectiveSpec
    place: CollectivePlace
    status: Status = "ok"
    reason: str | None = None
    time: TimeSummary | None = None
    rank_s: tuple[float, ...] = ()
    algorithm_gbps: float | None = None
    bus_gbps: float | None = None
    verified: bool = False
    contended: bool = False

    embedded = ("case", "place")
    promised = ("time",)


class PairRow(Record, frozen=True, kw_only=True):
    """Two ranks that exchange messages while the others do so in pairs, too. Times in seconds.

    Attributes:
        first: a rank.
        second: another one.
        hosts: where they are.
        bytes: that each sends.
        visits_s: of the slower one of the two; the median of each visit.
        ratio: to the median of all pairs in the same visits; the median of the visits.
        slow: whether it is an outlier, see :func:`pydlbench.steps.collectives.judged`.
    """

    first: int
    second: int
    hosts: tuple[str, str]
    bytes: int
    visits_s: tuple[float, ...]
    ratio: float = 1.0
    slow: bool = False


class OverlapRow(Record, frozen=True, kw_only=True):
    """Computing beside an all-reduce that is under way, against each of the two alone.

    Attributes:
        bytes: of the all-reduce.
        place: between whom; its fields stand in the object itself.
        compute: speed of matrix products beside it over their speed alone, slowest rank; the median
            of each visit.
        transfer: speed of the all-reduce beside them over its speed alone; likewise.
        copy_s_per_byte: of scaling a gradient into a bucket and copying it back, as
            ``DistributedDataParallel`` does; likewise.
    """

    bytes: int
    place: CollectivePlace
    compute: tuple[float, ...]
    transfer: tuple[float, ...]
    copy_s_per_byte: tuple[float, ...]

    embedded = ("place",)


class CollectivesResult(Record, frozen=True, kw_only=True):
    """What one run has found.

    Attributes:
        rows: by operation and size.
        pairs: of three ranks and more, the slowest first.
        overlap: None where nobody knows.
        others: share of the ranks' cores that other processes had meanwhile; None on a GPU, and
            where nobody counts.
        status: ``ok`` where some row is.
        reason: of the first that is not.
        stop_rule: ``interrupted`` where there were to be more visits.
    """

    rows: tuple[CollectiveRow, ...]
    pairs: tuple[PairRow, ...] = ()
    overlap: OverlapRow | None = None
    others: float | None = None
    status: Status = "ok"
    reason: str | None = None
    stop_rule: str | None = None

    omitted = ("stop_rule",)

    @property
    def disturbed(self) -> bool:
        """Whether others had so much of the cores that times are upper bounds."""
        return (self.others or 0.0) > OTHERS or any(one.contended for one in self.rows)


class CollectiveFit(Record, frozen=True, kw_only=True):
    """The line ``t = alpha + S / B`` through an operation's times, by least relative squares.

    Attributes:
        operation: which.
        ranks: between how many.
        sizes: how many it goes through.
        alpha_s: seconds of a message without bytes.
        alpha_low: lower end of its interval, 95 % of resampled visits; null with too few of them.
        alpha_high: upper end.
        bytes_per_s: B, of the algorithm; times :func:`bus_factor` it is that of the bus. Null where
            times do not grow with the size.
        bytes_low: lower end of its interval; null where there is none.
        bytes_high: upper end; null also where nothing bounds it.
        errors: by size in bytes (the line less what was measured) over what was measured.
    """

    operation: Operation
    ranks: int
    sizes: int
    alpha_s: float
    alpha_low: float | None
    alpha_high: float | None
    bytes_per_s: float | None
    bytes_low: float | None
    bytes_high: float | None
    errors: dict[int, float] = msgspec.field(default_factory=dict)

    @property
    def worst(self) -> float:
        """The largest error by its absolute value."""
        return max(map(abs, self.errors.values()), default=0.0)

    def error_at(self, size: float) -> float:
        """Return the largest error of the measured sizes on both sides of one, absolute."""
        below = [one for one in self.errors if one <= size]
        above = [one for one in self.errors if one >= size]
        beside: list[Any] = [max(below)] if below else []
        beside += [min(above)] if above else []
        return max((abs(self.errors[one]) for one in beside), default=0.0)

"""The ledger of a recorded step: rows that add up to the device's time, each with its limit."""

from typing import Annotated

import msgspec

from pydlbench.records.record import Record, shown
from pydlbench.units import format_bytes, format_count, format_flops, format_seconds, percent


class DeviceTime(Record, frozen=True, kw_only=True):
    """The time line of a device in one step. Times in seconds.

    ``span_s`` is ``busy_s`` and ``idle_s``; ``busy_s`` is ``kernel_s`` without ``overlapped_s``.

    Attributes:
        span_s: from the end of the step before to the end of the step.
        busy_s: at least one kernel, copy, fill or collective ran.
        idle_s: nothing ran.
        kernel_s: sum of all kernels, copies, fills and collectives.
        overlapped_s: time that several of them ran at once, counted once less than they did.
        exposed_copy_s: copies ran, and neither kernels nor collectives.
        exposed_communication_s: collectives ran, and no kernels.
    """

    span_s: float
    busy_s: float
    idle_s: float
    kernel_s: float
    overlapped_s: float
    exposed_copy_s: float
    exposed_communication_s: float


class IdleTime(Record, frozen=True, kw_only=True):
    """Idle time of the device in one step, by its cause.

    Attributes:
        cause: of it.
        seconds: in each step.
    """

    cause: Annotated[str, shown("idle because", right=False)]
    seconds: Annotated[float, shown("time", format_seconds, unit="s")]


class LedgerRow(Record, frozen=True, kw_only=True):
    """A part of the device's time in one step, held against its limit. Times in seconds.

    Attributes:
        device_s: time of its kernels, copies, fills and collectives.
        share: of the step.
        limit_s: least time of those that have a limit; None if none has one.
        unlimited_s: the part of ``device_s`` that has no limit.
        kernels: number of activities of the device.
    """

    device_s: Annotated[float | None, shown("time", format_seconds, unit="s")] = None
    share: Annotated[float | None, shown("of step", percent)] = None
    limit_s: Annotated[float | None, shown("limit", format_seconds, unit="s")] = None
    unlimited_s: Annotated[
        float,
        shown(
            "without limit",
            format_seconds,
            unit="s",
            when=lambda rows: any(row.unlimited_s > 0.01 * (row.device_s or 0.0) for row in rows),
        ),
    ] = 0.0
    kernels: Annotated[float, shown("kernels", format_count)] = 0.0

    @property
    def seconds(self) -> float:
        """Time; 0 if it is not known."""
        return self.device_s or 0.0

    @property
    def above_limit_s(self) -> float:
        """Time above the limit, of what has one."""
        if self.limit_s is None or self.device_s is None:
            return 0.0
        return max(0.0, self.device_s - self.unlimited_s - self.limit_s)


class LedgerCall(LedgerRow, frozen=True, kw_only=True):
    """Calls of one operator on the same shapes, in one part of a model.

    Attributes:
        operator: name of the operator; of a kernel that belongs to no operator, the kernel's.
        module: the part of the model; see :class:`LedgerModule`.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        category: kind of computation: ``product``, ``element-wise``.
        shapes: shapes of the operands, as text; empty if they were not recorded.
        kernel: name of the kernel that takes most of their time.
        count: calls in a step.
        flops: algorithmic FLOPs of all of them, of products and convolutions where there are any;
            None if unknown.
        bytes: least bytes that they read and write; None if unknown.
        limit_missing: why there is no limit; None if there is one.
        contradiction: why the time cannot be below the limit, as it is; None if it is above it, or
            below it by rounding only.
        best_s: time of the fastest kernels measured on such a device for these calls; None if
            the store has none.
    """

    operator: Annotated[str, shown("operator", right=False)]
    module: Annotated[str, shown("module", right=False)] = ""
    direction: Annotated[str, shown("direction", right=False)] = "forward"
    category: Annotated[str, shown("category", right=False)] = "other"
    shapes: Annotated[str, shown("shapes", right=False)] = ""
    kernel: Annotated[str, shown("kernel", right=False)] = ""
    count: Annotated[float, shown("calls", format_count)] = 0.0
    flops: Annotated[float | None, shown("FLOPs", format_flops, unit="FLOP")] = None
    bytes: Annotated[float | None, shown("bytes", format_bytes, unit="B")] = None
    limit_missing: str | None = None
    contradiction: Annotated[
        str | None,
        shown(
            "below limit",
            lambda why: "yes" if why else "",
            right=False,
            when=lambda rows: any(row.contradiction for row in rows),
        ),
    ] = None
    best_s: Annotated[float | None, shown("best known", format_seconds, unit="s")] = None


class LedgerCategory(LedgerRow, frozen=True, kw_only=True):
    """Calls of one kind, or of one direction.

    Attributes:
        category: the kind or the direction.
    """

    category: Annotated[str, shown("category", right=False)]


class LedgerModule(LedgerRow, frozen=True, kw_only=True):
    """A part of a model: modules that repeat are one row.

    Attributes:
        module: names from the root, parted by ``/``.
        depth: number of parts around it.
        repeats: number of modules.
        low_s: time of the fastest of them.
        high_s: time of the slowest of them.
        slowest: the operators that take most of its time.
    """

    module: Annotated[str, shown("module", right=False)]
    depth: int = 0
    repeats: Annotated[int, shown("x")] = 1
    low_s: Annotated[float, shown("each", format_seconds, unit="s")] = 0.0
    high_s: float = 0.0
    slowest: Annotated[str, shown("slowest calls", right=False)] = ""

    @property
    def each(self) -> Annotated[str | None, shown("each")]:
        """The fastest and the slowest of modules that repeat; None of a single one."""
        if self.repeats == 1:
            return None
        return f"{format_seconds(self.low_s)} .. {format_seconds(self.high_s)}"


class LedgerCollective(Record, frozen=True, kw_only=True):
    """A collective that one rank executed.

    Attributes:
        step: number of the step, from 0.
        operator: name of the operator, or of the kernel.
        shapes: shapes of the operands, as text; empty if they were not recorded.
        group: ranks that take part, as the file has them; empty if it does not name them.
        device_s: seconds, with the time of waiting for other ranks.
    """

    step: int
    operator: str
    shapes: str = ""
    group: str = ""
    device_s: float


class DominantPart(Record, frozen=True, kw_only=True):
    """The part of a step in which most of the time above its limit lies.

    Attributes:
        kind: ``category``, ``idle``, ``copy`` or ``communication``.
        name: name of the category; the cause of idle time.
        seconds: above the limit in it; of idle time and communication their length.
        share: of the step's time above its limit.
    """

    kind: str
    name: str
    seconds: float
    share: float


class StepLedger(Record, frozen=True, kw_only=True):
    """A recorded step. Times in seconds, of one step where several were recorded.

    The calls' ``device_s`` and ``unattributed_s`` add up to ``device_time.kernel_s``.

    Attributes:
        file: name of the file.
        source: program that wrote it.
        device: name of the device as recorded; None if the file does not name it.
        card: the known card whose published peaks the limits are computed from; None without one.
        limits_of: the machine whose measured peaks they are computed from instead; else None.
        steps: number of steps.
        step_s: mean time of a step on the device; None if the file has no times.
        step_low_s: time of the shortest step.
        step_high_s: time of the longest step.
        host_step_s: mean time of a step on the host; None if the file does not tell it.
        device_time: the device's time line; None if the file has no times.
        limit_s: least time of all calls that have a limit; None if none has one.
        limited_share: share of the kernels' time that has a limit.
        idle: idle time by cause, the longest first.
        calls: the longest first.
        categories: likewise.
        directions: forward, loss, backward, optimizer.
        modules: the tree of modules, each part followed by its parts.
        dominant: the part in which most of the time above the limit lies.
        unattributed_s: time of kernels that are in no row.
        timeline: the first step in equal parts of time: seconds of each part in which the device
            executed each category, by category.
        outside_s: device time outside of the steps, in all.
        rank: number of the process in its job; None if neither the file nor its name tells it.
        world_size: number of processes of the job; None if the file does not tell it.
        collectives: in the order of the device.
        notes: restrictions for the reader.
    """

    file: str
    source: str
    device: str | None = None
    card: str | None = None
    limits_of: str | None = None
    steps: int = 1
    step_s: float | None = None
    step_low_s: float | None = None
    step_high_s: float | None = None
    host_step_s: float | None = None
    device_time: DeviceTime | None = None
    limit_s: float | None = None
    limited_share: float | None = None
    idle: tuple[IdleTime, ...] = ()
    calls: tuple[LedgerCall, ...] = ()
    categories: tuple[LedgerCategory, ...] = ()
    directions: tuple[LedgerCategory, ...] = ()
    modules: tuple[LedgerModule, ...] = ()
    dominant: DominantPart | None = None
    unattributed_s: float = 0.0
    timeline: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    outside_s: float = 0.0
    rank: int | None = None
    world_size: int | None = None
    collectives: tuple[LedgerCollective, ...] = ()
    notes: tuple[str, ...] = ()


class LedgerDifference(Record, frozen=True, kw_only=True):
    """The difference of a part between two recorded steps. Times in seconds.

    Attributes:
        operator: see :class:`LedgerCall`; ``idle`` and ``overlap`` of the time line.
        module: see :class:`LedgerCall`.
        direction: likewise.
        shapes: likewise; of the second step if they differ.
        a_s: time in the first step.
        b_s: time in the second step.
        why: reason of the difference: ``other kernel``, ``other shapes``, ``other count``,
            ``other speed``, ``only in A``, ``only in B``, ``idle``, ``overlap`` or ``same``.
    """

    operator: Annotated[str, shown("operator", right=False)]
    module: Annotated[str, shown("module", right=False)] = ""
    direction: Annotated[str, shown("direction", right=False)] = ""
    shapes: Annotated[str, shown("shapes", right=False)] = ""
    a_s: Annotated[float, shown("A", format_seconds, unit="s")] = 0.0
    b_s: Annotated[float, shown("B", format_seconds, unit="s")] = 0.0
    why: Annotated[str, shown("because", right=False)] = ""

    derived = ("difference_s",)

    @property
    def difference_s(self) -> Annotated[float, shown("B - A", format_seconds, unit="s")]:
        """Time by which the second step is longer."""
        return self.b_s - self.a_s


class LedgerComparison(Record, frozen=True, kw_only=True):
    """Two recorded steps. The rows' differences add up to that of the steps. Times in seconds.

    Attributes:
        a: file of the first step.
        b: file of the second step.
        a_s: time of the first step.
        b_s: time of the second step.
        rows: the largest difference first.
        notes: restrictions for the reader.
    """

    a: str
    b: str
    a_s: float
    b_s: float
    rows: tuple[LedgerDifference, ...]
    notes: tuple[str, ...] = ()

    derived = ("difference_s",)

    @property
    def difference_s(self) -> float:
        """Time by which the second step is longer."""
        return self.b_s - self.a_s


class RankStep(Record, frozen=True, kw_only=True):
    """The step of one rank of a job. Times in seconds.

    Attributes:
        rank: number of the rank.
        file: its recording.
        step_s: time of a step.
        busy_s: see :class:`DeviceTime`.
        idle_s: likewise.
        exposed_communication_s: likewise.
        wait_s: time that the rank waits for others in collectives.
        last: number of collectives in which it arrives last.
        caused_s: time that the mean rank waits for this one.
    """

    rank: Annotated[int, shown("rank")]
    file: Annotated[str, shown("file", right=False)]
    step_s: Annotated[float, shown("step", format_seconds, unit="s")]
    busy_s: Annotated[float, shown("busy", format_seconds, unit="s")]
    idle_s: Annotated[float, shown("idle", format_seconds, unit="s")]
    exposed_communication_s: Annotated[
        float, shown("exposed communication", format_seconds, unit="s")
    ]
    wait_s: Annotated[float, shown("waits", format_seconds, unit="s")]
    last: Annotated[int, shown("arrives last", format_count)]
    caused_s: Annotated[float, shown("others wait for it", format_seconds, unit="s")]


class CollectiveSkew(Record, frozen=True, kw_only=True):
    """Collectives of one kind in a step, over all ranks. Times in seconds.

    Attributes:
        operator: see :class:`LedgerCollective`.
        shapes: likewise.
        count: number in a step.
        transfer_s: time after the last rank has arrived: the shortest time of any rank.
        wait_s: time that the mean rank waits for the last one.
        longest_wait_s: the longest wait of one rank in one collective.
        last_rank: the rank that arrives last most often.
        last_share: share of the collectives in which it does.
    """

    operator: Annotated[str, shown("collective", right=False)]
    shapes: Annotated[str, shown("shapes", right=False)] = ""
    count: Annotated[float, shown("per step", format_count)]
    transfer_s: Annotated[float, shown("transfer", format_seconds, unit="s")]
    wait_s: Annotated[float, shown("mean wait", format_seconds, unit="s")]
    longest_wait_s: Annotated[float, shown("longest wait", format_seconds, unit="s")]
    last_rank: Annotated[int, shown("last rank")]
    last_share: Annotated[float, shown("in", percent)]


class RankComparison(Record, frozen=True, kw_only=True):
    """The ranks of a job. Times in seconds, of one step.

    Attributes:
        ranks: in the order of their numbers.
        collectives: the one with the longest waits first.
        matched: number of collectives that were found in several files.
        unmatched_s: time of the mean rank in collectives that were found in its file only.
        notes: restrictions for the reader.
    """

    ranks: tuple[RankStep, ...]
    collectives: tuple[CollectiveSkew, ...]
    matched: int
    unmatched_s: float = 0.0
    notes: tuple[str, ...] = ()

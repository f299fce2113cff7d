"""The calls of a step, each timed alone, visited lap by lap and summed: the rung of operators."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pydlbench.backends.steps import operations
from pydlbench.backends.steps.operators import LoggedOperators
from pydlbench.ladder.estimate import nameless
from pydlbench.ladder.laps import fitting
from pydlbench.ladder.ledger import CONVOLVED, GROUPS, LAYERLESS, MKL, OUTSIDE
from pydlbench.ladder.operators import kind_of
from pydlbench.ladder.pipeline import enqueued, period
from pydlbench.ladder.rows import batches
from pydlbench.records.check import OperatorRow, Unreplayed
from pydlbench.records.measurement import time_summary
from pydlbench.records.operator import OperatorsFacts
from pydlbench.timing.statistics import median, middle_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pydlbench.ladder.mapped import MappedCall
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.operator import RecordedCall
    from pydlbench.records.specs import KernelSpec
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.workers.host import RemoteKernel

# By the names that their logs have here.
_ONEDNN: Final = "oneDNN"
_MKL: Final = "MKL"
#: A primitive with its library, as executions are counted.
CONVOLUTION: Final = "oneDNN convolution"

# Operands of all calls lie in memory together if they take no more than this share of what is
# available; else calls are made ready anew in each lap, as many as there is room for. Those of the
# log are there besides, beside whole steps.
_ROOM: Final = 1 / 4
_ROOM_LOGGED: Final = 1 / 8


class ReadyCalls:
    """Distinct calls of a step made ready in a process of its framework, on operands made up.

    Operands of all calls lie in memory together where they have room; else as many as have are made
    ready at a time, anew in each visit.

    Args:
        case: how the step runs.
        session: whose worker is asked.
        calls: those of one signature are one.
        build: makes them ready, see ``backends.steps.operations``.
        parts: values that a sample of each has, the first of which is its time.
        warm: in a process whose C library keeps pages.
        logging: in one of its own, whose libraries are asked what they execute.

    Attributes:
        kernel: of all calls; None where they have no room together.
        facts: what the worker says of calls.
        refused: by signature, why a call could not be made ready.
    """

    def __init__(
        self,
        case: StepSpec,
        session: Session,
        calls: Sequence[RecordedCall],
        build: Callable[..., Any] = operations.prepare_calls,
        parts: int = 1,
        *,
        warm: bool,
        logging: bool = False,
    ) -> None:
        self._case, self._session = case, session
        self._build, self._parts = build, parts
        self._warm, self._logging = warm, logging
        # Forwards and backwards a call may be the same.
        once = list({one.signature: one for one in calls}.values())
        self._batches = [once]
        available = session.room_bytes(case.device)
        if available:
            room = _ROOM_LOGGED if logging else _ROOM
            self._batches = list(batches(once, int(room * available)))
        self._requests: dict[int, Request] = {}
        self.refused: dict[str, str] = {}
        self.facts = OperatorsFacts()
        self.kernel = self._prepare(0) if len(self._batches) == 1 else None

    def visit(self, request: Request | None = None) -> Iterator[tuple[tuple[str, ...], Chunk]]:
        """Sample all calls; yields those of a batch with their chunk, call by call.

        Args:
            request: of each batch; None is what fits, which its first visit finds out.
        """
        for number in range(len(self._batches)):
            kernel = self.kernel or self._prepare(number)
            try:
                if kernel.facts.names:
                    yield (
                        kernel.facts.names,
                        kernel.sample(request or self._fitting(number, kernel)),
                    )
            finally:
                if self.kernel is None:
                    kernel.release()

    def _fitting(self, number: int, kernel: RemoteKernel[OperatorsFacts]) -> Request:
        if number not in self._requests:
            self._requests[number] = fitting(kernel, parts=self._parts)
        return self._requests[number]

    def _prepare(self, number: int) -> RemoteKernel[OperatorsFacts]:
        worker = self._session.worker(
            self._case.framework, self._case.device, warm=self._warm, logging=self._logging
        )
        kernel = worker.build(
            self._build,
            OperatorsFacts,
            # What is fed is an operator of its own.
            case=msgspec.structs.replace(self._case, feed="resident").to_dict(),
            signatures=[one.signature for one in self._batches[number]],
        )
        self.refused |= kernel.facts.refused
        self.facts = kernel.facts
        return kernel


class CallLog(ReadyCalls):
    """Logs what PyTorch's libraries execute in each distinct call of a step, alone, visit by visit.

    Args:
        case: how the step runs.
        session: whose worker is asked: a process of its own, in which pages are kept.
        calls: of the step.

    Attributes:
        what: is logged.
    """

    what: Final = "each call alone"

    def __init__(self, case: StepSpec, session: Session, calls: Sequence[RecordedCall]) -> None:
        self._executions: dict[str, Mapping[str, int]] = {}
        self._counts: Counter[str] = Counter()
        own = [one for one in calls if kind_of(one) != "feed"]
        for one in own:
            self._counts[one.signature] += one.count
        build = operations.prepare_logged_calls
        super().__init__(case, session, own, build, LoggedOperators.PARTS, warm=True, logging=True)
        if self.kernel is None:  # what has no room together is known batch by batch
            for number in range(len(self._batches)):
                self._prepare(number).release()

    @property
    def executions(self) -> Counter[str]:
        """Of a step, by library and primitive."""
        found: Counter[str] = Counter()
        for signature, each in self._executions.items():
            for name, number in each.items():
                found[name] += self._counts[signature] * number
        return found

    def leave_out(self, calls: Iterable[RecordedCall]) -> None:
        """Have calls in no sum."""
        for one in calls:
            self._counts[one.signature] -= one.count

    def convolves(self, signature: str) -> bool:
        """Whether oneDNN logs a convolution in a call."""
        return CONVOLUTION in self._executions.get(signature, {})

    def libraries(self, signature: str) -> set[str] | None:
        """Return the libraries that log something in a call; None where nobody knows."""
        found = self._executions.get(signature)
        return None if found is None else {one.partition(" ")[0] for one in found}

    def logged(self) -> dict[str, float]:
        """Visit all calls; return seconds of a step.

        ``logged_reorders`` and ``logged_convolutions``; and ``logged_around``: what calls that
        oneDNN alone computes take beside the executions that it logs.
        """
        reorders = convolutions = around = 0.0
        for names, chunk in self.visit():
            each = middle_rounds(chunk.seconds, self._parts * len(names))
            for place, name in enumerate(names):
                first = self._parts * place
                plain_s, executed_s, reordered_s, convolved_s = (
                    self._counts[name] * one for one in each[first : first + self._parts]
                )
                reorders += reordered_s
                convolutions += convolved_s
                if self.libraries(name) == {_ONEDNN}:
                    around += plain_s - executed_s
        return {
            "logged_reorders": reorders,
            "logged_convolutions": convolutions,
            "logged_around": around,
        }

    @property
    def computed(self) -> int:
        """How many calls of a step oneDNN alone computes."""
        return sum(n for name, n in self._counts.items() if self.libraries(name) == {_ONEDNN})

    def _prepare(self, number: int) -> RemoteKernel[OperatorsFacts]:
        kernel = super()._prepare(number)
        self._executions |= kernel.facts.executions
        return kernel


def group_calls(
    calls: Iterable[RecordedCall],
    mapped: Mapping[tuple[str, str], MappedCall],
    log: CallLog,
    covered: Callable[[MappedCall], bool],
) -> dict[str, list[RecordedCall]]:
    """Return the calls that have sums of their own; see :data:`pydlbench.ladder.ledger.GROUPS`.

    Args:
        calls: of a step.
        mapped: what stands for those that were timed.
        log: what libraries log of them.
        covered: whether all native layers of a call have a time.
    """
    found: dict[str, list[RecordedCall]] = {name: [] for name in GROUPS}
    for one in calls:
        stands = mapped.get((one.signature, one.direction))
        libraries = log.libraries(one.signature)
        if stands is None or libraries is None:
            continue
        if not covered(stands):
            found[LAYERLESS].append(one)
        elif not libraries:
            found[OUTSIDE].append(one)
        elif libraries == {_MKL}:
            found[MKL].append(one)
        elif log.convolves(one.signature):
            found[CONVOLVED].append(one)
    return found


class CallVisits(ReadyCalls):
    """Visits each distinct call of a step, on operands that are made up from its signature.

    Args:
        case: how the step runs.
        session: whose worker is asked.
        calls: of the step.
        order: of the step, each call by its place among ``calls``; used on a GPU only.
        warm: in a process whose C library keeps pages; else the framework does that by itself.

    Attributes:
        calls: of the step.
        groups: some of these, that have a sum of their own, by its name.
        clock_hz: that a GPU had in the last visit; None where nobody read it.
    """

    def __init__(
        self,
        case: StepSpec,
        session: Session,
        calls: Sequence[RecordedCall],
        *,
        order: Sequence[int] = (),
        warm: bool,
    ) -> None:
        self.calls = tuple(calls)
        self.groups: Mapping[str, Sequence[RecordedCall]] = {}
        self._order = tuple(order)
        self._seconds: dict[str, list[float]] = {}
        self._enqueues: dict[str, list[float]] = {}
        self.clock_hz: float | None = None
        super().__init__(case, session, calls, warm=warm)

    def __call__(self) -> dict[str, float]:
        """Visit all calls and return this lap's sums: the step's, and what stands beside it."""
        clocks: list[float] = []
        for names, chunk in self.visit():
            clocks += chunk.clock_hz
            for into, taken in ((self._seconds, chunk.seconds), (self._enqueues, chunk.enqueue_s)):
                each = zip(names, middle_rounds(taken, len(names)), strict=True) if taken else ()
                for name, seconds in each:
                    into.setdefault(name, []).append(seconds)
        self.clock_hz = median(clocks) if clocks else None
        # Images and labels that come from the host are no call of the step.
        own = [one for one in self.calls if kind_of(one) != "feed"]
        found = {"operators": self._last(own) + self.facts.once_s}
        if fed := [one for one in self.calls if kind_of(one) == "feed"]:
            found["feed"] = self._last(fed)
        for name, some in self.groups.items():
            found[f"operators_{name}"] = self._last(some)
        if self._enqueues:
            host_s, device_s = (
                {name: one[-1] for name, one in taken.items()}
                for taken in (self._enqueues, self._seconds)
            )
            step = enqueued(self.calls, self._order, host_s, device_s)
            found["enqueue"] = sum(one.host_s for one in step)
            found["pipeline"] = period(step)
        return found

    def rows(
        self,
        confidence: float,
        forecast: Mapping[str, float],
        mapped: Mapping[tuple[str, str], MappedCall],
        native: Mapping[KernelSpec, Measurement],
    ) -> tuple[OperatorRow, ...]:
        """Return the calls that were timed.

        Args:
            confidence: of their intervals.
            forecast: what a forecast had for each signature, in seconds.
            mapped: what native layers stand for them.
            native: their rows.
        """
        nameless_rows = {nameless(case): row for case, row in native.items()}
        times = {name: time_summary(one, confidence) for name, one in self._seconds.items()}
        found = []
        for one in self.calls:
            if one.signature not in times:
                continue
            time, stands = times[one.signature], mapped.get((one.signature, one.direction))
            enqueues = self._enqueues.get(one.signature)
            found.append(
                OperatorRow(
                    # What tells a call's direction is no part of its row.
                    **msgspec.structs.asdict(msgspec.structs.replace(one, trained=())),
                    kind=kind_of(one),
                    seconds=time.median,
                    enqueue_s=None if enqueues is None else median(enqueues),
                    ci_low=time.ci_low,
                    ci_high=time.ci_high,
                    forecast_s=forecast.get(one.signature),
                    native_s=None if stands is None else stands.native_s(nameless_rows),
                    flops=None if stands is None else stands.work.flops,
                )
            )
        return tuple(found)

    def unreplayed(self) -> Unreplayed | None:
        """Return what could not be timed; None where all could."""
        lacking = [one for one in self.calls if one.signature not in self._seconds]
        if not lacking:
            return None
        size = sum(one.count * one.bytes for one in self.calls)
        profiled = [one.profiled for one in lacking if one.profiled is not None]
        reasons: dict[str, dict[str, None]] = {}
        for one in lacking:
            why = self.refused.get(one.signature, "the worker has not timed it")
            reasons.setdefault(one.operator, {})[why] = None
        return Unreplayed(
            calls=sum(one.count for one in lacking) / sum(one.count for one in self.calls),
            bytes=sum(one.count * one.bytes for one in lacking) / size if size else None,
            profiled=sum(profiled) if len(profiled) == len(lacking) else None,
            reasons={name: tuple(why) for name, why in reasons.items()},
        )

    def _last(self, calls: Sequence[RecordedCall]) -> float:
        known = ((one.count, self._seconds.get(one.signature)) for one in calls)
        return sum(count * seconds[-1] for count, seconds in known if seconds)

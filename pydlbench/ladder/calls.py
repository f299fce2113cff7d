"""The calls of a step, each timed alone, visited lap by lap and summed: the rung of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pydlbench.ladder.estimate import nameless
from pydlbench.ladder.laps import fitting
from pydlbench.ladder.operators import kind_of, recorded
from pydlbench.ladder.pipeline import enqueued, period
from pydlbench.ladder.rows import batches
from pydlbench.records.check import OperatorRow, Unreplayed
from pydlbench.records.measurement import time_summary
from pydlbench.steps import operations
from pydlbench.steps.operations import OperatorsFacts
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.ladder.mapped import MappedCall
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.operator import RecordedCall
    from pydlbench.records.specs import KernelSpec
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.timing.chunk import Request
    from pydlbench.workers.host import RemoteKernel

# Operands of all calls lie in memory together if they take no more than this share of what is
# available; else calls are made ready anew in each lap, as many as there is room for.
_ROOM: Final = 1 / 4


class CallVisits:
    """Visits each distinct call of a step, on operands that are made up from its signature.

    Args:
        case: how the step runs.
        session: whose worker is asked.
        calls: of the step.
        apart: the nodes of joined ones alone; they are in no sum of the step.
        order: of the step, each call by its place among ``calls``; used on a GPU only.
        warm: in a process whose C library keeps pages; else the framework does that by itself.
    """

    def __init__(
        self,
        case: StepSpec,
        session: Session,
        calls: Sequence[RecordedCall],
        apart: Sequence[RecordedCall] = (),
        *,
        order: Sequence[int] = (),
        warm: bool,
    ) -> None:
        self.calls = tuple(calls)
        self._order = tuple(order)
        self._case, self._session, self._warm = case, session, warm
        self._apart = tuple(apart)
        # Forwards and backwards a call may be the same.
        once = list({one.signature: one for one in (*calls, *apart)}.values())
        self._batches = [once]
        available = session.room_bytes(case.device)
        if recorded(case) and available:
            self._batches = list(batches(once, int(_ROOM * available)))
        self._requests: dict[int, Request] = {}
        self._seconds: dict[str, list[float]] = {}
        self._enqueues: dict[str, list[float]] = {}
        #: That a GPU had in the last visit; None where nobody read it.
        self.clock_hz: float | None = None
        #: By signature, why a call could not be made ready.
        self.refused: dict[str, str] = {}
        #: What the worker says of calls.
        self.facts = OperatorsFacts()
        #: Of all calls; None where they have no room together.
        self.kernel = self._prepare(0) if len(self._batches) == 1 else None

    def __call__(self) -> dict[str, float]:
        """Visit all calls and return this lap's sums: the step's, and what stands beside it."""
        clocks: list[float] = []
        for number in range(len(self._batches)):
            kernel = self.kernel or self._prepare(number)
            try:
                names = kernel.facts.names
                if names:
                    request = self._requests.get(number) or fitting(kernel)
                    self._requests[number] = request
                    chunk = kernel.sample(request)
                    clocks += chunk.clock_hz
                    for place, name in enumerate(names):
                        for into, taken in (
                            (self._seconds, chunk.seconds),
                            (self._enqueues, chunk.enqueue_s),
                        ):
                            if each := taken[place :: len(names)]:
                                into.setdefault(name, []).append(median(each))
            finally:
                if self.kernel is None:
                    kernel.release()
        self.clock_hz = median(clocks) if clocks else None
        # Images and labels that come from the host are no call of the step.
        own = [one for one in self.calls if kind_of(one) != "feed"]
        found = {"operators": self._last(own) + self.facts.once_s}
        if fed := [one for one in self.calls if kind_of(one) == "feed"]:
            found["feed"] = self._last(fed)
        if self._apart:
            single = [one for one in own if ".." not in one.names[0]]
            found["operators_apart"] = self._last([*single, *self._apart]) + self.facts.once_s
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
            mapped: what native layers stand for them; of a subgraph nothing does.
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
                    **msgspec.structs.asdict(one),
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

    def _prepare(self, number: int) -> RemoteKernel[OperatorsFacts]:
        worker = self._session.worker(self._case.framework, self._case.device, warm=self._warm)
        kernel = worker.build(
            operations.prepare_calls,
            OperatorsFacts,
            # What is fed is an operator of its own.
            case=msgspec.structs.replace(self._case, feed="resident").to_dict(),
            signatures=[one.signature for one in self._batches[number]],
        )
        self.refused |= kernel.facts.refused
        self.facts = kernel.facts
        return kernel

    def _last(self, calls: Sequence[RecordedCall]) -> float:
        known = ((one.count, self._seconds.get(one.signature)) for one in calls)
        return sum(count * seconds[-1] for count, seconds in known if seconds)

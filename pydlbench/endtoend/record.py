"""The record of a step: what was run, how long it took, and what was checked before."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.endtoend.facts import Check
from pydlbench.endtoend.step import StepCase
from pydlbench.results import TimeSummary

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["StepRecord"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One end-to-end row. Times in seconds.

    Attributes:
        case: what was run, its batch filled in.
        status: ``ok``, ``skipped`` or ``failed`` (a check that failed among the reasons).
        reason: why it was skipped or failed.
        time: of a step (JSON: ``time_s``).
        images_per_s: images over the median.
        samples_s: every sample in order of time, disturbed ones included.
        rounds_s: median by number of the round; rounds of steps that ran in turn pair up.
        inner: steps per sample.
        faults: page faults per step.
        busy: share of the threads' time in which they had a CPU, spinning included.
        threads: pinned threads of a CPU; None on a GPU.
        checks: what was checked before the timing.
        output: shape of the output.
        parameters: trained elements.
        setup_s: building, tracing, compiling and the first step.
        checks_s: what the checks took.
        library: name and version of the framework.
        environment: what the framework says of itself.
        notes: what a reader has to know.
        warnings: what makes this row less reliable.
        contended: other work disturbed most samples; the time is an upper bound.
        contention_reason: the counters behind that, in words.
        discarded: disturbed samples that were left out.
        stop_reason: why sampling stopped, in words.
    """

    case: StepCase
    status: str
    reason: str | None = None
    time: TimeSummary | None = None
    images_per_s: float | None = None
    samples_s: tuple[float, ...] = ()
    rounds_s: Mapping[int, float] = dataclasses.field(default_factory=dict)
    inner: int | None = None
    faults: float | None = None
    busy: float | None = None
    threads: int | None = None
    checks: tuple[Check, ...] = ()
    output: tuple[int, ...] = ()
    parameters: int | None = None
    setup_s: float | None = None
    checks_s: float | None = None
    library: str | None = None
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    contended: bool = False
    contention_reason: str | None = None
    discarded: int = 0
    stop_reason: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the row has a time that may be believed (perhaps a contended one)."""
        return self.status == "ok" and self.time is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: the case's fields first, then the record's."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        del fields["case"]
        time = fields.pop("time")
        fields["checks"] = [one.to_dict() for one in self.checks]
        fields["rounds_s"] = {str(index): seconds for index, seconds in self.rounds_s.items()}
        fields["environment"] = dict(self.environment)
        for name, value in fields.items():
            if isinstance(value, tuple):
                fields[name] = list(value)
        return {
            **self.case.to_dict(),
            **fields,
            "time_s": None if time is None else time.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepRecord:
        """Read :meth:`to_dict`'s output back; unknown names are ignored."""
        of_case = {one.name for one in dataclasses.fields(StepCase)}
        own = {one.name for one in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in own}
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = tuple(value)
        values["checks"] = tuple(Check.from_dict(one) for one in data.get("checks", ()))
        rounds = data.get("rounds_s", {})
        values["rounds_s"] = {int(index): seconds for index, seconds in rounds.items()}
        if data.get("time_s") is not None:
            values["time"] = TimeSummary.from_dict(data["time_s"])
        case = StepCase.from_dict({name: data[name] for name in data if name in of_case})
        return cls(case=case, **values)

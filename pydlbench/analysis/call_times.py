"""From a table of visits to the times of each call of a step, round by round.

The time of a step is that of the real step in the round. Each call has the same share of it as of
the traced step of that round, so that calls and the time between them belong to one execution and
sum to the step; a round without a traced step has the mean shares. On a GPU kernels have their
times in the traced step, and the rest of the step is idle time. Each call also has its time alone,
the time of its native layers, both of the same round, and their rooflines at that round's clock.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pydlbench.grouping import group_by
from pydlbench.records.trace import ProgramCall
from pydlbench.steps.traced import Rounds, scaled
from pydlbench.study.table import SampleTable, Series, Visit
from pydlbench.timing.statistics import median

#: Subjects of the table: real steps; steps in a process that keeps freed pages, whose parts are the
#: seconds of their calls; traced steps, with such parts; and calls alone, whose parts are the
#: seconds of the distinct calls. Each native kernel is a subject of its own.
STEP: Final = "step"
STEP_KEPT: Final = "kept pages"
TRACED: Final = "traced"
ALONE: Final = "alone"

#: The term for the time that operands in caches save.
CACHES: Final = "caches"
#: The term for the gap between two launches: a part of calls alone, and in a step between calls.
LAUNCH_GAPS: Final = "launch gaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeKernel:
    """A native kernel that corresponds to a call, or to a part of one.

    Attributes:
        subject: key of the kernel in the table.
        limit_s: roofline of the kernel, in seconds; None if there is no roofline: in that case the
            kernel is its own limit.
        limit_hz: the clock of that roofline; None where the roofline does not depend on the clock.
        nominal_s: roofline at the nominal boost clock of a GPU, in seconds; None where it is not
            known, or the roofline does not depend on the clock.
    """

    subject: Hashable
    limit_s: float | None = None
    limit_hz: float | None = None
    nominal_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The parts of a step, and the columns of the table that belong to them.

    Attributes:
        calls: the calls in their order; their seconds are the parts of traced steps.
        alone: signatures of the calls alone, in the order of their parts.
        repeats: executions of each call alone in a row, with one part each. The last is the time
            alone, with operands in caches; the first, behind other calls, minus the last is the
            experiment on caches. There is none with 1. On a GPU all but the last are seconds of
            kernels by a profiler, like the parts of a traced step.
        gaps: on a GPU, names of the parts of a step besides the kernels of its calls. A traced step
            has their seconds behind those of the calls, followed by the host's seconds in each
            call.
        native: the native kernels of one execution, by signature and direction; an empty sequence
            for a view. Other calls have no native layer.
        in_place: signature and direction of calls that overwrite an operand where the native layers
            do not. These touch half of the memory, and take a half to a quarter of the time on
            activations of ResNet-50 (ReLU), so that the native layer is not comparable.
        lacks: by operator, why its calls have no native layer, or could not be run alone.
        limits: roofline of a call in seconds, by signature and direction, where native layers were
            not timed.
        no_limits: why ``limits`` is empty; empty if it is not, or if the reason is not known.
        later: why neither native layers nor calls alone were timed; empty if they were.
    """

    calls: Sequence[ProgramCall]
    alone: Sequence[str] = ()
    repeats: int = 1
    gaps: Sequence[str] = ()
    native: Mapping[tuple[str, str], Sequence[NativeKernel]] = field(default_factory=dict)
    in_place: Collection[tuple[str, str]] = frozenset()
    lacks: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[tuple[str, str], float] = field(default_factory=dict)
    no_limits: str = ""
    later: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A measurement that explains a part of a difference.

    Attributes:
        term: the cause.
        level: the upper level of the difference: ``alone``, ``in_context`` or ``step``.
        seconds: time that the cause takes in a step, by round; other rounds count with the median.
        how: the way in which it was measured.
        signatures: signatures of the calls that the experiment covers; None covers all.
        whole: calls whose whole difference belongs to this cause, and gets its name.
    """

    term: str
    level: str
    seconds: Mapping[int, float]
    how: str
    signatures: frozenset[str] | None = None
    whole: frozenset[str] = frozenset()


class CallSeconds(NamedTuple):
    """The times of one call in one round; None if unknown."""

    in_context: float
    alone: float | None
    native: float | None
    limit: float | None
    nominal: float | None = None

    @property
    def lost_clock(self) -> float:
        """The time by which the limit is longer because the clock was below the nominal one."""
        if self.limit is None or self.nominal is None:
            return 0.0
        return self.limit - self.nominal


class CallTimes:
    """The times of calls, round by round.

    Attributes:
        step_s: time of the step, by round.
        calls: times of each call of the step, by round.
        in_step: the rounds of the step without a trace: its calls, and on a GPU also the gaps and
            the host in each call.
        steps: the subjects that decide whether a round was disturbed.
        in_a_row: experiments on caches, on a GPU also on launches; none where calls ran once in a
            row.
    """

    def __init__(self, table: SampleTable, parts: StepParts) -> None:
        steps, traced = table.series(STEP), table.series(TRACED)
        count, others = len(parts.calls), len(parts.gaps)
        width = count + (others + count if others else 0)
        rows = {
            each.round: [traced.by_round()[each.round], *_seconds(each, width)]
            if others
            else [1.0, *_shares(each, width)]
            for each in traced
        }
        self.step_s = dict(sorted(steps.by_round().items()))
        self.in_step = _without_trace(self.step_s, rows, parts)
        in_context = dict(zip(self.step_s, self.in_step.calls_s, strict=True))
        self.steps: list[Series] = [steps, traced]
        self.steps += [table.series(name) for name in (STEP_KEPT, ALONE) if name in table]
        repeated: dict[str, list[dict[int, float]]] = {}
        if parts.alone and ALONE in table:
            repeated = by_part(table.series(ALONE), parts.alone, parts.repeats)
        alone = {name: times[-1] for name, times in repeated.items()}
        self.in_a_row: list[Experiment] = []
        if repeated and parts.repeats > 1:
            kept = table.series(STEP_KEPT) if STEP_KEPT in table else None
            kept_s = in_calls(kept, kept) if kept else {}
            self.in_a_row += _in_a_row(parts, repeated, kept_s or in_context)
        subjects = {each.subject for some in parts.native.values() for each in some}
        native = {subject: table.series(subject) for subject in subjects if subject in table}
        seconds = {each: series.by_round() for each, series in native.items()}
        clocks = {each: series.clocks_by_round() for each, series in native.items()}

        def layers(
            call: ProgramCall, number: int
        ) -> tuple[float | None, float | None, float | None]:
            """Return the time of a call's native layers in a round, and their two limits."""
            key = call.signature, call.direction
            own = parts.native.get(key)
            if own is None or any(each.subject not in native for each in own):
                return None, parts.limits.get(key), None
            native_s = limit_s = nominal_s = 0.0
            for entry in own:
                taken = in_round(seconds[entry.subject], number)
                native_s += taken
                own_s = _limit(entry, taken, clocks[entry.subject], number)
                limit_s += own_s
                nominal_s += own_s if entry.nominal_s is None else min(own_s, entry.nominal_s)
            return native_s, limit_s, nominal_s

        self.calls: dict[int, list[CallSeconds]] = {}
        for number in self.step_s:
            seconds_of: dict[tuple[str, str], tuple[float | None, ...]] = {}
            for call in parts.calls:
                key = call.signature, call.direction
                if key not in seconds_of:
                    own = alone.get(call.signature)
                    alone_s = None if own is None else in_round(own, number)
                    seconds_of[key] = (alone_s, *layers(call, number))
            self.calls[number] = [
                CallSeconds(taken, *seconds_of[call.signature, call.direction])
                for call, taken in zip(parts.calls, in_context[number], strict=True)
            ]


def _without_trace(
    steps_s: Mapping[int, float], rows: Mapping[int, Sequence[float]], parts: StepParts
) -> Rounds:
    """Return rounds of the step, divided like the traced step of the same round.

    Args:
        steps_s: time of the step, by round.
        rows: a traced step and its parts, by round; other rounds have the mean.
        parts: parts of the step.
    """
    mean = _mean(rows.values())
    flat: list[float] = []
    for number, step_s in steps_s.items():
        traced_s, *parts_s = rows.get(number, mean)
        flat += traced_s, step_s, *parts_s
    return scaled(Rounds.of_seconds(flat, len(parts.calls), len(parts.gaps)))


def _mean(rows: Collection[Sequence[float]]) -> list[float]:
    """Return the mean of each column."""
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _shares(visit: Visit, parts: int) -> list[float]:
    """Return each part's share of its traced step, the mean over a visit."""
    _check_parts(visit, parts)
    return _mean(
        [
            [seconds / step_s for seconds in each]
            for each, step_s in zip(visit.parts, visit.seconds, strict=True)
        ]
    )


def _seconds(visit: Visit, parts: int) -> list[float]:
    """Return each part's seconds, the mean over a visit.

    On a GPU the times of kernels do not depend on how long the device waits for the host in a
    traced step; their shares of the step do, by up to a half.
    """
    _check_parts(visit, parts)
    return _mean(visit.parts)


def _check_parts(visit: Visit, parts: int) -> None:
    if not visit.parts or any(len(part) != parts for part in visit.parts):
        raise ValueError(f"a traced step without the seconds of its {parts} parts")


def in_calls(traced: Series, steps: Series) -> dict[int, list[float]]:
    """Return the time of each call in steps, by its share of the traced steps of the same round.

    Args:
        traced: visits of traced steps, with a part for each call; visits without parts are left
            out.
        steps: visits of the steps whose time is divided; those of a round without a traced step by
            the mean share.
    """
    shares = {visit.round: _shares(visit, len(visit.parts[0])) for visit in traced if visit.parts}
    mean = _mean(shares.values())
    return {
        number: [share * step_s for share in shares.get(number, mean)]
        for number, step_s in steps.by_round().items()
        if shares
    }


def by_part(
    series: Series, names: Sequence[str], repeats: int
) -> dict[str, list[dict[int, float]]]:
    """Return the times of calls by name, for each execution in a row, by round.

    Args:
        series: visits with parts: for each call as many as it has executions in a row.
        names: names of the calls.
        repeats: executions of each call in a row.
    """
    by_term: dict[str, list[dict[int, float]]] = {
        name: [{} for _ in range(repeats)] for name in names
    }
    for visit in series:
        # The median for each call: an outlier would be multiplied by the number of its calls.
        taken = map(median, zip(*visit.parts, strict=True))
        every = [times for name in names for times in by_term[name]]
        for times, seconds in zip(every, taken, strict=True):
            times[visit.round] = seconds
    return by_term


def _in_a_row(
    parts: StepParts,
    repeated: Mapping[str, Sequence[Mapping[int, float]]],
    in_context: Mapping[int, Sequence[float]],
) -> list[Experiment]:
    """Return the experiments on calls that run several times in a row."""
    if not parts.gaps:
        return [_caches(parts, repeated, in_context)]
    kernels = {name: times[:-1] for name, times in repeated.items()}
    return [_launch_gaps(parts, repeated, in_context), _caches(parts, kernels, in_context)]


def _caches(
    parts: StepParts,
    repeated: Mapping[str, Sequence[Mapping[int, float]]],
    in_context: Mapping[int, Sequence[float]],
) -> Experiment:
    """Return the cost of operands that are not in caches, if calls take longer in a step.

    It is the difference of a call behind other calls, with no operand in caches, and the same call
    right again. In a step some operands are in caches: the results of the call before. So this is
    an upper bound for each call, limited to its difference in the step, in the median.

    Args:
        parts: parts of the step.
        repeated: the times of calls alone, for each execution in a row.
        in_context: the times of calls in a step, by round; if possible in one that keeps its pages,
            so that the cost of fresh memory is not included.
    """
    places = [place for place, call in enumerate(parts.calls) if call.signature in repeated]
    seconds = dict.fromkeys(in_context, 0.0)
    for signature, own in group_by(places, lambda place: parts.calls[place].signature).items():
        first, *_, last = repeated[signature]
        cold = {each: in_round(first, each) - in_round(last, each) for each in seconds}
        longer_s = median(
            sum(calls_s[place] for place in own) / len(own) - in_round(last, number)
            for number, calls_s in in_context.items()
        )
        cold_s = median(cold.values())
        share = min(1.0, max(0.0, longer_s) / cold_s) if cold_s > 0 else 0.0
        for number in seconds:
            seconds[number] += len(own) * share * cold[number]
    return Experiment(
        term=CACHES,
        level="in_context",
        seconds=seconds,
        how="each call alone, right behind others minus once more in a row; no more than it takes "
        "longer in the step",
    )


def _launch_gaps(
    parts: StepParts, repeated: Mapping[str, Sequence[Mapping[int, float]]], rounds: Iterable[int]
) -> Experiment:
    """Return the gaps between launches of calls alone: kernels minus calls in a row.

    Args:
        parts: parts of the step.
        repeated: times of calls alone: the last by the sampler, the one before it the time of the
            kernels.
        rounds: rounds of the step.
    """
    counted = Counter(call.signature for call in parts.calls if call.signature in repeated)
    seconds = {
        number: sum(
            count * (in_round(repeated[name][-2], number) - in_round(repeated[name][-1], number))
            for name, count in counted.items()
        )
        for number in rounds
    }
    return Experiment(
        term=LAUNCH_GAPS,
        level="in_context",
        seconds=seconds,
        how="kernels of calls alone, by the profiler that tells what they take in the step, minus "
        "those calls timed in a row, with what lies between two launches",
    )


def _limit(kernel: NativeKernel, taken_s: float, clocks: Mapping[int, float], number: int) -> float:
    if kernel.limit_s is None:
        return taken_s
    if kernel.limit_hz is None or not clocks:
        return kernel.limit_s
    return kernel.limit_s * kernel.limit_hz / in_round(clocks, number)


def in_round(values: Mapping[int, float], number: int) -> float:
    """Return the value of a round; the median for a round without one."""
    return values[number] if number in values else median(values.values())

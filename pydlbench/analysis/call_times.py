"""From a table of visits to what each call of a step takes, round by round.

In a round, a step takes what real steps took in it; each of its calls takes the same share of it as
of the traced step that ran in that round, so that calls and what is between them are of one
execution and sum to the step. On a GPU kernels take what they take in the traced step, and the
device is idle in what they leave of the step. Beside each call stand what it takes alone and what
the native layers take that stand for it, of the same round, and their rooflines at that round's
clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from pydlbench.grouping import grouped
from pydlbench.steps.traced import Rounds, scaled
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

    from pydlbench.records.trace import ProgramCall
    from pydlbench.study.table import Series, Table, Visit

#: Subjects of the table: real steps; those whose C library gives no freed page back to the system,
#: whose parts are the seconds of their calls; traced steps with such parts; and calls alone, whose
#: parts are the seconds of the distinct ones. Native kernels are subjects by themselves.
STEP: Final = "step"
STEP_KEPT: Final = "kept pages"
TRACED: Final = "traced"
ALONE: Final = "alone"

#: The term of what operands in caches save.
CACHES: Final = "caches"
#: The term of what lies between two launches, which calls have alone, and in a step what is between
#: them has.
LAUNCH_GAPS: Final = "launch gaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeKernel:
    """A native kernel that stands for a call, or a part of one.

    Attributes:
        subject: its key in the table.
        limit_s: its roofline, in seconds; None where it has none: it is its own limit then.
        limit_hz: the clock that this was at, where it follows the clock; None where it does not.
    """

    subject: Hashable
    limit_s: float | None = None
    limit_hz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """What a step consists of, and which columns of the table are whose.

    Attributes:
        calls: of the step in their order: the parts of traced steps.
        alone: signatures: the parts of calls alone.
        repeats: how often each of these runs in a row, with as many parts: the last is its time
            alone, with operands in caches; what the first takes longer, behind other calls, is the
            experiment on caches. With 1 there is none. On a GPU all but the last are of its kernels
            by a profiler, as the parts of a traced step are.
        gaps: on a GPU, what a step has besides the kernels of its calls: behind those of the calls
            the parts of a traced step are theirs, and then the host's seconds in each call.
        native: by signature and direction the native kernels of one execution; none of a view. A
            call that is not in it has no native layer.
        in_place: signature and direction of calls that overwrite an operand, where the native
            layers do not: they touch half of the memory, and take a half to a quarter of the time
            on activations of ResNet-50 (ReLU). So the native layer is no kernel of the same.
        lacks: by operator, why its calls have no native layer, or could not be run alone.
    """

    calls: Sequence[ProgramCall]
    alone: Sequence[str] = ()
    repeats: int = 1
    gaps: Sequence[str] = ()
    native: Mapping[tuple[str, str], Sequence[NativeKernel]] = field(default_factory=dict)
    in_place: Collection[tuple[str, str]] = frozenset()
    lacks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What was measured to explain a part of a difference.

    Attributes:
        term: the cause that it is about.
        level: it lies below this one: ``alone``, ``in_context`` or ``step``.
        seconds: of a step, by round; rounds without it have its median.
        how: it was measured.
        signatures: of the calls that it is about; None is all.
        whole: of those whose difference is all its own, and is named by it rather than explained.
    """

    term: str
    level: str
    seconds: Mapping[int, float]
    how: str
    signatures: frozenset[str] | None = None
    whole: frozenset[str] = frozenset()


class CallSeconds(NamedTuple):
    """What one call takes in one round; None where that is not known."""

    in_context: float
    alone: float | None
    native: float | None
    limit: float | None


class CallTimes:
    """What calls take, round by round.

    Attributes:
        step_s: of the step, by round.
        calls: of each call of the step, by round.
        in_step: the same rounds of the step without a trace: of its calls, on a GPU also of what
            else it has, and of the host in each call.
        steps: the subjects that decide whether a round was disturbed.
        in_a_row: experiments on caches, on a GPU also on launches; none where calls ran only once
            in a row.
    """

    def __init__(self, table: Table, parts: StepParts) -> None:
        steps, traced = table.series(STEP), table.series(TRACED)
        count, others = len(parts.calls), len(parts.gaps)
        width = count + (others + count if others else 0)
        traced_s = traced.by_round()
        rows = {
            each.round: _seconds(each, width)
            if others
            else [share * traced_s[each.round] for share in _shares(each, width)]
            for each in traced
        }
        plain = steps.by_round()
        self.step_s = {number: plain[number] for number in sorted(plain.keys() & rows.keys())}
        if not self.step_s:
            raise ValueError("steps and traced steps have no round in common")
        self.in_step = _without_trace(self.step_s, traced_s, rows, parts)
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

        def layers(call: ProgramCall, number: int) -> tuple[float | None, float | None]:
            """Return what native layers take in a round, and their limit."""
            own = parts.native.get((call.signature, call.direction))
            if own is None or any(each.subject not in native for each in own):
                return None, None
            native_s = limit_s = 0.0
            for entry in own:
                taken = in_round(seconds[entry.subject], number)
                native_s += taken
                limit_s += _limit(entry, taken, clocks[entry.subject], number)
            return native_s, limit_s

        self.calls: dict[int, list[CallSeconds]] = {}
        for number in self.step_s:
            seconds_of: dict[tuple[str, str], tuple[float | None, float | None, float | None]] = {}
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
    steps_s: Mapping[int, float],
    traced_s: Mapping[int, float],
    rows: Mapping[int, Sequence[float]],
    parts: StepParts,
) -> Rounds:
    """Return what steps consist of, by the parts of the traced step of the same round."""
    flat: list[float] = []
    for number, step_s in steps_s.items():
        flat += traced_s[number], step_s, *rows[number]
    return scaled(Rounds.of_seconds(flat, len(parts.calls), len(parts.gaps)))


def _shares(visit: Visit, parts: int) -> list[float]:
    """Return each part's share of the traced step that it is of: the mean of a visit's."""
    _check_parts(visit, parts)
    rows = [
        [seconds / step_s for seconds in each]
        for each, step_s in zip(visit.parts, visit.seconds, strict=True)
    ]
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _seconds(visit: Visit, parts: int) -> list[float]:
    """Return each part's seconds: the mean of a visit's.

    On a GPU kernels take what they take, however long the host lets the device wait in a traced
    step: their shares of it differ by half where they do not.
    """
    _check_parts(visit, parts)
    return [sum(column) / len(visit.parts) for column in zip(*visit.parts, strict=True)]


def _check_parts(visit: Visit, parts: int) -> None:
    if not visit.parts or any(len(part) != parts for part in visit.parts):
        raise ValueError(f"a traced step without the seconds of its {parts} parts")


def in_calls(traced: Series, steps: Series) -> dict[int, list[float]]:
    """Return what each call takes in steps, by its share of the traced steps of the same round.

    Args:
        traced: with a part for each call; visits without any are left out.
        steps: that the shares are of.
    """
    step_s = steps.by_round()
    return {
        visit.round: [share * step_s[visit.round] for share in _shares(visit, len(visit.parts[0]))]
        for visit in traced
        if visit.parts and visit.round in step_s
    }


def by_part(
    series: Series, names: Sequence[str], repeats: int
) -> dict[str, list[dict[int, float]]]:
    """Return what calls take by round, by name, each time that they run in a row.

    Args:
        series: whose visits have parts, as many of each call as it runs in a row.
        names: of the calls.
        repeats: how often each runs in a row.
    """
    by_term: dict[str, list[dict[int, float]]] = {
        name: [{} for _ in range(repeats)] for name in names
    }
    for visit in series:
        # Each call has its own median: a hiccup would be multiplied by the number of its calls.
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
    """Return what calls tell that run several times in a row; see :func:`_caches`."""
    if not parts.gaps:
        return [_caches(parts, repeated, in_context)]
    kernels = {name: times[:-1] for name, times in repeated.items()}
    return [_launch_gaps(parts, repeated, in_context), _caches(parts, kernels, in_context)]


def _caches(
    parts: StepParts,
    repeated: Mapping[str, Sequence[Mapping[int, float]]],
    in_context: Mapping[int, Sequence[float]],
) -> Experiment:
    """Return what calls take longer behind others than right again, as far as they do in a step.

    Behind others they find none of their operands in caches, in a step some: what the call before
    has written. So this is an upper bound for each call, and no more than it takes longer there in
    the median.

    Args:
        parts: of the step.
        repeated: what calls alone take, each time in a row.
        in_context: what calls take in a step, by round: in one that keeps its pages, so that it is
            not what fresh memory costs.
    """
    places = [place for place, call in enumerate(parts.calls) if call.signature in repeated]
    seconds = dict.fromkeys(in_context, 0.0)
    for signature, own in grouped(places, lambda place: parts.calls[place].signature).items():
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
    """Return what kernels of calls take less than the calls do in a row, launch behind launch.

    Args:
        parts: of the step.
        repeated: what calls take alone: the last by the sampler, the one before of its kernels.
        rounds: of the step.
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
    """Return what somebody had in a round; in one that it was not in, its median."""
    return values[number] if number in values else median(values.values())

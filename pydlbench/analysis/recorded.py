"""From a recorded step to its distinct problems, weighted by count and time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydlbench.calls.meaning import LayerPass, Meaning
from pydlbench.grouping import group_by
from pydlbench.records.recorded import RecordedProblem, RecordedSteps
from pydlbench.records.trace import Dominant, ProgramCall
from pydlbench.steps.traced import (
    Rounds,
    in_context,
    meaning_of_call,
    precision_of,
)
from pydlbench.traces.recorded import RecordedTrace
from pydlbench.words import TYPE_PRECISIONS

#: The largest problems, which make this share of the time, are timed one by one; others are named.
TIMED_SHARE: Final = 0.95
_SHAPES: Final = re.compile(r"(?:\w\[|\"shape\":\[)([0-9, ]*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProblem:
    """Equal calls of a step.

    Attributes:
        call: one of the calls.
        meaning: meaning of the call.
        modules: the modules that make the calls.
        count: number of the calls in a step.
        seconds: total time of the calls; None if they were not timed.
    """

    call: ProgramCall
    meaning: Meaning
    modules: tuple[str, ...]
    count: int
    seconds: float | None

    @property
    def weight(self) -> float:
        """The sort key: seconds, or FLOPs plus bytes without times."""
        meaning = self.meaning
        counted = self.count * ((meaning.flops or 0) + (meaning.bytes or 0))
        return counted if self.seconds is None else self.seconds


def distinct_problems(recorded: RecordedTrace) -> list[StepProblem]:
    """Return the distinct problems of a step without views, the heaviest first."""
    first = recorded.rounds[0]
    seconds: Sequence[float | None] = [None] * len(first.calls)
    if first.seconds is not None:
        seconds = _rounds_of(recorded).middle(len(first.calls))
    names = [(call.signature, call.direction) for call in first.calls]
    problems = []
    for places in group_by(range(len(names)), names.__getitem__).values():
        call = first.calls[places[0]]
        meaning = _in_known_type(meaning_of_call(call))
        if meaning.kind == "view":
            continue
        own = [each for place in places if (each := seconds[place]) is not None]
        modules = (first.calls[place].module for place in places)
        problems.append(
            StepProblem(
                call=call,
                meaning=meaning,
                modules=tuple(dict.fromkeys(modules)) if recorded.named else (),
                count=len(places),
                seconds=sum(own) if own else None,
            )
        )
    return sorted(problems, key=lambda problem: -problem.weight)


def _in_known_type(meaning: Meaning) -> Meaning:
    """Return a meaning without layers if there is no precision for its dtypes."""
    if not meaning.layers or TYPE_PRECISIONS.keys() & set(meaning.dtypes):
        return meaning
    types = " and ".join(meaning.dtypes)
    return replace(meaning, layers=(), layers_missing=f"no layer computes in {types}")


def layers_to_time(problems: Sequence[StepProblem]) -> tuple[list[tuple[LayerPass, str]], int]:
    """Return the layers that make most of the time, and the number of problems left over.

    Args:
        problems: problems of the step, the heaviest first.

    Returns:
        Distinct layers and passes with their precision (a layer may run in several); the number of
        problems that have layers and are too light to be timed.
    """
    whole = sum(problem.weight for problem in problems)
    layers: dict[tuple[LayerPass, str], None] = {}
    reached, light = 0.0, 0
    for problem in problems:
        if whole and reached > TIMED_SHARE * whole:
            light += bool(problem.meaning.layers)
            continue
        reached += problem.weight
        for layer in problem.meaning.layers:
            layers.setdefault((layer, precision_of(problem.meaning)))
    return list(layers), light


def describe(
    recorded: RecordedTrace,
    file: str,
    problems: Sequence[StepProblem],
    *,
    limit_s: Callable[[ProgramCall], float | None] = lambda _: None,
    native_s: Callable[[StepProblem], float | None] = lambda _: None,
    limits_of: str | None = None,
) -> RecordedSteps:
    """Return the record of a file, with the limits of its calls.

    Args:
        recorded: content of the file.
        file: name of the file.
        problems: problems of the file.
        limit_s: returns the roofline of a call, in seconds.
        native_s: returns the time of the native layers of one call of a problem, in seconds.
        limits_of: name of the device whose limits are used.
    """
    context: dict[str, Any] = {}
    step_s = None
    first = recorded.rounds[0]
    if first.seconds is not None and first.calls:
        context = in_context(first.calls, _rounds_of(recorded), limit_s)
        step_s = context["between_calls_s"] + sum(call.in_context_s for call in context["calls"])
        if first.step_s is None:
            context["between_calls_s"] = None
    limits = [_times(problem.count, limit_s(problem.call)) for problem in problems]
    whole = step_s or sum(limit or 0.0 for limit in limits)
    described = [
        _described(problem, limit, _times(problem.count, native_s(problem)), whole)
        for problem, limit in zip(problems, limits, strict=True)
    ]
    described.sort(key=lambda problem: -(problem.share or 0.0))
    if not recorded.named:
        context |= {"modules": (), "dominant": _dominant(described)}
    return RecordedSteps(
        file=file,
        source=recorded.source,
        steps=len(recorded.rounds),
        count=sum(problem.count for problem in problems),
        step_s=step_s,
        problems=tuple(described),
        limits_of=limits_of,
        notes=recorded.notes,
        **context,
    )


def _times(count: int, seconds: float | None) -> float | None:
    return None if seconds is None else count * seconds


def _described(
    problem: StepProblem, limit_s: float | None, native_s: float | None, whole_s: float
) -> RecordedProblem:
    call, meaning = problem.call, problem.meaning
    main = max(meaning.layers, key=lambda each: each.layer.flops(each.pass_), default=None)
    passes = [each.pass_ for each in meaning.layers if main and each.layer == main.layer]
    weight = limit_s if problem.seconds is None else problem.seconds
    return RecordedProblem(
        operator=call.operator,
        problem=_shapes(call) if main is None else main.layer.problem,
        passes=tuple(dict.fromkeys(passes)),
        direction=call.direction,
        precision=" ".join(TYPE_PRECISIONS.get(dtype, dtype) for dtype in meaning.dtypes),
        modules=problem.modules,
        count=problem.count,
        seconds=problem.seconds,
        share=None if weight is None or not whole_s else weight / whole_s,
        flops=None if meaning.flops is None else problem.count * meaning.flops,
        limit_s=limit_s or None,  # zero: all operands are in the first cache
        native_s=native_s,
        no_layer=meaning.layers_missing if main is None else None,
        signature=call.signature,
    )


def _shapes(call: ProgramCall) -> str:
    """Return the shapes of a call's operands: ``8x10 8``."""
    if call.signature.startswith("onednn:"):
        return call.signature.rpartition(",")[2]
    return " ".join(
        shape.replace(", ", "x").replace(",", "x") for shape in _SHAPES.findall(call.signature)
    )


def _dominant(problems: Sequence[RecordedProblem]) -> Dominant | None:
    """Return the first problem, without an interval: there is a single execution."""
    if not problems or problems[0].share is None:
        return None
    return Dominant(name=f"{problems[0].operator} {problems[0].problem}", share=problems[0].share)


def _rounds_of(recorded: RecordedTrace) -> Rounds:
    rounds = [each for each in recorded.rounds if each.seconds is not None]
    steps_s = [sum(each.seconds or ()) if each.step_s is None else each.step_s for each in rounds]
    return Rounds(steps_s, steps_s, [each.seconds or () for each in rounds])

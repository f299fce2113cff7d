"""From a recorded step to its distinct problems, weighted by count and time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydlbench.calls.meaning import LayerPass, Meaning
from pydlbench.grouping import group_by
from pydlbench.records.trace import ProgramCall
from pydlbench.steps.traced import meaning_of_call, precision_of
from pydlbench.traces.timeline import RecordedTrace
from pydlbench.words import MIXED_TYPES, TYPE_PRECISIONS

#: The largest problems, which make this share of the time, are timed one by one; others are named.
TIMED_SHARE: Final = 0.95
#: An optimizer's factors change from step to step: ``0.00099`` of a call is not what it computes.
_FACTOR: Final = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProblem:
    """Equal calls of a step.

    Attributes:
        call: one of the calls.
        meaning: meaning of the call.
        count: number of the calls in a step.
        seconds: total time of the calls; None if they were not timed.
    """

    call: ProgramCall
    meaning: Meaning
    count: int
    seconds: float | None

    @property
    def weight(self) -> float:
        """The sort key: seconds, or FLOPs plus bytes without times."""
        meaning = self.meaning
        counted = self.count * ((meaning.flops or 0) + (meaning.bytes or 0))
        return counted if self.seconds is None else self.seconds


def distinct_problems(recorded: RecordedTrace) -> list[StepProblem]:
    """Return the distinct problems of a step without views, the heaviest first.

    Numbers and times are means over the steps.
    """
    activities = (each for step in recorded.timelines for each in step.activities)
    calls = [(each.origin.call, each) for each in activities if each.origin.call is not None]
    steps = len(recorded.timelines)
    problems = []
    for own in group_by(
        calls, lambda pair: (_FACTOR.sub("x", pair[0].signature), pair[0].direction)
    ).values():
        call = own[0][0]
        meaning = in_known_type(meaning_of_call(call))
        if meaning.kind != "view":
            seconds = sum(each.seconds for _, each in own) / steps if recorded.timed else None
            count = round(len({each.origin.number for _, each in own}) / steps)
            problems.append(
                StepProblem(call=call, meaning=meaning, count=max(1, count), seconds=seconds)
            )
    return sorted(problems, key=lambda problem: -problem.weight)


def in_known_type(meaning: Meaning) -> Meaning:
    """Return a meaning, without layers if there is no precision for its dtypes."""
    known = {*TYPE_PRECISIONS, *MIXED_TYPES}
    if not meaning.layers or known & set(meaning.dtypes):
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

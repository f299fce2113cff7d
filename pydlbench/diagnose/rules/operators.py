"""Operators of the framework that are slower than the fastest kernel known for their layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.commands import layer_command
from pydlbench.diagnose.experiments import Contest
from pydlbench.diagnose.finding import WORTH, Hypothesis
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Excess, Observations

__all__ = ["find"]

# Of each kind; a step with more of them that matter is slow for a reason that they share.
_MOST: Final = 8


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield a contest with the native library for each layer where that may save something."""
    if seen.case.layout == "nhwc" or seen.case.framework != "torch":
        kinds: tuple[str, ...] = ("layer", "pointwise")
    else:
        kinds = ("layer",)  # alone, operators run in their best layout, which is not the step's
    for kind in kinds:
        worth = [one for one in seen.excesses(kind) if one.seconds >= WORTH * seen.step_s]
        for one in worth[:_MOST]:
            yield from _of_node(seen, one)


def _of_node(seen: Observations, excess: Excess) -> Iterator[Hypothesis]:
    for work in seen.works(excess.node):
        most = excess.seconds
        if excess.own_s is None:  # nobody knows yet what the framework needs
            most = excess.count * seen.native_s(work)
            if most < WORTH * seen.step_s:
                continue
        case = seen.framework_case(work)
        yield Hypothesis(
            problem="slow operators",
            symptom=_symptom(seen, excess),
            evidence=(),
            cause="the framework's operator is slower than the native library's kernel",
            experiment=Contest(case=case, count=excess.count),
            next=layer_command(case),
            parts=frozenset({f"{excess.node} {work.pass_}"}),
            where=f"{excess.node} {work.pass_}",
            most_s=most,
        )


def _symptom(seen: Observations, excess: Excess) -> str:
    native = format_seconds(excess.native_s)
    if excess.own_s is None:
        share = format_percent(excess.seconds / seen.step_s)
        return f"{excess.node} needs {native} natively ({share} of the step)"
    share = format_percent(excess.seconds / seen.step_s)
    often = f", {excess.count} times" if excess.count > 1 else ""
    return (
        f"{excess.node} takes {format_seconds(excess.own_s)} in {seen.case.framework} alone, "
        f"{native} natively, all passes{often}: {share} of the step"
    )

"""Two models' steps that were timed in turn: ratio, results, and calls by which they differ."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.analysis.ledger_difference import compare_steps
from pydlbench.compare.comparison import Comparison
from pydlbench.compare.interleaved import RerunPair, compare_interleaved
from pydlbench.compare.rows import Matching, Pair, side_of_documents
from pydlbench.compare.statistics import judge, scatter_of_means, weighted_spread
from pydlbench.records.agreement import ModelChange, StepAgreement
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepRecord, options_text
from pydlbench.runner.claimed_times import FEWER_FLOPS, beyond_roof
from pydlbench.steps.traced import limit_of_module
from pydlbench.timing.statistics import median

#: Ratios within 1 +- this count as the same. Steps in turn, in as many processes, differ by less
#: than stored runs do.
MARGIN: Final = 0.01
#: Changes that are worth a look: steps whose interval lies within it, and within the resolution,
#: are the same, too.
WORTH_A_LOOK: Final = 0.03
#: Level of the interval of the ratio.
CONFIDENCE: Final = 0.95
#: Level of the test of the ratio. Its weights and the end of the repetitions depend on the ratios,
#: too: in simulations 0.9 % of the verdicts on equal steps are false.
LEVEL: Final = 0.006
#: Repetitions end at this resolution, or at the second one if the ratio is not clear: if it is
#: between these multiples of the resolution, where a few more repetitions are likely to decide.
#: Those that end as soon as the ratio exceeds the resolution would make more false verdicts.
RESOLUTION: Final = 0.024
FINE_RESOLUTION: Final = 0.015
_UNCLEAR: Final = (0.5, 1.3)
# Multiple of the resolution from which a ratio is clear, however coarse the resolution is.
_CLEAR: Final = 5.0
#: Note on steps that were sampled alternately.
ADJACENT: Final = "the ratio is from adjacent samples, so it is not exactly that of the medians"
#: Note on steps of which most rounds were disturbed; interference in a round affects both.
DISTURBED: Final = "other work disturbed most rounds: the interval is wide"


def change_of(a: StepRecord, b: StepRecord, results: StepAgreement) -> ModelChange:
    """Return the difference of two steps that were timed in turn.

    Args:
        a: the first step.
        b: the second step.
        results: whether they compute the same.
    """
    reasons = [
        f"{side}: {record.untraced or record.reason or 'not traced'}"
        for side, record in (("A", a), ("B", b))
        if record.calls is None
    ]
    if reasons:
        return ModelChange(results=results, untraced="; ".join(reasons))
    return ModelChange(results=results, rows=compare_steps(a, b))


def impossible_steps(a: StepRecord, b: StepRecord, flops_per_s: float | None) -> tuple[str, ...]:
    """Return why steps are not ranked: their times are below what their limits allow.

    The limit of a step is that of its own calls, since a change may need fewer FLOPs. If B's calls
    are not known, it is that of A's FLOPs; B may keep in caches what A's calls move.

    Args:
        a: the first step, the reference.
        b: the second step.
        flops_per_s: measured peak; None if unknown.
    """
    refused = []
    for side, record in (("A", a), ("B", b)):
        calls = record.calls or ()
        limit_s, why = limit_of_module(calls), "the limits of its calls add up to"
        if limit_s is None or not any(call.flops for call in calls):
            calls = a.calls or ()
            flops = sum(call.flops or 0 for call in calls)
            limit_s, why = flops / (flops_per_s or math.inf), "the FLOPs of A alone take"
        convolves = any("conv" in call.operator.lower() for call in calls)
        factor = FEWER_FLOPS["conv" if convolves else "gemm"]
        words = record.time and beyond_roof(record.time, limit_s, factor, why)
        if words:
            refused.append(f"{side} is not ranked: {words}")
    return tuple(refused)


def is_resolved(steps: Mapping[int, StepRecord], least: int) -> bool:
    """Whether the repetitions so far tell two steps apart that differ by 3 %.

    Args:
        steps: steps that were sampled alternately, by number; 0 is A and 1 is B.
        least: number of repetitions that each step needs.
    """
    counts = {len(step.rounds_s) for step in steps.values()}
    if len(counts) > 1 or min(counts) < least:
        return False
    return is_decided(_weighted(map(np.log, steps[1].ratios.values())))


def is_decided(rounds: Sequence[NDArray[Any]]) -> bool:
    """Whether no further repetition is needed.

    Args:
        rounds: for each repetition the logarithms of its rounds' ratios.
    """
    if not rounds:
        return False
    spread = weighted_spread(rounds)
    scatter = scatter_of_means(spread, np.array(["step"]))
    (estimate,) = judge(spread.means, scatter, [None], MARGIN, level=LEVEL)
    if estimate.resolution is None:
        return False
    beyond = abs(float(spread.means[0])) / math.log(estimate.resolution)
    if beyond >= _CLEAR:
        return True
    is_unclear = _UNCLEAR[0] <= beyond <= _UNCLEAR[1]
    return estimate.resolution <= 1 + (FINE_RESOLUTION if is_unclear else RESOLUTION)


def _weighted(logs: Iterable[NDArray[Any]]) -> Sequence[NDArray[Any]]:
    """Return the logarithms of all repetitions, or none if one has no scatter of its own."""
    rounds = tuple(logs)
    return rounds if min(map(len, rounds), default=0) > 1 else ()


def compare_models(
    records: Sequence[StepRecord], change: ModelChange, run: RunRecord, margin: float | None = None
) -> Comparison:
    """Compare two steps that were sampled alternately, by the ratios of their repetitions.

    Args:
        records: A and B, both with a time.
        change: their difference.
        run: record of the run that has timed them.
        margin: ratios within 1 +- this count as the same; None for the default.
    """
    first, second = records
    labels = (
        f"{each.label} {options_text(each.options)}".rstrip() for each in (first.spec, second.spec)
    )
    sides = [
        side_of_documents(label, run, steps=[record.to_dict()])
        for label, record in zip(labels, records, strict=True)
    ]
    a, b = first.rounds_s, second.rounds_s
    # Steps that were stored without the ratios of adjacent samples have those of their medians.
    ratios = second.ratios or {number: (b[number] / a[number],) for number in a.keys() & b.keys()}
    logs = {number: np.log(ratios[number]) for number in sorted(ratios)}
    seconds = [[record.time.median] for record in records if record.time is not None]
    pair = RerunPair(
        logs={} if change.results.refused else {n: median(each) for n, each in logs.items()},
        rounds=_weighted(logs.values()),
        seconds=(seconds[0], seconds[1]),
        libraries=(first.library, second.library),
    )
    notes = [ADJACENT] if pair.rounds else []
    notes += [DISTURBED] if first.contended or second.contended else []
    batches = (first.spec.batch, second.spec.batch)
    if len({*batches}) > 1:
        notes.append(
            f"A has batch {batches[0]}, B has batch {batches[1]}; the times are per step, "
            "not per sample"
        )
    rows = Pair(*(side.rows[0]._replace(status="ok") for side in sides))
    compared = compare_interleaved(
        sides[0],
        sides[1],
        Matching(pairs=[rows], only_a=[], only_b=[], untimed=[]),
        [pair],
        MARGIN if margin is None else margin,
        tuple(notes),
        CONFIDENCE,
        LEVEL,
        WORTH_A_LOOK if margin is None else 0.0,
    )
    return dataclasses.replace(
        compared,
        passes=len(logs),
        change=change,
        refused=change.results.refused,
    )

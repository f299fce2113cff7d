"""What explains a part of a difference between levels: from the columns of logs and page faults.

A log is of calls that ran behind others, and so are the times beside it; calls alone are timed with
their operands in caches. What is taken from the log is therefore a share of the call that it is of,
and that share of the call alone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Final

from pydlbench.analysis.breakdown import ALONE, STEP, Experiment, by_part, in_round
from pydlbench.backends.steps.operators import LoggedOperators
from pydlbench.timing.statistics import median, middle_rounds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pydlbench.analysis.breakdown import StepParts
    from pydlbench.study.table import Table

#: Subjects of the table: what libraries log of calls, with :data:`LOGGED` parts of each; a block
#: whose pages are new each time, and the same where they are kept.
LOG: Final = "log"
PAGES: Final = "pages"
PAGES_KEPT: Final = "pages kept"
#: Seconds of a call without a log, of all that was logged in it, of reorders and of convolutions.
LOGGED: Final = LoggedOperators.PARTS

# Page faults of such a block; with fewer nobody has counted them.
_FEW_FAULTS: Final = 1.0


def log_experiments(
    table: Table,
    parts: StepParts,
    names: Sequence[str],
    executing: Collection[str],
    dispatch_s: float,
) -> list[Experiment]:
    """Return what logs tell of calls: reorders, other kernels, and what starting the calls costs.

    Args:
        table: with visits of :data:`LOG` and of calls alone.
        parts: of the step.
        names: signatures: the parts of :data:`LOG`.
        executing: those of them in which a library logs anything.
        dispatch_s: seconds of starting a call that computes nothing.

    Returns:
        None of these where no call with a native layer has a log.
    """
    counted = Counter((call.signature, call.direction) for call in parts.calls)
    own = {
        key: count
        for key, count in counted.items()
        if key[0] in executing and key[0] in parts.alone and parts.native.get(key)
    }
    if not own:
        return []
    alone = by_part(table.of(ALONE), parts.alone, parts.repeats)
    subjects = {kernel.subject for key in own for kernel in parts.native[key]}
    native = {one: table.of(one).by_round() for one in subjects}
    reorders: dict[int, float] = {}
    kernels: dict[int, float] = {}
    for visit in table.of(LOG):
        flat = middle_rounds(list(itertools.chain(*visit.parts)), LOGGED * len(names))
        logged = {name: flat[LOGGED * n : LOGGED * (n + 1)] for n, name in enumerate(names)}
        reordered_s = executed_s = 0.0
        for key, count in own.items():
            plain, executed, reordered, _ = logged[key[0]]
            seconds = in_round(alone[key[0]][-1], visit.round)
            scale = seconds / plain if plain else 0.0
            layers_s = sum(in_round(native[one.subject], visit.round) for one in parts.native[key])
            reordered_s += count * scale * reordered
            executed_s += count * (scale * (executed - reordered) - layers_s)
        reorders[visit.round], kernels[visit.round] = reordered_s, executed_s
    calls = sum(own.values())
    signatures = frozenset(key[0] for key in own)
    log = "by the log of oneDNN and MKL of each call in each round, as a share of the call"

    def explained(term: str, seconds: Mapping[int, float], how: str) -> Experiment:
        return Experiment(term=term, level="alone", seconds=seconds, how=how, signatures=signatures)

    return [
        explained(
            "another kernel",
            kernels,
            f"what they execute in {calls} calls without reorders, {log}, minus the fastest native "
            "kernels in that round",
        ),
        explained("reorders", reorders, f"reorders of {calls} calls, {log}"),
        explained(
            "dispatch",
            dict.fromkeys(kernels, calls * dispatch_s),
            f"{dispatch_s * 1e6:.1f} us for each of {calls} calls: an operator that computes "
            "nothing",
        ),
    ]


def fresh_memory(table: Table) -> Experiment | None:
    """Return page faults of the steps that were timed, by what one costs in each round.

    Args:
        table: with visits of steps, :data:`PAGES` and :data:`PAGES_KEPT`.

    Returns:
        None where page faults were not counted, or not what one costs.
    """
    if PAGES not in table or PAGES_KEPT not in table:
        return None
    new, kept = table.of(PAGES), table.of(PAGES_KEPT)
    more = (new.faults or 0.0) - (kept.faults or 0.0)
    counted = {one.round: one.faults for one in table.of(STEP) if one.faults is not None}
    new_s, kept_s = new.by_round(), kept.by_round()
    cost = {
        number: max(0.0, new_s[number] - kept_s[number]) / more
        for number in new_s.keys() & kept_s.keys()
        if more >= _FEW_FAULTS
    }
    if not cost or not counted:
        return None
    return Experiment(
        term="fresh memory",
        level="in_context",
        seconds={number: faults * in_round(cost, number) for number, faults in counted.items()},
        how=f"{median(counted.values()):.0f} page faults of the step, counted in the steps that "
        f"were timed, at {1e6 * median(cost.values()):.2f} us each: a new block against one that "
        "is kept",
    )

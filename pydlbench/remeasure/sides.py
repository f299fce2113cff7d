"""The two sides as they were measured in turn: their rows, with the times of now."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.compare.match import Matching, Pair
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.compare.rows import Row, Side
    from pydlbench.remeasure.passes import Contest
    from pydlbench.results import RunRecord

__all__ = ["measured_sides"]


def measured_sides(
    a: Side, b: Side, matching: Matching, contests: Sequence[Contest], run: RunRecord
) -> tuple[Side, Side, Matching]:
    """Return both sides and their pairs with what was measured in turn.

    Pairs that no pass has finished become untimed ones.

    Args:
        a: the first one, as it was stored.
        b: the second one.
        matching: of both; its pairs belong to the contests, in their order.
        contests: what was measured.
        run: of the measuring.
    """
    pairs, lost = [], list(matching.untimed)
    for pair, one in zip(matching.pairs, contests, strict=True):
        if one.found.logs:
            pairs.append(Pair(*(_row(row, one, side) for side, row in enumerate(pair))))
        else:
            lost.append(Pair(*(row._replace(status="failed") for row in pair)))
    found = dataclasses.replace(matching, pairs=pairs, untimed=lost)
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    return _here(a, first, run), _here(b, second, run), found


def _here(side: Side, rows: list[Row], run: RunRecord) -> Side:
    """Return a side whose rows were measured now; it is none of the stored runs any more."""
    return dataclasses.replace(
        side, rows=rows, run_id="", device=run.device, environment=run.environment
    )


def _row(row: Row, contest: Contest, side: int) -> Row:
    found = contest.found
    facts: dict[str, Any] = found.facts[side]
    clocks = found.clocks[side]
    return row._replace(
        median=median(found.seconds[side]),
        # Of a side by itself there is no interval: only the ratio of a pass is worth one.
        ci_low=None,
        ci_high=None,
        n=len(found.seconds[side]),
        clock_hz=median(clocks) if clocks else None,
        contended=None,
        algorithm=facts.get("algorithm", row.algorithm),
    )

"""From logarithmic ratios and their scatter to verdicts that hold for all rows together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.compare.comparison import (
    FASTER,
    SAME,
    SLOWER,
    UNCLEAR,
    Estimate,
    Settings,
)
from pydlbench.compare.history import EPISODE
from pydlbench.compare.student import holm, quantiles, two_sided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Evidence", "judge"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of each row.

    Attributes:
        log: logarithm of B over A as measured.
        rest: the same without what all rows have in common; equal to ``log`` where that is not
            taken off.
        sd: standard deviation of ``rest``, everything counted that differs between two runs.
        freedom: degrees of freedom of ``sd``.
        against: why a row can have no verdict; None where it can.
        episodes: probability that one of the two was measured in an episode, see
            :data:`pydlbench.compare.history.EPISODES`.
    """

    log: NDArray[Any]
    rest: NDArray[Any]
    sd: NDArray[Any]
    freedom: NDArray[Any]
    against: Sequence[str | None]
    episodes: NDArray[Any] | float = 0.0


def judge(evidence: Evidence, settings: Settings) -> list[Estimate]:
    """Return an estimate for each row.

    FASTER and SLOWER take a ratio that differs from one at ``alpha``, corrected by Holm for all
    rows that can have a verdict, and by more than the margin, both as measured and without the
    common part; the probability of an episode is counted in. SAME takes an interval within the
    margin. All else is UNCLEAR.

    The interval holds for a single row. It spans both readings, with and without the common part.
    """
    usable = np.array([reason is None for reason in evidence.against], dtype=bool)
    sd, freedom = evidence.sd, evidence.freedom
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(sd > 0, evidence.rest / sd, np.where(evidence.rest == 0, 0.0, np.inf))
    chance = two_sided(t, freedom)
    # What an episode may have done is no change: its size is anything up to the largest.
    beyond = np.maximum(0.0, 1 - np.abs(evidence.rest) / EPISODE)
    p = holm(np.where(usable, np.minimum(1.0, chance + evidence.episodes * beyond), np.nan))
    reach = quantiles(settings.confidence, freedom) * sd
    low = np.minimum(evidence.log, evidence.rest) - reach
    high = np.maximum(evidence.log, evidence.rest) + reach
    each = settings.alpha / max(1, int(usable.sum()))
    seen = quantiles(1 - each, freedom) * sd
    likely = np.asarray(evidence.episodes) > each
    share = np.where(likely, evidence.episodes, 1.0)
    seen = np.where(likely, np.maximum(seen, EPISODE * (1 - each / share)), seen)
    margin = math.log1p(settings.margin)
    up = np.minimum(evidence.log, evidence.rest) > margin
    down = np.maximum(evidence.log, evidence.rest) < -margin
    far = p < settings.alpha
    same = (low > -margin) & (high < margin)
    known = np.isfinite(low) & np.isfinite(high)
    can_see = np.isfinite(seen)
    verdicts = np.select(
        [usable & far & up, usable & far & down, usable & same], [SLOWER, FASTER, SAME], UNCLEAR
    )
    return list(
        map(
            Estimate,
            _ratios(evidence.log),
            _or_none(_ratios(low), known),
            _or_none(_ratios(high), known),
            verdicts.tolist(),
            _or_none(p.tolist(), ~np.isnan(p)),
            _or_none(_ratios(np.maximum(seen, margin)), can_see),
            evidence.against,
        )
    )


def _ratios(logs: NDArray[Any]) -> list[float]:
    with np.errstate(over="ignore"):
        return np.exp(logs).tolist()  # type: ignore[no-any-return]  # of floats


def _or_none(values: list[Any], known: NDArray[Any]) -> list[Any]:
    if known.all():
        return values
    return [value if one else None for value, one in zip(values, known.tolist(), strict=True)]

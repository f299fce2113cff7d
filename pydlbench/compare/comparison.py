"""What a comparison found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydlbench.records.documents import ComparisonSide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.compare.environment import Difference
    from pydlbench.compare.match import Matching
    from pydlbench.compare.rows import Row, Side

__all__ = ["VERDICTS", "ComparedRow", "Comparison", "Estimate", "Settings"]

SAME: Final = "SAME"
FASTER: Final = "FASTER"
SLOWER: Final = "SLOWER"
UNCLEAR: Final = "UNCLEAR"
#: In the order in which they are counted.
VERDICTS: Final = (SLOWER, FASTER, SAME, UNCLEAR)
# The fields of either side, as the struct of the document has them.
_OF_SIDE: Final = ComparisonSide.__struct_fields__


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a verdict takes.

    Attributes:
        alpha: chance of any false FASTER or SLOWER among all rows of a comparison, at the most. One
            in a hundred: who compares every day should not be called every month.
        margin: within 1 +- this a ratio counts as the same; whoever is called FASTER or SLOWER is
            so by more. Two preparations of the very same kernel differ by 1 to 2 % in the best
            rows of repeatability.md.
        confidence: level of the printed interval of each ratio, by itself.
    """

    alpha: float = 0.01
    margin: float = 0.02
    confidence: float = 0.95


class Estimate(NamedTuple):
    """A ratio B / A with what is said of it.

    ``p`` is that of a ratio of one, corrected for the number of rows. ``resolution`` is the
    smallest ratio above one that would have been told from one here.
    """

    ratio: float
    ci_low: float | None
    ci_high: float | None
    verdict: str
    p: float | None = None
    resolution: float | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; infinities become null where it is written."""
        return self._asdict()


class ComparedRow(NamedTuple):
    """A row of both sides.

    ``time`` is the ratio of seconds; ``cycles`` that of seconds times clock, None where a clock is
    not known. ``verdict`` is the one that counts: of the cycles where nothing but the clock
    differs between the two runs. ``passes`` are the ratios of each pass, in time and in cycles,
    where both sides were measured in turn.
    """

    a: Row
    b: Row
    time: Estimate
    cycles: Estimate | None
    in_cycles: bool = False
    passes: tuple[Sequence[float], Sequence[float]] | None = None

    @property
    def counts(self) -> Estimate:
        """The estimate whose verdict counts."""
        return self.cycles if self.in_cycles and self.cycles is not None else self.time

    @property
    def verdict(self) -> str:
        """SAME, FASTER, SLOWER or UNCLEAR."""
        return self.counts.verdict

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: :class:`pydlbench.records.documents.ComparisonRow`.

        Not by way of the struct, which would take longer than all else of 100,000 rows; a test
        holds the names against it.
        """
        row = self.b
        return {
            "layer": row.layer,
            "kind": row.kind,
            "problem": row.problem,
            "batch": row.batch,
            "pass": row.pass_,
            "precision": row.precision,
            "device": row.device,
            "backend": row.backend,
            "mode": row.mode,
            "cache": row.cache,
            "threads": row.threads,
            "layout_request": row.layout_request,
            "fuse": row.fuse,
            "propagation": row.propagation,
            "a": _side(self.a),
            "b": _side(self.b),
            **self.counts.to_dict(),
            "verdict_in": "cycles" if self.counts is self.cycles else "time",
            "time": self.time.to_dict(),
            "cycles": None if self.cycles is None else self.cycles.to_dict(),
            "by_pass": None
            if self.passes is None
            else {"time": list(self.passes[0]), "cycles": list(self.passes[1])},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs, row by row.

    Attributes:
        a: the first run.
        b: the second one; ratios are its time over the first one's.
        matching: what belongs together, and what does not.
        rows: of both, timed on both.
        geomean: of all rows that a verdict could be given on; None without such a row.
        geomean_cycles: likewise in cycles.
        differences: between the two environments.
        drift: what all rows have in common and was taken for the machine's, as a ratio; None where
            nothing was taken off.
        settings: what a verdict took.
        repeats: of how many earlier runs the scatter between runs was learnt.
        passes: how often both sides were prepared anew and measured in turn; 0 for stored runs.
        notes: what a reader has to know.
        in_cycles: whether the verdicts are those of the cycles.
    """

    a: Side
    b: Side
    matching: Matching
    rows: Sequence[ComparedRow]
    geomean: Estimate | None
    geomean_cycles: Estimate | None = None
    differences: Sequence[Difference] = ()
    drift: float | None = None
    settings: Settings = Settings()
    repeats: int = 0
    passes: int = 0
    notes: tuple[str, ...] = ()
    in_cycles: bool = False

    @property
    def itself(self) -> bool:
        """Whether both sides are the same measurement."""
        same = (self.a.run_id, self.a.created_utc) == (self.b.run_id, self.b.created_utc)
        return same and all(row.a == row.b for row in self.rows)

    @property
    def counted(self) -> Mapping[str, int]:
        """How many rows have each verdict."""
        found = dict.fromkeys(VERDICTS, 0)
        for row in self.rows:
            found[row.verdict] += 1
        return found

    @property
    def main_geomean(self) -> Estimate | None:
        """The geometric mean in what the verdicts are given in."""
        return self.geomean_cycles if self.in_cycles else self.geomean

    def slower(self, threshold: float) -> list[ComparedRow]:
        """Return the rows that are SLOWER by more than a fraction, the slowest first."""
        found = [
            row for row in self.rows if row.verdict == SLOWER and row.counts.ratio > 1 + threshold
        ]
        return sorted(found, key=lambda row: -row.counts.ratio)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: :class:`pydlbench.records.documents.CompareDocument`."""
        geomean = self.main_geomean
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "interleaved": self.passes > 0,
            "passes": self.passes or None,
            "matched_across": self.matching.axis,
            "matched_values": list(self.matching.values) if self.matching.axis else None,
            "rows": [row.to_dict() for row in self.rows],
            "geomean": None if geomean is None else geomean.ratio,
            "geomean_ci": None if geomean is None else [geomean.ci_low, geomean.ci_high],
            "geomean_verdict": None if geomean is None else geomean.verdict,
            "geomean_in": {
                "time": None if self.geomean is None else self.geomean.to_dict(),
                "cycles": None if self.geomean_cycles is None else self.geomean_cycles.to_dict(),
            },
            "counts": dict(self.counted),
            "drift": self.drift,
            "only_a": [_name(row) for row in self.matching.only_a],
            "only_b": [_name(row) for row in self.matching.only_b],
            "untimed": [
                {**_name(pair.a), "a": pair.a.status, "b": pair.b.status}
                for pair in self.matching.untimed
            ],
            "warnings": [one.text for one in self.differences],
            "differences": [one.to_dict() for one in self.differences],
            "notes": list(self.notes),
            "settings": {
                "alpha": self.settings.alpha,
                "margin": self.settings.margin,
                "confidence": self.settings.confidence,
                "correction": "Holm",
                "repeats": self.repeats,
            },
        }


def bounded(log_value: float) -> float:
    """Return the ratio of a logarithm; infinity where it has none that a float can hold."""
    return math.exp(log_value) if log_value < 700 else math.inf


def _side(row: Row) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in _OF_SIDE}, "contended": bool(row.contended)}


def _name(row: Row) -> dict[str, Any]:
    return {
        "layer": row.layer,
        "problem": row.problem,
        "pass": row.pass_,
        "precision": row.precision,
        "backend": row.backend,
        "mode": row.mode,
        "cache": row.cache,
        "threads": row.threads,
        "status": row.status,
    }

"""The result of a comparison."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from pydlbench.compare.environment import Difference
from pydlbench.compare.rows import Matching, Side, SideRow
from pydlbench.records.agreement import ModelChange
from pydlbench.records.comparison import (
    CompareDocument,
    ComparisonEstimate,
    ComparisonRow,
    ComparisonSide,
)
from pydlbench.records.record import SCHEMA_VERSION

#: A ratio B / A with its interval and verdict.
Estimate = ComparisonEstimate

SAME: Final = "SAME"
FASTER: Final = "FASTER"
SLOWER: Final = "SLOWER"
UNCLEAR: Final = "UNCLEAR"
#: Verdicts in the order of the printed counts.
VERDICTS: Final = (SLOWER, FASTER, SAME, UNCLEAR)
# Fields of a document's row that are taken from the second run's row, from either side's row, and
# from the estimate.
_ROW_FIELDS: Final = (
    *("layer", "kind", "problem", "batch", "pass_", "precision", "device", "backend", "mode"),
    *("cache", "threads", "layout_request", "fuse", "propagation"),
)
_SIDE_FIELDS: Final = tuple(
    name for name in ComparisonSide.__struct_fields__ if name not in ("contended", "library")
)
_ESTIMATE_FIELDS: Final = Estimate.__struct_fields__


#: Maximum chance of any false FASTER or SLOWER among all rows of a comparison. At 1 %
#: a daily comparison gives a false alarm less than once in three months.
ALPHA: Final = 0.01
#: Ratios within 1 +- this count as the same; FASTER and SLOWER exceed it. Two preparations of the
#: same kernel differ by 1 to 2 % in the best rows of repeatability.md.
MARGIN: Final = 0.02
#: Changes between stored runs that are worth a look: a row with a finer resolution is SAME if its
#: interval lies within it. The time of the same code moves by up to a fifth from hour to hour.
WORTH_A_LOOK: Final = 0.25
#: Level of the printed interval of each single ratio.
CONFIDENCE: Final = 0.9


class ComparedRow(NamedTuple):
    """A row of both sides with its ratio, and the ratios of its passes if they were interleaved."""

    a: SideRow
    b: SideRow
    estimate: Estimate
    passes: Sequence[float] | None = None
    libraries: tuple[str | None, str | None] = (None, None)

    @property
    def verdict(self) -> str:
        """SAME, FASTER, SLOWER or UNCLEAR."""
        return self.estimate.verdict

    def slower(self, threshold: float) -> bool:
        """Return whether it is SLOWER by more than a fraction."""
        return self.verdict == SLOWER and self.estimate.ratio > 1 + threshold

    def excludes(self, limit: float) -> bool:
        """Return whether a ratio above a limit is excluded, or would have been detected."""
        known = [self.estimate.ci_high, self.estimate.resolution]
        below = any(end is not None and end <= limit for end in known)
        return below and self.estimate.reason is None

    def document(self) -> ComparisonRow:
        """Return the row of the JSON document."""
        return ComparisonRow(
            **{name: getattr(self.b, name) for name in _ROW_FIELDS},
            **{name: getattr(self.estimate, name) for name in _ESTIMATE_FIELDS},
            a=_side(self.a, self.libraries[0]),
            b=_side(self.b, self.libraries[1]),
            by_pass=None if self.passes is None else tuple(self.passes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs, row by row.

    Attributes:
        a: the first run.
        b: the second run; ratios are its time over the time of the first run.
        matching: pairs of rows, and rows without a partner.
        rows: rows that were timed on both sides.
        geomean: ratio of all rows that can have a verdict; None if there is no such row.
        differences: differences between the two environments.
        margin: ratios within 1 +- this count as the same.
        replicates: number of independent runs of the same code as either side.
        assumed_sd: assumed scatter between runs, as a standard deviation of logarithms; None if it
            is known from replicates, and for interleaved sides.
        passes: number of passes that prepared and measured both sides; 0 for stored runs.
        notes: notes for the reader.
        installations: whether the sides are two installations, which may have other libraries.
        confidence: level of the interval of a single ratio.
        worth: changes beyond it are worth a look: a row is SAME, too, if its interval lies within
            what it resolves and within this; 0 if only the margin counts.
        change: of two steps, whether they compute the same, and by which calls they differ.
        refused: kernels that are not ranked, each with the reason: they compute something else,
            or cheat.
    """

    a: Side
    b: Side
    matching: Matching
    rows: Sequence[ComparedRow]
    geomean: Estimate | None
    differences: Sequence[Difference] = ()
    margin: float = MARGIN
    replicates: int = 0
    assumed_sd: float | None = None
    passes: int = 0
    notes: tuple[str, ...] = ()
    installations: bool = False
    confidence: float = CONFIDENCE
    worth: float = 0.0
    change: ModelChange | None = None
    refused: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        """Whether a side is known to compute something else than the other one."""
        return bool(self.refused) or (self.change is not None and self.change.results.differs)

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of rows with each verdict."""
        counter = Counter(row.verdict for row in self.rows)
        return {verdict: counter[verdict] for verdict in VERDICTS}

    def slower(self, threshold: float) -> list[ComparedRow]:
        """Return the rows that are SLOWER by more than a fraction, the slowest first."""
        rows = [row for row in self.rows if row.slower(threshold)]
        return sorted(rows, key=lambda row: -row.estimate.ratio)

    def undecided(self, threshold: float) -> list[ComparedRow]:
        """Return the rows that may or may not be slower by a fraction.

        These are rows without a verdict, and rows whose interval reaches beyond it where a change
        of that size could not be seen. Changes within the margin are none, whatever the fraction
        is.
        """
        limit = 1 + max(threshold, self.margin)
        return [row for row in self.rows if not (row.slower(threshold) or row.excludes(limit))]

    @property
    def same_within(self) -> float:
        """The largest change that a row which is SAME may have, as a fraction."""
        known = [row.estimate.resolution or 1.0 for row in self.rows if row.verdict == SAME]
        return max(self.margin, min(self.worth, max(known, default=1.0) - 1))

    @property
    def lost(self) -> list[SideRow]:
        """The rows without an expected time: timed in A and not in B, or not timed again.

        They are not known to be as fast as before.
        """
        return [
            pair.b
            for pair in self.matching.untimed
            if pair.a.ok or (self.passes and pair.a.status == pair.b.status == "failed")
        ]

    def document(self) -> CompareDocument:
        """Return the JSON document."""
        geomean = self.geomean
        return CompareDocument(
            schema_version=SCHEMA_VERSION,
            a=self.a.to_dict(),
            b=self.b.to_dict(),
            interleaved=self.passes > 0,
            passes=self.passes or None,
            matched_across=self.matching.axis,
            matched_values=self.matching.values if self.matching.axis else None,
            rows=tuple(row.document() for row in self.rows),
            geomean=None if geomean is None else geomean.ratio,
            geomean_ci=None if geomean is None else (geomean.ci_low, geomean.ci_high),
            geomean_verdict=None if geomean is None else geomean.verdict,
            counts=self.counts,
            only_a=tuple(map(_name, self.matching.only_a)),
            only_b=tuple(map(_name, self.matching.only_b)),
            untimed=tuple(
                {**_name(pair.a), "a": pair.a.status, "b": pair.b.status}
                for pair in self.matching.untimed
            ),
            warnings=tuple(difference.text for difference in self.differences),
            differences=tuple(difference.to_dict() for difference in self.differences),
            notes=self.notes,
            refused=self.refused,
            change=self.change,
            settings={
                "alpha": ALPHA,
                "margin": self.margin,
                "worth": self.worth,
                "confidence": self.confidence,
                "correction": "Bonferroni",
                "replicates": self.replicates,
                "assumed_sd": self.assumed_sd,
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the document as a plain object; 100,000 rows take a second."""
        plain: dict[str, Any] = msgspec.to_builtins(self.document())
        return plain if self.change is None else plain | {"change": self.change.to_dict()}


def _side(row: SideRow, library: str | None) -> ComparisonSide:
    fields = {name: getattr(row, name) for name in _SIDE_FIELDS}
    return ComparisonSide(**fields, contended=bool(row.contended), library=library)


def _name(row: SideRow) -> dict[str, Any]:
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

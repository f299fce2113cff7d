"""What becomes of hypotheses: findings, or things that were tried. Times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from pydlbench.records.record import Record, plain
from pydlbench.records.step import StepRecord

#: Stands for every part of a step.
ALL: Final = "*"
#: What saves a smaller share of the step is no finding.
WORTH: Final = 0.01
#: An interval that reaches further down than this part of its saving is measured a second time:
#: of many experiments without any effect, a few look like savings once.
_SURE: Final = 0.8
#: What saves a smaller share of the step is measured a second time, too, in new processes: two
#: preparations of the same differ by 1 to 2 %, which no round within one of them shows.
_CLEAR: Final = 0.05


class Cause(Record, frozen=True, kw_only=True):
    """One of the reasons behind a finding.

    Attributes:
        name: in few words: ``weights not packed``.
        meaning: one sentence.
        seconds: of the saving, per step; None where one experiment cannot tell reasons apart.
        where: layers and passes; empty for the step as a whole.
    """

    name: str
    meaning: str
    seconds: float | None = None
    where: tuple[str, ...] = ()


class Saving(Record, frozen=True, kw_only=True, rename={"low": "ci_low", "high": "ci_high"}):
    """What an experiment measured.

    Attributes:
        seconds: saved per step.
        low: lower end of the interval; None of a single round.
        high: upper end.
        step_s: the step that they are a part of, timed beside it: not the diagnosis's own.
        subject: ``step`` if the whole step was run with the change, ``layer`` if one operator was.
        how: what ran beside what.
        rounds: how often.
        contended: other work disturbed half of the rounds or more: it is no finding. Of a row that
            a native one is compared with, see ``Measurement.contended``.
        causes: what it comes from, the largest first, where the experiment tells.
        evidence: what else it measured.
        otherwise: what to say of it if it is no finding.
    """

    seconds: float
    low: float | None
    high: float | None
    step_s: Annotated[float, msgspec.Meta(gt=0)]
    subject: str
    how: str
    rounds: int
    contended: bool = False
    causes: tuple[Cause, ...] = ()
    evidence: tuple[str, ...] = ()
    otherwise: str = ""

    # The finding has the causes and the evidence.
    derived = ("share",)
    promised = ("share",)
    unlisted = ("contended", "causes", "evidence", "otherwise")

    @property
    def share(self) -> float:
        """Of the step."""
        return self.seconds / self.step_s

    @property
    def real(self) -> bool:
        """Whether it saves something beyond doubt that is worth a reader's time."""
        above_zero = self.low is not None and self.low > 0
        return above_zero and self.share >= WORTH and not self.contended

    @property
    def sure(self) -> bool:
        """Whether it is so large and its interval so narrow that chance alone hardly gives it."""
        narrow = self.low is not None and self.low >= _SURE * self.seconds
        return narrow and self.share >= _CLEAR


class Finding(Record, frozen=True, kw_only=True):
    """What costs time, and what would save it.

    Attributes:
        problem: what is common to all of it, in few words.
        where: layers and passes; empty for the step as a whole.
        symptom: what is seen.
        evidence: measurements, and how they were made.
        causes: why, the largest first.
        saving: what was measured.
        next: the command to run next.
        parts: of the step.
        alternatives: other ways that save something on the same parts, a line each.
        overlaps: numbers of the findings that are about the same parts: savings do not add up.
    """

    problem: str
    where: tuple[str, ...]
    symptom: str
    evidence: tuple[str, ...]
    causes: tuple[Cause, ...]
    saving: Saving
    next: str
    parts: frozenset[str]
    alternatives: tuple[str, ...] = ()
    overlaps: tuple[int, ...] = ()

    derived = ("cause",)
    promised = ("cause",)

    @property
    def cause(self) -> str:
        """All causes in one text."""
        return "; ".join(each.meaning for each in self.causes)


class Tried(Record, frozen=True, kw_only=True):
    """An experiment that shows no saving, or could not be made.

    Attributes:
        what: was changed.
        problem: that it was tried for.
        result: in a few words: what came of it, or why nothing did.
        ran: whether it was made at all.
    """

    what: str
    problem: str
    result: str
    ran: bool = True


class Diagnosis(Record, frozen=True, kw_only=True):
    """Everything that was found on a step.

    Attributes:
        step: the step as it is.
        findings: the largest saving first.
        tried: what saves nothing.
        untried: what there was no time for, or could not be run.
        terms: of the breakdown: name, seconds and share.
        notes: what a reader has to know.
        seconds: that it took.
        interrupted: Ctrl-C came before everything was tried.
    """

    step: StepRecord
    findings: tuple[Finding, ...]
    tried: tuple[Tried, ...] = ()
    untried: tuple[Tried, ...] = ()
    terms: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: what was run, then what was found."""
        spec = self.step.spec
        names = ("model", "batch", "phase", "precision", "framework", "mode", "layout", "options")
        return {**{name: plain(getattr(spec, name)) for name in names}, **super().to_dict()}


def overlap(first: frozenset[str], second: frozenset[str]) -> bool:
    """Whether two changes are about the same parts of a step."""
    return ALL in first or ALL in second or not first.isdisjoint(second)

"""Results of a diagnosis: findings, and experiments that found nothing. Times in seconds."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from pydlbench.records.record import Record
from pydlbench.records.step import StepRecord

#: Stands for every part of a step.
ALL: Final = "*"
#: Minimum share of the step that counts as a finding.
MIN_SAVING: Final = 0.01
#: A saving is measured a second time if the lower end of its interval is below this part of it: of
#: many experiments without any effect, a few look like savings once.
_MIN_CERTAINTY: Final = 0.8
#: A saving of a smaller share of the step is measured a second time, too, in new processes: two
#: preparations of the same step differ by 1 to 2 %, which the rounds of one of them do not show.
_MIN_UNREPEATED_SAVING: Final = 0.05


class Cause(Record, frozen=True, kw_only=True):
    """One of the reasons behind a finding.

    Attributes:
        name: the cause in few words: ``weights not packed``.
        meaning: the cause explained in one sentence.
        seconds: the part of the saving that is due to this cause, per step; None where the
            experiment cannot separate causes.
        where: layers and passes; empty for the step as a whole.
    """

    name: str
    meaning: str
    seconds: float | None = None
    where: tuple[str, ...] = ()


class Saving(Record, frozen=True, kw_only=True, rename={"low": "ci_low", "high": "ci_high"}):
    """The saving that an experiment measured.

    Attributes:
        seconds: saved time per step.
        low: lower end of the interval; None with a single round.
        high: upper end of the interval.
        step_s: time of the step that was measured beside it in the experiment.
        subject: ``step`` if the whole step was run with the change, ``layer`` if one operator was.
        how: the two subjects that ran beside each other.
        rounds: number of rounds.
        contended: other work disturbed half of the rounds or more: it is no finding. For a row that
            a native one is compared with, see ``Measurement.contended``.
        causes: causes of the saving, the largest first, if the experiment separates them.
        evidence: other measurements of the experiment.
        otherwise: the result in words if it is no finding.
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
        """The saving as a share of the step."""
        return self.seconds / self.step_s

    @property
    def real(self) -> bool:
        """Whether the saving is significant, undisturbed and large enough to report."""
        above_zero = self.low is not None and self.low > 0
        return above_zero and self.share >= MIN_SAVING and not self.contended

    @property
    def sure(self) -> bool:
        """Whether it is large and its interval narrow, so that it need not be measured again."""
        narrow = self.low is not None and self.low >= _MIN_CERTAINTY * self.seconds
        return narrow and self.share >= _MIN_UNREPEATED_SAVING


class Finding(Record, frozen=True, kw_only=True):
    """A problem that costs time, with a measured remedy.

    Attributes:
        problem: short name of the problem: ``slow operators``.
        where: layers and passes; empty for the step as a whole.
        symptom: what was observed.
        evidence: measurements, and how they were made.
        causes: causes, the largest first.
        saving: measured saving of the remedy.
        next: the command to run next.
        parts: parts of the step that it is about.
        alternatives: other remedies for the same parts, a line each.
        overlaps: numbers of the findings about the same parts, whose savings do not add up.
        experiments: names of the experiments that show it.
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
    experiments: tuple[str, ...] = ()

    derived = ("cause",)
    promised = ("cause",)

    @property
    def cause(self) -> str:
        """All causes in one text."""
        return "; ".join(cause.meaning for cause in self.causes)


class Tried(Record, frozen=True, kw_only=True):
    """An experiment that shows no saving, or could not be made.

    Attributes:
        what: the change.
        problem: the problem that it should solve.
        result: the result in a few words, or why there is none.
        ran: whether the experiment was made at all.
    """

    what: str
    problem: str
    result: str
    ran: bool = True


class Diagnosis(Record, frozen=True, kw_only=True):
    """All results of a step's diagnosis.

    Attributes:
        step: the unchanged step.
        findings: findings, the largest saving first.
        tried: experiments without a saving.
        untried: experiments that could not be made, or for which there was no time.
        terms: terms of the breakdown: name, seconds and share.
        notes: remarks for the reader.
        seconds: duration of the diagnosis.
        interrupted: whether it ended, by Ctrl-C, before everything was tried.
    """

    step: StepRecord
    findings: tuple[Finding, ...]
    tried: tuple[Tried, ...] = ()
    untried: tuple[Tried, ...] = ()
    terms: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def settled(self) -> frozenset[str]:
        """Names of the experiments with a result."""
        names = {name for finding in self.findings for name in finding.experiments}
        return frozenset(names.union(tried.what for tried in self.tried))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: the step's settings, then the results."""
        return {**self.step.spec.to_dict(), **super().to_dict()}


def overlap(first: frozenset[str], second: frozenset[str]) -> bool:
    """Whether two changes are about the same parts of a step."""
    return ALL in first or ALL in second or not first.isdisjoint(second)

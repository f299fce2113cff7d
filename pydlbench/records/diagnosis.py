"""Hypotheses and what becomes of them: findings, or things that were tried. Times in seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydlbench.records.step import StepRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.diagnose.ablation import Experiment

__all__ = [
    "ALL",
    "WORTH",
    "Cause",
    "Diagnosis",
    "Finding",
    "Hypothesis",
    "Saving",
    "Tried",
    "overlap",
    "read_diagnosis",
]

#: Stands for every part of a step.
ALL: Final = "*"
#: What saves a smaller share of the step is no finding.
WORTH: Final = 0.01
#: An interval that reaches further down than this part of its saving is measured a second time:
#: of many experiments without any effect, a few look like savings once.
_SURE: Final = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Something that may cost time, and the experiment that tells.

    Attributes:
        problem: what is seen, in few words; hypotheses that may share it have the same.
        reason: what it would come from, in few words, where a problem may have several reasons.
        symptom: what is seen.
        evidence: measurements, and how they were made.
        cause: why it would be.
        experiment: shows what it costs.
        next: the command to run next.
        parts: of the step that it is about; :data:`ALL` for a change of everything.
        where: the layer and pass, where there is one: ``fc6 forward``.
        most_s: what it can save at the most; the largest is tried first.
    """

    problem: str
    symptom: str
    evidence: tuple[str, ...]
    cause: str
    experiment: Experiment
    next: str
    parts: frozenset[str]
    where: str = ""
    reason: str = ""
    most_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What an experiment measured.

    Attributes:
        seconds: saved per step.
        low: lower end of the interval; None where there were too few rounds.
        high: upper end.
        step_s: the step that they are a part of.
        of: ``step`` if the whole step was run with the change, ``layer`` if one operator was.
        how: what ran beside what.
        rounds: how often.
        causes: what it comes from, the largest first, where the experiment tells.
        evidence: what else it measured.
        otherwise: what to say of it if it is no finding.
    """

    seconds: float
    low: float | None
    high: float | None
    step_s: float
    of: str
    how: str
    rounds: int
    causes: tuple[Cause, ...] = ()
    evidence: tuple[str, ...] = ()
    otherwise: str = ""

    @property
    def share(self) -> float:
        """Of the step."""
        return self.seconds / self.step_s

    @property
    def real(self) -> bool:
        """Whether it saves something beyond doubt that is worth a reader's time."""
        return self.low is not None and self.low > 0 and self.share >= WORTH

    @property
    def sure(self) -> bool:
        """Whether its interval is so narrow that chance alone hardly ever gives it."""
        return self.low is not None and self.low >= _SURE * self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "seconds": self.seconds,
            "ci_low": self.low,
            "ci_high": self.high,
            "share": self.share,
            "of": self.of,
            "how": self.how,
            "rounds": self.rounds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
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

    @property
    def cause(self) -> str:
        """All causes in one text."""
        return "; ".join(one.meaning for one in self.causes)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        plain = asdict(self)
        lists = ("where", "evidence", "alternatives", "overlaps")
        plain.update({name: list(getattr(self, name)) for name in lists})
        plain["cause"] = self.cause
        plain["causes"] = [{**asdict(one), "where": list(one.where)} for one in self.causes]
        return {**plain, "parts": sorted(self.parts), "saving": self.saving.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that was found on a step.

    Attributes:
        step: the step as it is.
        findings: the largest saving first.
        tried: what saves nothing.
        untried: what there was no time for, or could not be run.
        terms: of the cross-check's ledger: name, seconds and share.
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
    seconds: float = field(default=0.0)
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        case = self.step.case
        names = ("model", "batch", "phase", "precision", "framework", "mode", "layout")
        return {
            **{name: getattr(case, name) for name in names},
            "options": dict(case.options),
            "step": self.step.to_dict(),
            "findings": [one.to_dict() for one in self.findings],
            "tried": [asdict(one) for one in self.tried],
            "untried": [asdict(one) for one in self.untried],
            "ledger": [dict(one) for one in self.terms],
            "notes": list(self.notes),
            "seconds": self.seconds,
            "interrupted": self.interrupted,
        }


def overlap(first: frozenset[str], second: frozenset[str]) -> bool:
    """Whether two changes are about the same parts of a step."""
    return ALL in first or ALL in second or not first.isdisjoint(second)


# -----------------------------------------------------------------------------
# Reads back what a diagnosis was kept as.


def read_diagnosis(document: Mapping[str, Any]) -> Diagnosis:
    """Return the diagnosis of ``Diagnosis.to_dict``'s object.

    Raises:
        KeyError: something is missing in it.
    """
    step = StepRecord.from_dict(document["step"])
    return Diagnosis(
        step=step,
        findings=tuple(_finding(one, step) for one in document["findings"]),
        tried=tuple(Tried(**one) for one in document.get("tried", ())),
        untried=tuple(Tried(**one) for one in document.get("untried", ())),
        terms=tuple(document.get("ledger", ())),
        notes=tuple(document.get("notes", ())),
        seconds=document.get("seconds", 0.0),
        interrupted=document.get("interrupted", False),
    )


def _finding(data: Mapping[str, Any], step: StepRecord) -> Finding:
    return Finding(
        problem=data["problem"],
        where=tuple(data["where"]),
        symptom=data["symptom"],
        evidence=tuple(data["evidence"]),
        causes=tuple(_cause(one) for one in data["causes"]),
        saving=_saving(data["saving"], step),
        next=data["next"],
        parts=frozenset(data["parts"]),
        alternatives=tuple(data.get("alternatives", ())),
        overlaps=tuple(data.get("overlaps", ())),
    )


def _cause(data: Mapping[str, Any]) -> Cause:
    return Cause(**{**data, "where": tuple(data.get("where", ()))})


def _saving(data: Mapping[str, Any], step: StepRecord) -> Saving:
    """The step that it is a share of was timed beside it, and is not the one on top."""
    share, seconds = data["share"], data["seconds"]
    on_top = 1.0 if step.time is None else step.time.median
    step_s = seconds / share if share else on_top
    return Saving(
        seconds=seconds,
        low=data["ci_low"],
        high=data["ci_high"],
        step_s=step_s,
        of=data["of"],
        how=data["how"],
        rounds=data["rounds"],
    )

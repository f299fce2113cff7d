"""Reads back what a diagnosis was kept as."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.diagnose.finding import Cause, Diagnosis, Finding, Saving, Tried
from pydlbench.endtoend import StepRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["read_diagnosis"]


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

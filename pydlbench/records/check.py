"""What a check found, as it is stored and printed. All times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any

import msgspec

from pydlbench.records.measurement import TimeSummary
from pydlbench.records.record import Record
from pydlbench.records.specs import Precision
from pydlbench.records.step import Framework, Phase

__all__ = [
    "UNEXPLAINED",
    "CheckRecord",
    "CheckResult",
    "LedgerTerm",
    "OperatorRow",
    "RoundRow",
]

#: The only term that is a difference.
UNEXPLAINED = "unexplained"


class LedgerTerm(Record, frozen=True, kw_only=True):
    """One term of the ledger.

    Attributes:
        term: its name.
        seconds: of the measured step; below zero where something is saved.
        share: of the measured step.
        how: how it was measured.
        detail: what stands out in it; empty where nothing does.
    """

    term: str
    seconds: float
    share: float
    how: str
    detail: str = ""


class OperatorRow(Record, frozen=True, kw_only=True):
    """One distinct operator of the step.

    Attributes:
        name: of its first occurrence.
        kind: ``layer``, ``pointwise``, ``gradient sum``, ``loss``, ``optimizer`` or ``feed``.
        count: how often it is in the step.
        seconds: of one execution, its share of starting a call taken off.
        native_s: what the native library needs for the same nodes and passes; None if unknown.
        nodes: of its first occurrence.
    """

    name: str
    kind: str
    count: int
    seconds: float
    native_s: float | None = None
    nodes: tuple[str, ...] = ()


class RoundRow(Record, frozen=True, kw_only=True, rename={"operators_s": "pieces_s"}):
    """One round: first the operators, then the prediction is written down, then the step runs.

    Attributes:
        operators_s: sum of the operators (JSON: ``pieces_s``).
        faults_s: as many page faults as earlier steps had (those inside the operators left out),
            each at what one cost on fresh pages.
        estimate_s: the prediction for this round.
        measured_s: the step, with the default allocator.
        kept_s: the step with an allocator that keeps its pages.
        resident_s: the same with its images lying there; None where they do in the others too.
    """

    operators_s: float
    faults_s: float
    estimate_s: float
    measured_s: float
    kept_s: float
    resident_s: float | None = None


class CheckRecord(
    Record,
    frozen=True,
    kw_only=True,
    rename={"measured": "measured_s", "operators": "pieces"},
):
    """A step of a model in a framework: predicted, measured, explained.

    Attributes:
        model: its name.
        options: of the model.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        framework: ``torch`` or ``tensorflow``.
        mode: of the framework.
        library: name and version of the framework.
        threads: that computed.
        estimate_s: median of the rounds' predictions.
        estimate_native_s: sum of the native layers, between hot and cold caches.
        native_low_s: of that, the lower end of the interval.
        native_high_s: and the upper one.
        ledger: terms that sum to the measured step, ``unexplained`` the last.
        rounds: as they were taken.
        operators: each distinct one (JSON: ``pieces``).
        faults: pages touched for the first time per step: ``predicted`` (counted in steps that ran
            before the prediction was made; in the operators, where the framework keeps its
            pages itself), ``counted`` (in those it is held against) and ``kept`` (in the step whose
            allocator keeps pages).
        calibration: what a call, an operator and a page fault cost, and how that was measured.
        layout: of images: ``nhwc`` (PyTorch's channels_last) or ``nchw``.
        feed: ``resident`` images, or new ones from the ``host`` in each step.
        ladder: the rungs from the theoretical limit to the measured step, in seconds; None where
            one is not known, empty in older documents.
        notes: what a reader has to know, and terms that are absent.
        seconds: that the check took.
        measured: the step with the default allocator, over the rounds (JSON: ``measured_s``).
    """

    model: str
    batch: int
    phase: Phase
    precision: Precision
    framework: Framework
    mode: str
    library: str
    threads: int
    estimate_s: float
    estimate_native_s: float
    native_low_s: float
    native_high_s: float
    ledger: tuple[LedgerTerm, ...]
    rounds: tuple[RoundRow, ...]
    operators: tuple[OperatorRow, ...]
    faults: Mapping[str, float | None]
    calibration: Mapping[str, Any] = msgspec.field(default_factory=dict)
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    layout: str = "nhwc"
    feed: str = "resident"
    ladder: Mapping[str, float | None] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    measured: TimeSummary

    derived = ("error", "error_native", "unexplained")

    @property
    def error(self) -> float:
        """How far the prediction is off, as a signed fraction of the measured step."""
        return (self.estimate_s - self.measured.median) / self.measured.median

    @property
    def error_native(self) -> float:
        """How far the native sum is off, likewise."""
        return (self.estimate_native_s - self.measured.median) / self.measured.median

    @property
    def operators_s(self) -> float:
        """The operators one by one, pages kept: the median over the rounds."""
        return median(one.operators_s for one in self.rounds) if self.rounds else self.estimate_s

    @property
    def unexplained(self) -> float:
        """What no term explains, as a signed fraction of the measured step."""
        return next(one.share for one in self.ledger if one.term == UNEXPLAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What came of checking a step in one framework and mode: a record, or the reason for none.

    Attributes:
        model: the model's name.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        framework: ``torch`` or ``tensorflow``.
        mode: one of the framework's.
        status: ``ok``, ``skipped`` (it cannot) or ``failed``.
        record: what was found; None unless ``ok``.
        reason: why there is none.
        options: of the model.
        layout: of images: ``nhwc`` or ``nchw``.
        feed: ``resident`` or ``host``.
    """

    model: str
    batch: int
    phase: str
    precision: str
    framework: str
    mode: str
    status: str = "ok"
    record: CheckRecord | None = None
    reason: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "nhwc"
    feed: str = "resident"

    @property
    def who(self) -> str:
        """Framework and mode: ``torch eager``."""
        return f"{self.framework} {self.mode}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: the record's fields stand in the object itself."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "record"}
        own["options"] = dict(self.options)
        return own if self.record is None else {**own, **self.record.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CheckResult:
        """Read :meth:`to_dict`'s object back.

        Raises:
            ValueError: a value of the record is not of its type.
        """
        own = {one.name: data[one.name] for one in fields(cls) if one.name in data}
        record = CheckRecord.from_dict(data) if "measured_s" in data else None
        return cls(**{**own, "record": record})

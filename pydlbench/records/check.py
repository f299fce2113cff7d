"""What a cross-check found, as it is stored and printed. All times in seconds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydlbench.records.measurement import TimeSummary

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["UNEXPLAINED", "CheckRecord", "LedgerTerm", "PieceRow", "RoundRow"]

#: The only term that is a difference.
UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTerm:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRow:
    """One distinct part of the step.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """One round: first the parts, then the prediction is written down, then the step runs.

    Attributes:
        pieces_s: sum of the parts.
        faults_s: as many page faults as earlier steps had (those inside the parts left out), each
            at what one cost on fresh pages.
        estimate_s: the prediction for this round.
        measured_s: the step, with the default allocator.
        kept_s: the step with an allocator that keeps its pages.
        resident_s: the same with its images lying there; None where they do in the others too.
    """

    pieces_s: float
    faults_s: float
    estimate_s: float
    measured_s: float
    kept_s: float
    resident_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRecord:
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
        measured: the step with the default allocator, over the rounds.
        ledger: terms that sum to the measured step, ``unexplained`` the last.
        rounds: as they were taken.
        pieces: the parts.
        faults: pages touched for the first time per step: ``predicted`` (counted in steps that ran
            before the prediction was made; in the parts, where the framework keeps its pages
            itself), ``counted`` (in those it is held against) and ``kept`` (in the step whose
            allocator keeps pages).
        calibration: what a call, an operator and a page fault cost, and how that was measured.
        layout: of images: ``nhwc`` (PyTorch's channels_last) or ``nchw``.
        feed: ``resident`` images, or new ones from the ``host`` in each step.
        notes: what a reader has to know, and terms that are absent.
        seconds: that the check took.
    """

    model: str
    batch: int
    phase: str
    precision: str
    framework: str
    mode: str
    library: str
    threads: int
    estimate_s: float
    estimate_native_s: float
    native_low_s: float
    native_high_s: float
    measured: TimeSummary
    ledger: tuple[LedgerTerm, ...]
    rounds: tuple[RoundRow, ...]
    pieces: tuple[PieceRow, ...]
    faults: Mapping[str, float | None]
    calibration: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "nhwc"
    feed: str = "resident"
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def error(self) -> float:
        """How far the prediction is off, as a signed fraction of the measured step."""
        return (self.estimate_s - self.measured.median) / self.measured.median

    @property
    def error_native(self) -> float:
        """How far the native sum is off, likewise."""
        return (self.estimate_native_s - self.measured.median) / self.measured.median

    @property
    def unexplained(self) -> float:
        """What no term explains, as a signed fraction of the measured step."""
        return next(one.share for one in self.ledger if one.term == UNEXPLAINED)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of ``check --json``."""
        plain: dict[str, Any] = _lists(dataclasses.asdict(self))
        del plain["measured"]
        return {
            **plain,
            "measured_s": self.measured.to_dict(),
            "error": self.error,
            "error_native": self.error_native,
            "unexplained": self.unexplained,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CheckRecord:
        """Read :meth:`to_dict`'s output back; unknown names are ignored."""
        known = {one.name for one in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        values["measured"] = TimeSummary.from_dict(data["measured_s"])
        for name, kind in (("ledger", LedgerTerm), ("rounds", RoundRow), ("pieces", PieceRow)):
            values[name] = tuple(_part(kind, one) for one in data[name])
        values["notes"] = tuple(data.get("notes", ()))
        return cls(**values)


def _part(kind: Any, data: Mapping[str, Any]) -> Any:
    known = {one.name for one in dataclasses.fields(kind)}
    values = {name: value for name, value in data.items() if name in known}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def _lists(value: Any) -> Any:
    """Return a value as JSON has it: lists, not tuples."""
    if isinstance(value, dict):
        return {name: _lists(one) for name, one in value.items()}
    return [_lists(one) for one in value] if isinstance(value, (list, tuple)) else value

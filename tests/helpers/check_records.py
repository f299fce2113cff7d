"""Invented records of checks, which the tests of report and command line share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.ladder.ledger import Experiment, conclude
from pydlbench.records.check import CheckRecord, Lap, OperatorRow
from pydlbench.records.forecast import ForecastRecord, Place
from pydlbench.records.measurement import time_summary

if TYPE_CHECKING:
    from pydlbench.records.step import StepSpec

#: The rungs, and the sides of experiments.
_MS = {
    "limit": 84.0,
    "native": 90.9,
    "native_hot": 88.0,
    "native_cold": 93.8,
    "operators": 108.0,
    "step": 116.8,
    "step_kept": 110.5,
}
_ABSENT = {
    "native_chain": "nothing here runs the native layers as a chain",
    "operator_chain": "nothing here records and replays the step's calls",
}


def make_laps(count: int = 9, **ms: float) -> tuple[Lap, ...]:
    """Laps of alexnet-owt, which drift by 3 % alike; ``ms`` has what differs, in milliseconds."""
    visits = ("native", "operators", "step", "step_kept")
    return tuple(
        Lap(
            seconds={
                name: 1e-3 * value * (1 + 0.03 * (index - count // 2) / count)
                for name, value in {**_MS, **ms}.items()
            },
            canary=dict.fromkeys(visits, 0.99),
            clock_hz=dict.fromkeys(visits, 4.3e9),
        )
        for index in range(count)
    )


def make_record(**changes: Any) -> CheckRecord:
    """A check of alexnet-owt in PyTorch, measured 116.8 ms, concluded from invented laps.

    Args:
        changes: fields of the record; ``reorders_s`` is what a log has, ``forecast_s`` a forecast.
    """
    laps = changes.pop("laps", None) or make_laps()
    steps = [lap.seconds["step"] for lap in laps]
    reorders = dict.fromkeys(range(6), changes.pop("reorders_s", 0.002))
    kept = {i: one.seconds["step"] - one.seconds["step_kept"] for i, one in enumerate(laps)}
    tried = [
        Experiment(
            term="layout reorders", rung="operators", seconds=reorders, how="a log", paired=False
        ),
        Experiment(term="fresh memory", rung="step", seconds=kept, how="with kept pages"),
    ]
    details = {"native": "conv1 +5.1 ms", "operators": "fc6 +12.0 ms, fc7 +4.9 ms"}
    found = conclude(laps, tried, _ABSENT, details=details)
    values: dict[str, Any] = {
        "model": "alexnet-owt",
        "batch": 32,
        "phase": "forward",
        "precision": "fp32",
        "framework": "torch",
        "mode": "eager",
        "library": "torch 2.13.0",
        "threads": 2,
        "measured": time_summary(steps, 0.95),
        "rungs": found.rungs,
        "reasons": found.reasons,
        "native_hot": found.native_hot,
        "native_cold": found.native_cold,
        "additivity_s": 0.1124,
        "ledger": found.ledger,
        "unexplained_low": found.unexplained[0] if found.unexplained else None,
        "unexplained_high": found.unexplained[1] if found.unexplained else None,
        "contradictions": found.contradictions,
        "disturbed": found.disturbed,
        "laps": laps,
        "operators": (
            _row("conv1", 0.012),
            _row("conv2", 0.028),
            _row("fc6", 0.013, names=("fc6", "fc7")),
            _row("relu1", 0.0004, kind="pointwise", count=7, names=("relu1",)),
        ),
        "native_parts": {"conv1": 0.0115, "conv2": 0.027, "fc6": 0.007, "fc7": 0.007},
        "faults": {"counted": 12900.4, "kept": 12.0},
        "calibration": {
            "once_s": 2e-5,
            "dispatch_s": 4e-6,
            "how": "an operator of one element",
        },
        "notes": ("no fusion: nodes are not joined",),
        "seconds": 54.2,
    }
    return CheckRecord(**{**values, **changes})


def _row(name: str, seconds: float, **how: Any) -> OperatorRow:
    values: dict[str, Any] = {"kind": "layer", "names": (name,), **how}
    count = values.pop("count", len(values["names"]))
    text = f"invented.{name}"
    return OperatorRow(signature=text, operator=text, count=count, seconds=seconds, **values)


def tensorflow(record: CheckRecord) -> CheckRecord:
    """The same step in TensorFlow, whose parts add up to half of it."""
    words = {"framework": "tensorflow", "mode": "graph", "library": "TensorFlow 2.21.0"}
    return msgspec.structs.replace(record, **words, additivity_s=0.0584)


def record_of(step: StepSpec) -> CheckRecord:
    """A check of a step, with the numbers of :func:`make_record`."""
    names = ("model", "options", "batch", "phase", "framework", "mode")
    return make_record(**{name: getattr(step, name) for name in names})


def forecast_of(model: str, seconds: float, **changes: Any) -> ForecastRecord:
    """A forecast of a forward step in PyTorch, known to a tenth.

    Args:
        model: its name.
        seconds: of the step.
        changes: further fields of the record.
    """
    place = Place(framework="torch", mode="eager", library="torch 2.13.0", threads=2)
    values: dict[str, Any] = {
        "model": model,
        "batch": 4,
        "phase": "forward",
        "place": place,
        "created_utc": "2030-01-01T00:00:00+00:00",
        "seconds": seconds,
        "ci_low": 0.9 * seconds,
        "ci_high": 1.1 * seconds,
        "operators_s": seconds,
    }
    return ForecastRecord(**{**values, **changes})

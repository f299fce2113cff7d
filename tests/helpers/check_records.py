"""Invented records of checks, which the tests of report and command line share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.records.check import CheckRecord, LedgerTerm, OperatorRow, RoundRow
from pydlbench.records.measurement import TimeSummary

if TYPE_CHECKING:
    from pydlbench.records.step import StepSpec

MEASURED_S = 0.1168
_TERMS = (
    ("layers at their roof", 0.0840, "rooflines of the native rows, summed", ""),
    ("above the roof, native", 0.0069, "native rows minus their rooflines", "conv1 +5.1 ms"),
    ("operator choice", 0.0178, "operators alone minus native rows", "fc6 +12.0 ms, fc7 +4.9 ms"),
    ("pointwise", -0.0021, "other nodes minus native rows", ""),
    ("allocation, first touch", 0.0063, "the step minus the same with kept pages", ""),
    ("dispatch", 0.0003, "4.0 us per operator", ""),
    ("unexplained", 0.0036, "the measured step minus all other terms", ""),
)


def make_record(**changes: Any) -> CheckRecord:
    """A check of alexnet-owt in PyTorch: predicted 112.4 ms, measured 116.8 ms."""
    values: dict[str, Any] = {
        "model": "alexnet-owt",
        "batch": 32,
        "phase": "forward",
        "precision": "fp32",
        "framework": "torch",
        "mode": "eager",
        "library": "torch 2.13.0",
        "threads": 2,
        "estimate_s": 0.1124,
        "estimate_native_s": 0.0909,
        "native_low_s": 0.0880,
        "native_high_s": 0.0938,
        "measured": TimeSummary(
            median=MEASURED_S,
            ci_low=0.1160,
            ci_high=0.1175,
            q1=0.1165,
            q3=0.1170,
            min=0.1159,
            n=9,
        ),
        "ledger": make_ledger(),
        "rounds": tuple(
            RoundRow(
                operators_s=0.1080 + drift,
                faults_s=0.0044,
                estimate_s=0.1124 + drift,
                measured_s=MEASURED_S + drift,
                kept_s=0.1105 + drift,
            )
            for drift in (-0.002, -0.001, 0.0, 0.001, 0.002)
        ),
        "operators": (
            OperatorRow(
                name="conv1",
                kind="layer",
                count=1,
                seconds=0.012,
                native_s=0.0115,
                nodes=("conv1",),
            ),
            OperatorRow(
                name="conv2", kind="layer", count=1, seconds=0.028, native_s=0.027, nodes=("conv2",)
            ),
            OperatorRow(
                name="fc6", kind="layer", count=2, seconds=0.013, native_s=0.007, nodes=("fc6",)
            ),
            OperatorRow(name="relu1", kind="pointwise", count=7, seconds=0.0004, nodes=("relu1",)),
        ),
        "ladder": {"theoretical_s": 0.0801, "roof_s": 0.0840},
        "faults": {"predicted": 12345.0, "counted": 12900.4, "kept": 12.0},
        "calibration": {
            "once_s": 2e-5,
            "dispatch_s": 4e-6,
            "fault_s": 1.3e-6,
            "how": "an operator of one element",
        },
        "notes": ("no fusion: nodes are not joined",),
        "seconds": 54.2,
    }
    return CheckRecord(**{**values, **changes})


def record_of(step: StepSpec) -> CheckRecord:
    """A check of a step, with the numbers of :func:`make_record`."""
    names = ("model", "options", "batch", "phase", "framework", "mode")
    return make_record(**{name: getattr(step, name) for name in names})


def make_ledger(**seconds: float) -> tuple[LedgerTerm, ...]:
    """The terms; those that are named with other seconds, the rest unexplained."""
    found = {term: seconds.get(term.split(",")[0].split()[0], own) for term, own, _, _ in _TERMS}
    others = sum(value for term, value in found.items() if term != "unexplained")
    found["unexplained"] = MEASURED_S - others
    return tuple(
        LedgerTerm(
            term=term, seconds=found[term], share=found[term] / MEASURED_S, how=how, detail=detail
        )
        for term, _, how, detail in _TERMS
    )


def tensorflow(record: CheckRecord) -> CheckRecord:
    """The same step in TensorFlow, slower than predicted by half."""
    return msgspec.structs.replace(
        record, framework="tensorflow", mode="graph", library="TensorFlow 2.21.0", estimate_s=0.0584
    )

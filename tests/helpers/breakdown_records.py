"""Invented breakdowns, which the tests of report and command line share."""

from __future__ import annotations

from typing import Any

from pydlbench.records.breakdown import (
    BreakdownRecord,
    BrokenDownCall,
    BrokenDownModule,
    Level,
    Levels,
    Term,
)
from pydlbench.records.estimate import ForecastRecord, Place
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import Tracing

MS = 1e-3
#: Of alexnet-owt's step.
STEP_MS = 116.8
_LEVELS = {"limit": 84.0, "native": 90.9, "alone": 108.0, "in_context": 112.0, "step": STEP_MS}
_TERMS = (
    ("limit", "limit", 84.0, "limit", ""),
    ("kernels", "difference", 6.9, "native", "conv1 aten.convolution +5.1 ms"),
    ("reorders", "experiment", 2.0, "alone", ""),
    ("unexplained choice", "unexplained", 15.1, "alone", "fc6 aten.addmm +12.0 ms"),
    ("fresh memory", "experiment", 6.3, "in_context", ""),
    ("unexplained context", "unexplained", -2.3, "in_context", ""),
    ("between calls", "difference", 4.8, "step", ""),
)
# Milliseconds of each module: in context, alone, of native layers, their limit.
_MODULES = {
    "conv1": (13.0, 12.0, 11.5, 10.0),
    "conv2": (30.0, 28.0, 27.0, 25.0),
    "fc6": (14.0, 13.0, 7.0, 6.0),
    "relu1": (2.0, 1.5, 1.4, 1.3),
}


def level(ms: float) -> Level:
    """Return a level that is known to a twentieth."""
    return Level(median=ms * MS, ci_low=0.95 * ms * MS, ci_high=1.05 * ms * MS, n=6)


def term(name: str, kind: str, ms: float, below: str, detail: str = "") -> Term:
    """Return a term that is known to a millisecond."""
    return Term(
        term=name,
        kind=kind,
        seconds=ms * MS,
        ci_low=(ms - 1) * MS,
        ci_high=(ms + 1) * MS,
        share=ms / STEP_MS,
        how=f"how {name} was measured",
        level=below,
        detail=detail,
    )


def make_record(**changes: Any) -> BreakdownRecord:
    """A breakdown of alexnet-owt in PyTorch, whose step takes 116.8 ms.

    Args:
        changes: fields of the record or of its step; with ``factor`` all levels and modules above
            the native ones take so many times as long.
    """
    spec = _spec_of({"model": "alexnet-owt", "batch": 32}, changes)
    factor = changes.pop("factor", 1.0)
    levels = {
        name: level(ms * (factor if name in ("alone", "in_context", "step") else 1.0))
        for name, ms in _LEVELS.items()
    }
    values: dict[str, Any] = {
        "spec": spec,
        "library": "torch 2.13.0",
        "threads": 2,
        "processes": 6,
        "measured": levels["step"],
        "levels": Levels(**levels),
        "reasons": {"faults": "nobody counts them by call"},
        "terms": tuple(term(*one) for one in _TERMS),
        "calls": tuple(_call(name) for name in _MODULES),
        "modules": tuple(_module(name) for name in _MODULES),
        "between_calls_s": 4.8 * MS,
        "unexplained": 12.8 / STEP_MS,
        "unexplained_low": 0.09,
        "unexplained_high": 0.13,
        "trace": Tracing(
            source="a profiler", rounds=6, calls=4, traced_s=0.118, untraced_s=0.117, cost=1.01
        ),
        "seconds": 54.2,
    }
    return BreakdownRecord(**{**values, **changes})


def _spec_of(usual: dict[str, Any], changes: dict[str, Any]) -> StepSpec:
    """Return a step, and take its fields out of ``changes``."""
    fields = [name for name in changes if name in StepSpec.__struct_fields__]
    return StepSpec(**usual | {name: changes.pop(name) for name in fields})


def _call(name: str) -> BrokenDownCall:
    in_context, alone, native, limit = (ms * MS for ms in _MODULES[name])
    return BrokenDownCall(
        operator=f"invented.{name}",
        module=name,
        direction="forward",
        count=1,
        in_context_s=in_context,
        share=in_context / (STEP_MS * MS),
        alone_s=alone,
        native_s=native,
        limit_s=limit,
        signatures=(f"invented.{name}()",),
    )


def _module(name: str) -> BrokenDownModule:
    in_context, alone, native, limit = (ms * MS for ms in _MODULES[name])
    return BrokenDownModule(
        module=name,
        seconds=in_context,
        share=in_context / (STEP_MS * MS),
        alone_s=alone,
        native_s=native,
        limit_s=limit,
    )


def document_of(record: BreakdownRecord) -> dict[str, Any]:
    """Return a breakdown's document as a store has it."""
    return {"status": "ok", "reason": None, **record.to_dict()}


def record_of(step: StepSpec) -> BreakdownRecord:
    """A breakdown of a step, with the numbers of :func:`make_record`."""
    return make_record(spec=step)


def forecast_of(model: str, seconds: float, **changes: Any) -> ForecastRecord:
    """A forecast of a forward step in PyTorch, known to a tenth.

    Args:
        model: its name.
        seconds: of the step.
        changes: further fields of the record or of its step.
    """
    spec = _spec_of({"model": model, "batch": 4}, changes)
    place = Place(framework="torch", mode="eager", library="torch 2.13.0", threads=2)
    values: dict[str, Any] = {
        "spec": spec,
        "place": place,
        "created_utc": "2030-01-01T00:00:00+00:00",
        "seconds": seconds,
        "ci_low": 0.9 * seconds,
        "ci_high": 1.1 * seconds,
        "operators_s": seconds,
    }
    return ForecastRecord(**{**values, **changes})

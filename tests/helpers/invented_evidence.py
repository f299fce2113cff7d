"""Invented native rows and evidence, which the tests of the ledger share."""

from __future__ import annotations

from pydlbench.ladder.ledger import Evidence, ledger
from pydlbench.records.measurement import Measurement, Roofline, TimeSummary


def row(case, median, roof=None, status="ok"):
    time = TimeSummary(median=median, ci_low=None, ci_high=None, q1=0, q3=0, min=0, n=9)
    return Measurement(
        layer=case.layer.name or case.layer.problem,
        kind=case.layer.kind,
        problem=case.layer.problem,
        batch=1,
        pass_=case.pass_,
        precision=case.precision,
        cache=case.cache,
        status=status,
        reason=None if status == "ok" else "no such kernel",
        time=time if status == "ok" else None,
        roofline=roof and Roofline(bound="memory", time_s=roof, efficiency=roof / median),
        flops=1,
        flops_executed=1,
        bytes=1,
    )


def evidence(found, native, **changes):
    values = {
        "measured_s": 5000.0,
        "times": {one.name: 7.0 for one in found},
        "native": native,
        "allocation_s": 30.0,
        "allocation_how": "A minus B",
        "dispatch_s": 0.125,
        "operators": {one.name: len(one.nodes) for one in found},
        "reorder_s": 11.0,
        "reorder_how": "a log",
    }
    return Evidence(**{**values, **changes})


def terms(model, found, seen):
    return {one.term: one for one in ledger(model, found, seen)}

"""Whether a GPU works as its kind should, from invented steps."""

from typing import Any

import pytest

from pydlbench.records.measurement import TimeSummary
from pydlbench.records.step import StepRecord, StepRow, StepSpec
from pydlbench.report.step import verdicts

H200 = {"name": "NVIDIA H200", "capability": "9.0", "memory_bytes": 141_000_000_000}


def row(share: float, precision: str = "fp32", flops: int = 10**13, gpu: Any = None) -> StepRow:
    """A step at a share of an H200's 67 (fp32) or 989.5 TFLOP/s (bf16-tc)."""
    promised = {"fp32": 67e12, "bf16-tc": 989.5e12}[precision]
    seconds = flops / (share * promised)
    record = StepRecord(
        spec=StepSpec(model="vgg16", batch=64, device="cuda:0", precision=precision),
        status="ok",
        time=TimeSummary(
            median=seconds,
            ci_low=seconds,
            ci_high=seconds,
            q1=seconds,
            q3=seconds,
            min=seconds,
            n=9,
        ),
        environment={"gpu": H200 if gpu is None else gpu},
    )
    return StepRow(record=record, title="VGG-16", flops=flops)


@pytest.mark.parametrize(
    ("share", "precision", "says"),
    [
        (0.5, "fp32", "works as a H200 SXM should"),
        (0.15, "fp32", "may be held back"),
        (0.05, "fp32", "does not work as a H200 SXM should"),
        (0.15, "bf16-tc", "works as a H200 SXM should"),
        (0.04, "bf16-tc", "does not work as a H200 SXM should"),
    ],
)
def test_share_of_what_the_card_promises(share, precision, says):
    (line,) = verdicts([row(share, precision)])
    assert says in line
    assert precision in line


def test_the_best_step_counts():
    (line,) = verdicts([row(0.02), row(0.3, "bf16-tc")])
    assert "works as a H200 SXM should" in line
    assert "bf16-tc" in line


def test_small_steps_judge_nothing():
    (line,) = verdicts([row(0.01, flops=10**10)])
    assert "no verdict" in line
    assert "nearest: a larger --batch" in line


def test_an_unknown_card_is_not_judged():
    (line,) = verdicts([row(0.5, gpu={"name": "Invented 9000", "capability": "9.0"})])
    assert "not among the known cards" in line

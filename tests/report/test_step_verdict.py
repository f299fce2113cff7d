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
    ("rows", "texts"),
    [
        ([{"share": 0.5}], ("works as a H200 SXM should", "fp32")),
        ([{"share": 0.15}], ("may be held back", "fp32")),
        ([{"share": 0.05}], ("does not work as a H200 SXM should", "fp32")),
        ([{"share": 0.15, "precision": "bf16-tc"}], ("works as a H200 SXM should", "bf16-tc")),
        (
            [{"share": 0.04, "precision": "bf16-tc"}],
            ("does not work as a H200 SXM should", "bf16-tc"),
        ),
        # The best step counts.
        (
            [{"share": 0.02}, {"share": 0.3, "precision": "bf16-tc"}],
            ("works as a H200 SXM should", "bf16-tc"),
        ),
        ([{"share": 0.01, "flops": 10**10}], ("no verdict", "nearest: a larger --batch")),
        (
            [{"share": 0.5, "gpu": {"name": "Invented 9000", "capability": "9.0"}}],
            ("not among the known cards",),
        ),
    ],
)
def test_the_verdict_on_a_card(rows, texts):
    (line,) = verdicts([row(**changes) for changes in rows])
    assert all(text in line for text in texts)

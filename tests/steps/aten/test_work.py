"""What recorded calls compute: layers, passes, FLOPs and least bytes of invented signatures."""

from __future__ import annotations

import pytest

from pydlbench.records.operator import RecordedCall
from pydlbench.steps.aten.work import work_of


def call(signature, size=0, direction="forward", count=1):
    """Return a recorded call; ``size``: bytes of its operands and results."""
    operator = signature.partition("(")[0].rpartition(".")[0]
    return RecordedCall(
        signature=signature, operator=operator, bytes=size, direction=direction, count=count
    )


def layers(found):
    return [(one.layer.kind, one.layer.problem, one.pass_) for one in found.layers]


IMAGES = "float32[2, 8, 6, 6](288, 36, 6, 1)"
CONVOLUTION = "[1, 1], [1, 1], [1, 1], False, [0, 0]"


@pytest.mark.parametrize(
    ("signature", "direction", "expected"),
    [
        ("mm.default(float32[4, 6](6, 1), float32[6, 5](5, 1))", "forward", ("4x6:6x5", "forward")),
        (
            "mm.default(float32[4, 6](6, 1), float32[6, 5](5, 1))",
            "backward",
            ("4x5:5x6", "backward-data"),
        ),
        # The outer gradient (6 x 4), transposed, times the source (6 x 5).
        (
            "mm.default(float32[4, 6](1, 4), float32[6, 5](5, 1))",
            "backward",
            ("6x5:5x4", "backward-weights"),
        ),
        # The sources (6 x 4), transposed, times the outer gradients (6 x 5).
        (
            "bmm.default(float32[3, 4, 6](24, 1, 4), float32[3, 6, 5](30, 5, 1))",
            "backward",
            ("3x6x4:3x4x5", "backward-weights"),
        ),
    ],
)
def test_the_pass_of_a_product_follows_from_how_its_left_operand_lies(
    signature, direction, expected
):
    found = work_of(call(f"aten.{signature}", direction=direction))
    assert layers(found) == [("gemm", *expected)]
    assert found.flops == found.product_flops == found.layers[0].layer.flops(expected[1])

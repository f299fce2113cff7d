"""Invented calls of a step: a convolution in two modules, a view, an operator of the user's."""

from pydlbench.records.trace import RecordedCall

__all__ = ["CALLS"]

IMAGES = "float32[2, 8, 6, 6](288, 36, 6, 1)"
CALLS = (
    RecordedCall(
        signature=f"aten.convolution.default({IMAGES}, float32[4, 8, 3, 3](72, 9, 3, 1), None, "
        "[1, 1], [1, 1], [1, 1], False, [0, 0], 1)",
        operator="aten.convolution",
        count=3,
        names=("a", "b"),
        parts=(2, 1),
        bytes=4 * (2 * 8 * 36 + 4 * 8 * 9 + 2 * 4 * 36),
    ),
    RecordedCall(
        signature=f"aten.view.default({IMAGES}, [2, 288])",
        operator="aten.view",
        names=("a",),
        bytes=1,
    ),
    RecordedCall(
        signature=f"my.op.default({IMAGES})", operator="my.op", names=("b",), bytes=4 * 2 * 8 * 36
    ),
)

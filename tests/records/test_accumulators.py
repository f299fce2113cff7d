"""Which formats of sums are less exact than which."""

import pytest

from pydlbench.records.measurement import less_exact


@pytest.mark.parametrize(
    ("accumulate", "than", "expected"),
    [
        ("bfloat16", "float32", True),
        ("bfloat16", "float16", True),
        ("float16", "float32", True),
        ("float32", "float64", True),
        ("float32", "float32-tensor", False),
        ("float32", "bfloat16", False),
        (None, "float32", False),
        ("bfloat16", None, False),
        ("unheard of", "float32", False),
    ],
)
def test_less_exact(accumulate, than, expected):
    assert less_exact(accumulate, than) == expected

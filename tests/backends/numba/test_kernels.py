"""Which outputs a tap leads to an input: the bounds of the loops."""

from typing import Any

import pytest

from pydlbench.backends.numba.conv import first_output, last_output


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("offset", range(-5, 8))
def test_spans_hold_just_the_outputs_with_an_input(offset, stride):
    inputs, outputs = 5, 4
    expected = [o for o in range(outputs) if 0 <= o * stride + offset < inputs]
    first: Any = first_output(offset, stride)
    last: Any = last_output(offset, stride, inputs, outputs)
    assert list(range(first, last)) == expected

"""Which elements the taps of a window meet, along one axis."""

import itertools

import numpy as np
import pytest

from pydlbench.backends.numba.backend import inputs_by_tap, outputs_by_tap, spans_by_tap
from pydlbench.ops.axis import Axis

AXES = [
    Axis(size=5, out=4, kernel=3, stride=stride, dilation=dilation, pad=pad)
    for stride, dilation, pad in itertools.product((1, 2, 3), (1, 2, 4), (0, 1, 6))
]


@pytest.mark.parametrize("axis", AXES)
def test_each_tap_of_each_output_meets_an_input_or_padding(axis):
    forth, back = inputs_by_tap(axis), outputs_by_tap(axis)
    met = set()
    for tap, output in np.ndindex(forth.shape):
        place = output * axis.stride + tap * axis.dilation - axis.pad
        inside = 0 <= place < axis.size
        assert forth[tap, output] == (place if inside else -1)
        if inside:
            assert back[tap, place] == output
            met.add((tap, place))
    assert {tuple(pair) for pair in np.argwhere(back >= 0)} == met


@pytest.mark.parametrize("part", [1, 3, 4, 28])
@pytest.mark.parametrize("axis", AXES)
def test_spans_hold_just_the_outputs_with_an_input(axis, part):
    met = inputs_by_tap(axis)
    pairs = [
        (number, tap, output, given + index * axis.stride)
        for (number, tap), (first, given, count) in (
            (place, spans_by_tap(axis, part)[place])
            for place in np.ndindex(-(-axis.out // part), axis.kernel)
        )
        for index, output in enumerate(range(first, first + count))
    ]
    assert sorted(pairs) == [
        (number, tap, output, met[tap, output])
        for number in range(-(-axis.out // part))
        for tap in range(axis.kernel)
        for output in range(number * part, min(number * part + part, axis.out))
        if met[tap, output] >= 0
    ]

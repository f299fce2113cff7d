"""Taps of a window inside the padded image, compared with brute force."""

from hypothesis import example, given
from hypothesis import strategies as st

from pydlbench.ops.axis import Axis, output_size, trailing_pad

axes = st.builds(
    Axis,
    size=st.integers(1, 40),
    out=st.integers(1, 25),
    kernel=st.integers(1, 25),
    stride=st.integers(1, 12),
    dilation=st.integers(1, 12),
    pad=st.integers(0, 30),
)


def brute_force(axis: Axis) -> list[tuple[int, int, int]]:
    """All triples of an output, a tap, and the input element that they meet at."""
    return [
        (o, k, position)
        for o in range(axis.out)
        for k in range(axis.kernel)
        if 0 <= (position := o * axis.stride + k * axis.dilation - axis.pad) < axis.size
    ]


@given(axes)
@example(Axis(size=1, out=2, kernel=1, stride=2, dilation=1, pad=1))  # padding only
@example(Axis(size=13, out=13, kernel=3, stride=1, dilation=1, pad=1))
@example(Axis(size=56, out=28, kernel=1, stride=2, dilation=1, pad=0))
@example(Axis(size=12, out=4, kernel=3, stride=6, dilation=4, pad=2))  # common factor
def test_counts_agree_with_brute_force(axis):
    met = brute_force(axis)
    assert axis.taps() == len(met)
    assert axis.used_outputs() == len({o for o, _, _ in met})
    assert axis.used_taps() == len({k for _, k, _ in met})
    assert axis.touched_inputs() == len({position for _, _, position in met})
    assert axis.elements_inside() == [
        sum(o == place for o, _, _ in met) for place in range(axis.out)
    ]


def test_huge_axes_are_counted_without_walking_them():
    size = 10**15
    axis = Axis(size=size, out=size, kernel=size + 1, stride=1, dilation=1, pad=size // 2)
    assert axis.used_taps() == size + 1
    assert axis.touched_inputs() == size
    # All pairs, less the two corners where o + k is below the pad or beyond the input.
    half = size // 2
    assert axis.taps() == size * (size + 1) - half * (half + 1)


@given(
    size=st.integers(1, 30),
    window=st.integers(1, 10),
    stride=st.integers(1, 6),
    leading=st.integers(0, 9),
    trailing=st.integers(0, 9),
)
def test_the_trailing_pad_keeps_the_outputs(size, window, stride, leading, trailing):
    out = output_size(size, window, stride, leading, trailing)
    if out < 1:
        return
    settled = trailing_pad(size, window, stride, leading, out)
    assert output_size(size, window, stride, leading, settled) == out
    assert settled == leading or settled <= trailing
    symmetric = output_size(size, window, stride, leading, leading) == out
    assert (settled == leading) or not symmetric

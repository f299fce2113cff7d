"""Images in another size: descriptors, positions, counts, and what cannot be."""

import itertools
from fractions import Fraction

import pytest

from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.layers.descriptor import parse_problem
from pydlbench.layers.resize import taps


@pytest.mark.parametrize(
    "text",
    [
        "resize:nearest:mb8ic64ih28oh56",
        "resize:linear:mb1ic21ih65oh513",
        "resize:linear:mb2ic3ih7oh14iw9ow5",
        "resize:linear:mb2ic3ih7oh14iw7ow5",
    ],
)
def test_a_descriptor_is_read_as_it_is_written(text):
    layer = parse_problem(text)
    assert layer.problem == text
    assert parse_problem(f"{text}nmine").name == "mine"
    assert layer.with_batch(5).shapes()["dst"][0] == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resize:cubic:mb1ic3ih7oh14", "nearest: .*linear"),
        ("resize:linear", "column 14: expected :"),
        ("resize:linear:mb1ic3ih7", r"expected oh \(height of the result\)"),
        ("resize:linear:mb1ic3ih7oh14iw9", r"expected ow \(width of the result\)"),
        ("resize:linear:mb1ic3ih7oh14kh3", "kh: a resize has none"),
        ("resize:linear:mb1ic3ih7oh0", "at least 1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could_be(text, message):
    with pytest.raises(UsageError, match=message):
        parse_problem(text)


@pytest.mark.parametrize(("size", "out"), [(4, 8), (5, 5), (7, 5), (5, 7), (9, 3), (8, 4), (1, 6)])
def test_taps_lie_around_the_centre(size, out):
    for to, (low, high, weight) in enumerate(taps("linear", size, out)):
        assert 0 <= low <= high <= min(low + 1, size - 1)
        centre = (to + Fraction(1, 2)) * size / out
        inside = min(max(centre, Fraction(1, 2)), size - Fraction(1, 2))
        assert low + Fraction(1, 2) + Fraction(weight) == pytest.approx(inside)
    for to, (low, high, weight) in enumerate(taps("nearest", size, out)):
        assert (low, weight) == (high, 0)
        assert low <= (to + Fraction(1, 2)) * size / out < low + 1


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_pixels_that_nothing_is_made_of_are_not_read(mode):
    for size, out in itertools.product(range(1, 25), repeat=2):
        layer = parse_problem(f"resize:{mode}:mb1ic1ih{size}oh{out}iw1ow1")
        touched = {at for low, high, _ in taps(mode, size, out) for at in (low, high)}
        assert layer.bytes("forward", 1) == len(touched) + out, (size, out)


def test_what_is_counted():
    double, half = (
        parse_problem(f"resize:{mode}:mb2ic3{sizes}")
        for mode, sizes in (("linear", "ih4oh8"), ("nearest", "ih8oh4"))
    )
    results = 2 * 3 * 64
    assert (double.flops("forward"), double.flops("backward-data")) == (7 * results, 8 * results)
    assert double.bytes("forward", 4) == double.bytes("backward-data", 4) == 4 * (96 + results)
    assert (half.flops("forward"), half.flops("backward-data")) == (0, 96)
    # Every other pixel is read, and all gradients are written.
    assert (half.bytes("forward", 4), half.bytes("backward-data", 4)) == (4 * 192, 4 * (384 + 96))
    along = parse_problem("resize:linear:mb2ic3ih1oh1iw4ow8")
    assert along.flops("forward") == 3 * 2 * 3 * 8
    # Centres of thirds are those of pixels; of quarters they lie between two.
    thirds, quarters = (parse_problem(f"resize:linear:mb1ic1ih12oh{one}") for one in (4, 3))
    assert thirds.bytes("forward", 1) == 4 * 4 + 4 * 4
    assert quarters.bytes("forward", 1) == 6 * 6 + 3 * 3
    with pytest.raises(UnsupportedError, match="resize has no such pass"):
        double.flops("backward-weights")

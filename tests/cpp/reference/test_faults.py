"""Planted faults: each is found, with the right element."""

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Right = tuple[dict[str, NDArray[np.float32]], NDArray[np.float64]]

SIZES = (3, 18, 7, 20)


@pytest.fixture
def right(numpy_sums):
    """The inputs and the exact result of a product."""
    batch, m, k, n = SIZES
    inputs = {
        "src": numpy_sums.uniform(1, (batch, m, k)),
        "weights": numpy_sums.uniform(2, (batch, k, n)),
    }
    return inputs, inputs["src"].astype(np.float64) @ inputs["weights"].astype(np.float64)


@pytest.mark.parametrize("kind", ["plain", "channels-last", "gaps"])
@pytest.mark.parametrize("where", [(0, 0, 0), (1, 17, 3), (2, 17, 19)])
def test_one_wrong_element_is_found(checker, numpy_sums, right, kind, where):
    inputs, value = right
    value[where] += 0.01
    result = checker.gemm("forward", SIZES, inputs, numpy_sums.Stored(value, kind))
    assert tuple(result.where[:3]) == where
    assert 1e-4 < result.max_error < 0.1
    assert result.got - result.expected == pytest.approx(0.01, rel=1e-3)
    assert result.unwritten == result.infinite == 0


def test_what_was_never_written_is_counted_and_worse_than_anything_else(checker, numpy_sums, right):
    inputs, value = right
    value[1, 2] = np.nan
    value[2, 0, 0] = np.inf
    value[0, 0, 0] = 1e9
    result = checker.gemm("forward", SIZES, inputs, numpy_sums.Stored(value))
    assert (result.unwritten, result.infinite) == (SIZES[3], 1)
    assert math.isnan(result.max_error)
    assert tuple(result.where[:3]) == (1, 2, 0)
    assert math.isnan(result.got)


def test_an_infinite_element_is_counted(checker, numpy_sums, right):
    inputs, value = right
    value[1, 3, 2] = -np.inf
    result = checker.gemm("forward", SIZES, inputs, numpy_sums.Stored(value))
    assert (result.unwritten, result.infinite) == (0, 1)
    assert result.max_error == math.inf
    assert tuple(result.where[:3]) == (1, 3, 2)
    assert result.got == -math.inf


def test_what_should_be_zero_and_is_not_is_wrong_beyond_any_tolerance(checker, numpy_sums, right):
    inputs, value = right
    inputs["src"][0, 4] = 0
    value[0, 4] = 0
    exact = checker.gemm("forward", SIZES, inputs, numpy_sums.Stored(value))
    assert 0 < exact.max_error < 1e-6
    value[0, 4, 6] = 1e-30
    result = checker.gemm("forward", SIZES, inputs, numpy_sums.Stored(value))
    assert result.max_error > 1e6
    assert tuple(result.where[:3]) == (0, 4, 6)
    assert result.infinite == 0


def test_subnormal_results_are_as_exact_as_their_format(checker, numpy_sums):
    """In float16 they have few digits: rounded right they are right, one step beside wrong."""
    step, least = 2.0**-24, 2.0**-14
    inputs = {
        "src": numpy_sums.uniform(1, (3, 18, 7)) * np.float32(least / 8),
        "weights": numpy_sums.uniform(2, (3, 7, 20)),
    }
    value = inputs["src"].astype(np.float64) @ inputs["weights"].astype(np.float64)
    assert np.abs(value).max() < least
    result = checker.gemm("forward", SIZES, inputs, numpy_sums.Stored(value, name="float16"))
    # Half a step at the most, as of the smallest normal number.
    assert 0 < result.max_error <= step / 2 / least
    rounded = np.rint(value / step) * step
    rounded[1, 2, 3] += step
    result = checker.gemm("forward", SIZES, inputs, numpy_sums.Stored(rounded, name="float16"))
    assert tuple(result.where[:3]) == (1, 2, 3)
    assert result.max_error > step / 2 / least


def test_matrices_in_the_wrong_order_are_found(checker, numpy_sums, right):
    inputs, value = right
    rolled = numpy_sums.Stored(np.roll(value, 1, axis=0))
    assert checker.gemm("forward", SIZES, inputs, rolled).max_error > 0.5

"""Rounding to storage precisions: nearest, ties to even, as the hardware does it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.errors import UsageError
from pydlbench.verification.inputs import round_to


@pytest.mark.parametrize(
    ("precision", "value", "expected"),
    [
        ("bf16", 1 + 2**-8, 1.0),  # halfway, to even
        ("bf16", 1 + 3 * 2**-8, 1 + 2**-6),
        ("bf16", 1 + 2**-8 + 2**-20, 1 + 2**-7),
        ("bf16", -1.999, -2.0),
        ("bf16", 3.4e38, np.inf),
        ("tf32", 1 + 2**-11, 1.0),
        ("tf32", 1 + 3 * 2**-11, 1 + 2**-9),
        ("fp16", 1 + 2**-11, 1.0),
        ("fp16", 2**-25 * 1.01, 2**-24),
        ("fp8-tc", 1 + 1 / 16, 1.0),
        ("fp8-tc", 1 + 3 / 16, 1.25),
        ("fp8-tc", 2**-9 * 0.6, 2**-9),
        ("fp8-tc", 2**-9 * 0.4, 0.0),
        ("fp8-tc", 1000.0, 448.0),
        ("fp32", 0.1, np.float32(0.1)),
    ],
)
def test_known_values(precision, value, expected):
    assert round_to(precision, np.array([value]))[0] == expected
    assert round_to(precision, np.array([-value]))[0] == -expected


@given(
    value=st.floats(width=32, allow_nan=False, min_value=-(2.0**99), max_value=2.0**99).filter(
        lambda v: abs(v) > 1e-4
    ),
    precision=st.sampled_from([("bf16", 8), ("tf32", 11)]),
)
def test_the_error_is_at_most_half_a_spacing(value, precision):
    name, bits = precision
    rounded = float(round_to(name, np.array([value], np.float32))[0])
    mantissa, exponent = np.frexp(rounded)
    assert float(mantissa) * 2**bits == int(float(mantissa) * 2**bits)
    assert abs(rounded - value) <= 2.0 ** (np.frexp(value)[1] - bits - 1)
    assert round_to(name, np.array([rounded]))[0] == rounded
    assert exponent >= np.frexp(value)[1]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "fp8-tc"])
def test_poison_survives_and_the_argument_is_left_alone(precision):
    # The second NaN has all significand bits set: adding to it carries into the sign.
    patterns = np.array([0x7FC00000, 0x7FFFFFFF, 0x7F800001, 0x3F8FFFFF], np.uint32)
    values = patterns.view(np.float32)
    rounded = round_to(precision, values)
    assert np.isnan(rounded).tolist() == [True, True, True, False]
    np.testing.assert_array_equal(values.view(np.uint32), patterns)
    assert not np.shares_memory(rounded, values)


def test_strided_arrays():
    values = np.arange(12, dtype=np.float32).reshape(3, 4).T / 7
    np.testing.assert_array_equal(round_to("bf16", values), round_to("bf16", values.copy()))


def test_unknown_precision():
    with pytest.raises(UsageError, match=r"precision bf61: .*nearest: bf16"):
        round_to("bf61", np.zeros(1))

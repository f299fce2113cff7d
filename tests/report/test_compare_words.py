"""Numbers of a comparison as text."""

import pytest

from pydlbench.records.comparison import least_change


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.03, "3 %"), (1.123, "12 %"), (1.99, "99 %"), (1.996, "2.0x"), (2.13, "2.1x"), (1e3, "-")],
)
def test_a_resolution_has_two_digits_and_no_exponent(value, text):
    assert least_change(value) == text

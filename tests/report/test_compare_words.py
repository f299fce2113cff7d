"""Numbers of a comparison as text."""

import pytest

from pydlbench.compare.comparison import Estimate
from pydlbench.report.compare import resolution


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.03, "3 %"), (1.123, "12 %"), (1.99, "99 %"), (1.996, "2.0x"), (2.13, "2.1x"), (None, "-")],
)
def test_a_resolution_has_two_digits_and_no_exponent(value, text):
    estimate = Estimate(ratio=1.0, ci_low=None, ci_high=None, verdict="UNCLEAR", resolution=value)
    assert resolution(estimate) == text

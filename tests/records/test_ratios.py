"""Whether a ratio's interval says that two differ."""

import pytest

from pydlbench.records.measurement import is_tied, is_uncertain


def ratio(median, low, high, to="native"):
    return {"to": to, "median": median, "ci_low": low, "ci_high": high, "rounds": 9}


@pytest.mark.parametrize(
    ("found", "uncertain", "tied"),
    [
        (ratio(2.0, 1.95, 2.05), False, False),
        (ratio(2.0, 1.85, 2.15), True, False),  # to 7.5 %
        (ratio(1.12, 1.09, 1.14), True, False),  # on both sides of 1.1
        (ratio(1.02, 1.01, 1.03), False, False),
        (ratio(1.01, 1.0, 1.02), False, True),
        (ratio(1.01, 0.9, 1.05), True, True),
        (ratio(1.4, None, None), True, False),  # a single round
        (ratio(1.0, None, None), True, True),
        (ratio(1.0, 1.0, 1.0, to="torch eager"), False, False),  # the fastest itself
        (None, False, False),
    ],
)
def test_what_a_ratio_is_worth(measurement, found, uncertain, tied):
    row = measurement(backend="torch", mode="eager", ratio=found)
    assert is_uncertain(row) is uncertain
    assert is_tied(row) is tied

"""Constants that a user may give, and those of steps."""

import pytest

from pydlbench.errors import UsageError
from pydlbench.timing.policy import Policy, step_policy


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"budget_s": 0.0}, "--budget 0: not a positive"),
        ({"budget_s": float("nan")}, "--budget nan"),
    ],
)
def test_policy_refuses_bad_constants(constants, message):
    with pytest.raises(UsageError, match=message):
        Policy(**constants)


def test_visits_share_a_budget():
    assert Policy(budget_s=3.0, visits=6).visit_s == 0.5
    assert step_policy(Policy(budget_s=3.0, visits=6)).visit_s == 0.5

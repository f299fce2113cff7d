"""The prediction of a step: the sum of its operators, each as often as it occurs."""

from __future__ import annotations

import math

import pytest

from pydlbench.ladder.operators import StepOperator, by_operator, predict

FOUND = (
    StepOperator(name="conv", kind="layer", nodes=("conv",), count=3),
    StepOperator(name="relu", kind="pointwise", nodes=("relu",), count=5),
    StepOperator(name="optimizer", kind="optimizer"),
)


def test_an_operator_is_the_median_over_rounds():
    times = by_operator([11, 2, 7, 13, 3, 8, 12, 4, 100], FOUND)
    assert times == {"conv": 12, "relu": 3, "optimizer": 8}


def test_times_that_are_no_rounds_are_refused():
    for seconds in ([], [1, 2], [1, 2, 3, 4]):
        with pytest.raises(ValueError, match="operators"):
            by_operator(seconds, FOUND)


def test_a_step_is_each_operator_as_often_as_it_occurs_and_one_call():
    times = {"conv": 10, "relu": 2, "optimizer": 7}
    assert math.isclose(predict(times, FOUND, once_s=0.25), 30 + 10 + 7 + 0.25)

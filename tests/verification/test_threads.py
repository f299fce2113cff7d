"""Calls on several threads: results in order, few of them ahead, errors at their result."""

import threading
import warnings

import numpy as np
import pytest

from pydlbench.verification import threads
from pydlbench.verification.threads import in_threads


def test_results_are_in_the_order_of_the_items(monkeypatch):
    monkeypatch.setattr(threads, "process_cpus", lambda: [0, 0])
    second = threading.Event()

    def wait_for_the_second(item):
        if item == 0:
            assert second.wait(10)
        else:
            second.set()
        return 10 * item

    assert list(in_threads(wait_for_the_second, range(5))) == [0, 10, 20, 30, 40]


def test_few_items_are_asked_for_ahead_of_the_results(monkeypatch):
    monkeypatch.setattr(threads, "process_cpus", lambda: [0, 0])
    asked = []

    def items():
        for number in range(100):
            asked.append(number)
            yield number

    results = in_threads(lambda each: each, items())
    assert next(results) == 0
    assert len(asked) == 4
    results.close()


def test_an_error_is_raised_where_its_result_is_asked_for():
    def fail_at_two(item):
        if item == 2:
            raise KeyError("two")
        return item

    results = in_threads(fail_at_two, range(5))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(KeyError, match="two"):
        next(results)


def test_numpy_does_not_warn_in_the_threads():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (result,) = in_threads(lambda each: each - each, [np.array([np.inf])])
    assert np.isnan(result).all()

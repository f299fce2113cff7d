"""The summary of samples whose quantiles are known."""

import pytest

from pydlbench.records.measurement import time_summary


def test_a_summary_of_known_samples():
    summary = time_summary([x / 1000 for x in range(1, 12)])
    assert summary.median == 0.006
    assert summary.min == 0.001
    assert summary.n == 11
    assert summary.confidence == 0.95
    assert summary.q1 == pytest.approx(0.0035)
    assert summary.q3 == pytest.approx(0.0085)
    # Binomial: of 11 samples the second and the second last enclose the median with 98.8 %.
    assert (summary.ci_low, summary.ci_high) == (0.002, 0.010)


def test_a_single_sample_has_no_interval():
    summary = time_summary([0.2])
    assert (summary.median, summary.ci_low, summary.ci_high) == (0.2, None, None)

"""What is said of the cost of fresh pages, from invented rounds."""

from __future__ import annotations

import pytest

from pydlbench.ladder.ledger import _allocation

STEPS, KEPT = [1.0, 1.1, 1.2], [0.8, 1.0, 1.1]


def test_the_cost_of_fresh_pages_is_the_middle_difference_of_pairs():
    seconds, how = _allocation(STEPS, KEPT, {"counted": 50_000.0, "kept": 12.0})
    assert seconds == pytest.approx(0.1)
    assert "50000 page faults against 12" in how
    seconds, how = _allocation(STEPS, KEPT, {"counted": None, "kept": None})
    assert seconds == pytest.approx(0.1)
    assert "page faults" not in how


@pytest.mark.parametrize("counted", [0.0, 100.0])
def test_two_processes_without_fresh_pages_show_nothing_of_their_cost(counted):
    seconds, how = _allocation(STEPS, KEPT, {"counted": counted, "kept": 0.0})
    assert seconds == 0.0
    assert "+100.00 ms, is left unexplained" in how

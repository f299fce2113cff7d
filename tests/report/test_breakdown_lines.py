"""What stands below the tables of a breakdown."""

import pytest
from breakdown_records import make_record

from pydlbench.report.breakdown import unexplained_line

EVERYTHING = "everything was measured"


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({}, True),
        ({"not_measured": ("fresh memory: nobody counts page faults",)}, False),
        ({"without_layer": ("aten.bernoulli_ 3.1 ms (random numbers)",)}, False),
    ],
)
def test_everything_was_measured_where_neither_an_experiment_nor_a_layer_is_missing(changes, whole):
    assert (EVERYTHING in unexplained_line(make_record(**changes))) is whole

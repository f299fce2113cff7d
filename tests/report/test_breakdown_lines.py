"""What stands below the tables of a breakdown."""

import pytest
from breakdown_records import make_record

from pydlbench.report.breakdown import summary_parts, unexplained_line

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


@pytest.mark.parametrize(("feed", "named"), [("resident", False), ("host", True)])
def test_a_heading_names_images_that_come_from_the_host(feed, named):
    what, _ = summary_parts(make_record(feed=feed))
    assert ("host images" in what) is named

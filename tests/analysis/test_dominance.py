"""Which part of a sum dominates, from invented times: its share, its interval, its rivals."""

import math
import random

import msgspec
import pytest
from invented_evidence import row

from pydlbench.analysis.dominance import TimedItem, dominance
from pydlbench.analysis.estimate import estimate, plan_step, share_of
from pydlbench.models import build_model
from pydlbench.records.measurement import time_summary
from pydlbench.report.verdicts import share_text


def timed(seconds, half):
    return TimedItem(seconds=seconds, half_width_s=half)


def test_the_share_and_its_interval():
    # s = 3 / 4, and by the delta method (1 - s) h_a and s h_b over the sum.
    found = dominance({"a": {0: 1.0}, "b": {1: 1.0}}, {0: timed(3.0, 0.3), 1: timed(1.0, 0.2)})
    width = math.hypot(0.25 * 0.3, 0.75 * 0.2) / 4
    assert (found.name, found.share, found.rivals) == ("a", 0.75, ())
    assert (found.ci_low, found.ci_high) == (
        pytest.approx(0.75 - width),
        pytest.approx(0.75 + width),
    )


def test_the_interval_holds_the_true_share_as_often_as_it_says():
    rng = random.Random(1)
    truth = {0: 5.0, 1: 3.0, 2: 2.0}
    parts = {"a": {0: 1.0}, "b": {1: 1.0}, "c": {2: 1.0}}
    hits = 0
    for _ in range(1000):
        times = {k: timed(rng.gauss(t, 0.01 * t), 1.96 * 0.01 * t) for k, t in truth.items()}
        found = dominance(parts, times)
        hits += found.ci_low <= 0.5 <= found.ci_high
    assert 925 <= hits <= 975


def test_parts_whose_difference_may_be_nothing_are_rivals():
    parts = {"a": {0: 1.0}, "b": {1: 1.0}, "c": {2: 1.0}}
    times = {0: timed(1.0, 0.1), 1: timed(1.1, 0.1), 2: timed(0.5, 0.1)}
    found = dominance(parts, times)
    assert (found.name, found.rivals) == ("b", ("a",))


def test_what_two_parts_share_does_not_blur_their_difference():
    # The same noisy kernel is in both, and the rest differs beyond its own interval.
    parts = {"a": {"both": 5.0, "a": 1.0}, "b": {"both": 5.0, "b": 1.0}}
    times = {"both": timed(1.0, 0.5), "a": timed(0.2, 0.01), "b": timed(0.1, 0.01)}
    assert not dominance(parts, times).rivals


def test_a_share_has_an_interval_where_every_time_has_one():
    parts = {"a": {0: 1.0}, "b": {1: 1.0}}
    times = {number: time_summary([3.0 - number] * 3) for number in (0, 1)}
    found = dominance(parts, {key: TimedItem.from_summary(time) for key, time in times.items()})
    assert share_of(found) == {"median": 0.6, "ci_low": 0.6, "ci_high": 0.6, "confidence": 0.95}
    assert share_text(found) == "60.0 % (95 % 60.0 .. 60.0)"
    # A single sample has none; quartiles are none.
    times[1] = time_summary([2.0])
    found = dominance(parts, {key: TimedItem.from_summary(time) for key, time in times.items()})
    assert share_of(found) == {"median": 0.6}
    assert (found.rivals, share_text(found)) == ((), "60 %")


def test_nothing_dominates_an_empty_sum():
    assert dominance({}, {}) is None
    assert dominance({"a": {0: 1.0}}, {0: timed(0.0, 0.0)}) is None


def test_the_estimate_says_what_leads_and_which_part_was_disturbed():
    made = plan_step(build_model("mnist", 1))
    conv2 = next(t.hot.layer for t in made.terms if t.step_pass.layer.name == "mnist/conv2")
    rows = {case: row(case, 50.0 if case.layer == conv2 else 1.0) for case in made.specs}
    found = estimate(made, rows)
    share = found.dominant_group["share"]
    assert (found.dominant_group["layer"], found.disturbed_share) == ("conv2", 0)
    assert found.dominant_share["median"] == pytest.approx(share)
    assert found.dominant_share["ci_low"] <= share
    assert (found.dominant_clear, found.dominant_rivals) == (True, ())


@pytest.mark.parametrize("large", [True, False])
def test_a_disturbed_part_silences_a_sum_only_where_it_is_large(large):
    made = plan_step(build_model("mnist", 1))
    conv2 = next(t.hot.layer for t in made.terms if t.step_pass.layer.name == "mnist/conv2")
    rows = {
        case: msgspec.structs.replace(
            row(case, 500.0 if case.layer == conv2 else 1.0),
            contended=(case.layer == conv2) is large,
        )
        for case in made.specs
    }
    found = estimate(made, rows)
    assert found.tells is not large
    assert max(found.layers, key=lambda layer: layer.time_s).contended is large

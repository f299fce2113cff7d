from __future__ import annotations

import msgspec
import pytest

from pydlbench.records.measurement import Roofline
from pydlbench.report.verdicts import conclude

PEAKS = {"fp32": 0.58, "bf16": 1.1}


def memory(efficiency, bandwidth="memory"):
    return Roofline(bound="memory", time_s=0.01, efficiency=efficiency, bandwidth=bandwidth)


def test_near_the_compute_peak(measurement):
    assert conclude([measurement(median=0.05, roof=0.0465)], PEAKS) == [
        (
            "conv3 runs at 93 % of what this CPU's FMA units deliver: only fewer FLOPs or lower "
            "precision would make it much faster."
        ),
        "try: --precision bf16 (the measured bf16 peak is 1.9x higher)",
    ]


def test_no_lower_precision_is_recommended_where_it_gains_nothing(measurement):
    row = measurement(median=0.05, roof=0.049)
    assert len(conclude([row], {"fp32": 0.58, "bf16": 0.59})) == 1
    assert len(conclude([row], {"fp32": 0.58})) == 1
    assert len(conclude([row])) == 1


def test_lowest_precision_has_nothing_below(measurement):
    lines = conclude([measurement(precision="bf16", roof=0.049)], PEAKS)
    assert lines[0].endswith("bf16 units deliver: only fewer FLOPs would make it much faster.")
    assert len(lines) == 1


def test_far_from_the_peak(measurement):
    lines = conclude([measurement(roof=0.025)], PEAKS)
    assert "reaches 50 % of what" in lines[0]
    assert "up to 2.0x is left in the kernel." in lines[0]
    assert lines[1].startswith("try: --algorithms")
    assert len(conclude([measurement(roof=0.025, candidates=())], PEAKS)) == 1


def test_few_input_channels_are_named(measurement):
    row = measurement(roof=0.02, problem="mb128ic3ih224oc64oh55kh11sh4ph2")
    assert "3 input channels fill few vector lanes" in conclude([row])[0]


def test_small_batch_is_named(measurement):
    lines = conclude([measurement(roof=0.02, batch=1, problem="mb1ic64ih13oc64kh3")])
    assert "batch 1 gives it little work" in lines[0]
    assert lines[1].startswith("try: --batch 16")


def test_restricted_layout_is_the_first_thing_to_lift(measurement):
    assert conclude([measurement(layout_request="nchw")])[1].startswith("try: --layout best")


@pytest.mark.parametrize(
    ("roof", "text"),
    [
        (memory(0.9), "90 % of the measured memory bandwidth: only fewer bytes"),
        (memory(0.5, "llc"), "bound by last-level cache bandwidth but reaches 50 % of it"),
        (Roofline(bound="launch", time_s=1e-6, efficiency=0.5), "too short for this CPU"),
    ],
)
def test_other_bounds(measurement, roof, text):
    assert text in conclude([measurement(roofline=roof)])[0]


def test_winograd_above_the_roof_is_explained(measurement):
    row = measurement(roof=0.075, algorithm="jit_wino:avx512_core")
    assert "150 %" in conclude([row])[0]
    assert "jit_wino:avx512_core needs fewer FLOPs" in conclude([row])[0]
    assert "needs fewer FLOPs than are counted" in conclude([measurement(roof=0.075)])[0]


def test_without_a_roof(measurement):
    assert conclude([measurement(roof=None)])[0].startswith("conv3 takes 50.0 ms; without")


def test_expensive_reorders_are_told(measurement):
    row = measurement(reorder_s={"src": 0.005, "weights": 0.0})
    assert any(
        "bringing src into the kernel's layout costs 5.00 ms (10 %" in line
        for line in conclude([row])
    )


def test_dominating_layer_and_the_one_that_loses_most(measurement):
    rows = [
        measurement(layer="alexnet/conv1", median=0.03, roof=0.01),
        measurement(layer="alexnet/conv2", median=0.06, roof=0.055),
        measurement(layer="alexnet/conv3", median=0.01, roof=0.0095),
    ]
    assert conclude(rows) == [
        (
            "conv2 dominates: 60 % of the 100 ms that 3 layers add up to; 74 % of the sum is the "
            "measured limit, and conv1 loses most: 20.0 ms above its roof."
        )
    ]


def test_nothing_to_gain(measurement):
    rows = [measurement(roof=0.05), measurement(layer="alexnet/conv4", roof=0.05)]
    assert conclude(rows)[0].endswith("and no layer loses more than 2 % of it.")


def test_three_passes_of_one_layer(measurement):
    rows = [
        measurement(pass_="forward", median=0.01, roof=0.01),
        measurement(pass_="backward-data", median=0.03, roof=0.02),
    ]
    assert conclude(rows) == [
        (
            "conv3 takes 40.0 ms over 2 passes, 75 % of it in backward-data; 75 % of it is the "
            "measured limit."
        )
    ]


def test_different_models_are_not_added_up(measurement):
    rows = [measurement(roof=0.02), measurement(layer="vgg16/conv1_1", batch=64)]
    assert conclude(rows) == ["furthest from its roof: alexnet/conv3 with 40 % of it."]


def test_two_precisions_are_compared_where_both_exist(measurement):
    rows = [
        measurement(median=0.04),
        measurement(median=0.02, precision="bf16"),
        measurement(median=9.0, layer="alexnet/conv4"),
    ]
    assert conclude(rows)[0] == "bf16 is 2.0x faster than fp32 (20.0 ms against 40.0 ms)."


@pytest.mark.parametrize(
    ("median", "gap"), [(0.0400, "less than 1 %"), (0.0406, "1 %"), (0.0438, "9 %")]
)
def test_rows_timed_one_after_another_may_differ_by_drift(measurement, median, gap):
    rows = [measurement(median=0.04), measurement(median=median, cache="all-cold")]
    assert conclude(rows)[0] == (
        f"hot and all-cold differ by {gap} (40.0 ms against {1e3 * median:.1f} ms): "
        "too close to tell apart unless interleaved."
    )
    rows.append(measurement(median=median, cache="all-cold", precision="bf16"))
    assert conclude(rows) == [
        f"3 settings of alexnet/conv3 differ by {gap}: too close to tell apart unless interleaved."
    ]


def test_wide_intervals_keep_larger_differences_open(measurement):
    slow = measurement(median=0.048, cache="all-cold")
    slow = msgspec.structs.replace(slow, time=msgspec.structs.replace(slow.time, ci_low=0.04))
    assert conclude([measurement(median=0.04), slow])[0] == (
        "hot and all-cold do not differ beyond their intervals (40.0 ms against 48.0 ms)."
    )


@pytest.mark.parametrize(("ratio", "text"), [(1.14, "1.1x"), (9.97, "10x"), (123.4, "120x")])
def test_ratios_have_two_digits(measurement, ratio, text):
    rows = [measurement(median=0.01), measurement(median=0.01 * ratio, cache="all-cold")]
    assert conclude(rows)[0].startswith(f"hot is {text} faster than all-cold (")


def test_batches_are_compared_per_image(measurement):
    rows = [measurement(median=0.01, batch=1), measurement(median=0.02, batch=4)]
    assert conclude(rows)[0].startswith("batch 4 is 2.0x faster per image than batch 1")


def test_several_settings_of_one_layer(measurement):
    rows = [
        measurement(median=0.04),
        measurement(median=0.02, precision="bf16"),
        measurement(median=0.08, cache="all-cold"),
    ]
    assert conclude(rows) == [
        "fastest of 3 settings: alexnet/conv3 bf16 hot, 4.0x faster than fp32 all-cold."
    ]


def test_contended_rows_are_upper_bounds(measurement):
    rows = [measurement(contended=True)]
    assert "this time is an upper bound; repeat on an idle machine." in conclude(rows)[-1]
    rows.append(measurement(layer="alexnet/conv4"))
    assert "1 of 2 times is an upper bound" in conclude(rows)[-1]


def test_nothing_is_concluded_from_contended_rows(measurement):
    quiet = [measurement(), measurement(layer="alexnet/conv4")]
    assert "dominates" in conclude(quiet)[0]
    found = conclude([*quiet, measurement(layer="alexnet/conv5", contended=True)])
    assert len(found) == 1
    assert "1 of 3 times is an upper bound" in found[0]


def test_a_small_contended_row_leaves_the_sum_as_it_is(measurement):
    rows = [measurement(), measurement(layer="alexnet/conv4")]
    small = measurement(layer="alexnet/pool1", median=1e-4, contended=True)
    warning, first = conclude([*rows, small])
    assert "1 of 3 times is an upper bound" in warning
    assert first.startswith("conv3 dominates")


def test_settings_are_compared_over_the_rows_that_nothing_disturbed(measurement):
    rows = [
        measurement(layer=layer, cache=cache, median=seconds, contended=layer == "alexnet/conv4")
        for layer in ("alexnet/conv3", "alexnet/conv4")
        for cache, seconds in (("hot", 0.05), ("all-cold", 0.1))
    ]
    warning, first = conclude(rows)
    assert "2 of 4 times are upper bounds" in warning
    assert first == conclude(rows[:2])[0]


def test_failures_are_counted(measurement, without_time):
    rows = [measurement(), without_time("failed", "x", layer="alexnet/conv4")]
    assert conclude(rows)[-1] == "1 of 2 rows failed; their reasons stand above."


def test_nothing_was_timed(without_time):
    rows = [without_time("skipped", "x"), without_time("failed", "y")]
    assert conclude(rows) == ["nothing was timed: 1 of 2 rows failed, 1 skipped."]
    assert conclude(rows[:1]) == ["nothing was timed: 1 of 1 rows skipped."]

"""The estimate of a step: every occurrence of every kernel, from invented rows."""

import math

import pytest
from invented_evidence import row

from pydlbench.analysis.estimate import estimate, plan_step
from pydlbench.models import build_model


@pytest.fixture
def made():
    return plan_step(build_model("resnet18", 2), "training")


def test_the_sum_counts_every_occurrence(made):
    found = estimate(made, {case: row(case, 1.0) for case in made.specs})
    assert found.estimate.time_s == len(made.terms) == found.estimate.kernels_in_step
    assert found.estimate.kernels_measured < found.estimate.kernels_in_step
    assert found.estimate.images_per_s == 2 / len(made.terms)


def test_the_interval_reaches_from_hot_to_cold(made):
    found = estimate(
        made, {case: row(case, 1.0 if case.cache == "hot" else 3.0) for case in made.specs}
    )
    n = len(made.terms)
    assert (found.estimate.low, found.estimate.time_s, found.estimate.high) == (n, 2 * n, 3 * n)


def test_shares_add_up_to_one_and_times_to_the_sum(made):
    rows = {case: row(case, 1e-3 * (1 + number % 7)) for number, case in enumerate(made.specs)}
    found = estimate(made, rows)
    assert math.isclose(sum(layer.share for layer in found.layers), 1)
    assert math.isclose(sum(layer.time_s for layer in found.layers), found.estimate.time_s)
    assert math.isclose(sum(found.kinds.values()), found.estimate.time_s)
    for layer in found.layers:
        assert math.isclose(sum(layer.passes.values()), layer.time_s)


def test_the_slow_layer_dominates_and_its_roof_says_what_it_could_save():
    made = plan_step(build_model("mnist", 1))
    slow = next(t.hot for t in made.terms if t.step_pass.layer.name == "mnist/conv2")
    rows = {
        case: row(case, 50.0 if case.layer == slow.layer else 1.0, roof=0.5) for case in made.specs
    }
    found = estimate(made, rows)
    assert found.dominant == "conv2"
    assert next(iter(found.kinds)) == "conv2d"
    conv2 = next(one for one in found.groups if one.name == "conv2")
    assert conv2.bound == "memory"
    gain = conv2.time_s - conv2.roof_s
    assert found.what_if[0]["layer"] == "conv2"
    assert math.isclose(found.what_if[0]["step_at_its_roof_s"], found.estimate.time_s - gain)
    assert math.isclose(found.estimate.roof_s, 0.5 * found.estimate.kernels_in_step)


def test_a_kernel_above_its_roof_is_no_gain_below_zero():
    made = plan_step(build_model("mnist", 1))
    found = estimate(made, {case: row(case, 1.0, roof=2.0) for case in made.specs})
    assert found.what_if[0]["step_at_its_roof_s"] == found.estimate.time_s


def test_what_failed_is_named_and_in_no_sum():
    made = plan_step(build_model("mnist", 1))
    bad = made.terms[0].hot
    rows = {
        case: row(case, 1.0, status="failed", reason="wrong") if case == bad else row(case, 1.0)
        for case in made.specs
    }
    found = estimate(made, rows)
    assert [one for one in found.missing if one["reason"] == "wrong"] == list(found.missing)
    assert found.missing
    assert found.estimate.time_s == len(made.terms) - len(found.missing)


def test_without_a_cold_row_the_hot_one_stands_for_both():
    made = plan_step(build_model("mnist", 1))
    rows = {
        case: row(case, 1.0, status="skipped" if case.cache != "hot" else "ok", reason="no")
        for case in made.specs
    }
    found = estimate(made, rows)
    assert not found.missing
    assert found.estimate.low == found.estimate.high == len(made.terms)


def test_the_statistical_width_grows_with_the_occurrences(made):
    # Each distinct kernel is half hot, half cold: sqrt(2) of half the width, times its number.
    found = estimate(made, {case: row(case, 1.0, width=0.1) for case in made.specs})
    counts: dict = {}
    for term in made.terms:
        counts[term.hot] = counts.get(term.hot, 0) + 1
    expected = math.sqrt(sum(2 * (count * 0.05) ** 2 for count in counts.values()))
    assert math.isclose(found.estimate.half_width_s, expected)


def test_the_json_form_has_what_readers_rely_on(made):
    found = estimate(made, {case: row(case, 1.0, roof=0.5) for case in made.specs})
    found = found.to_dict()
    assert {"time_s", "low", "high", "images_per_s"} <= set(found["estimate"])
    assert {"name", "kind", "time_s", "share", "bound", "efficiency"} <= set(found["layers"][0])
    assert found["dominant"] in {layer["name"] for layer in found["layers"]}
    assert found["missing"] == []


def test_kernels_without_a_cold_row_are_counted_with_their_hot_time(made):
    lacking = {t.cold for t in made.terms if t.step_pass.layer.kind == "gemm"}
    rows = {
        case: row(case, 1.0, status="skipped", reason="all of it stays in the cache")
        if case in lacking
        else row(case, 1.0 if case.cache == "hot" else 3.0)
        for case in made.specs
    }
    found = estimate(made, rows)
    assert found.estimate.without_cold == "all of it stays in the cache"
    alone = sum(term.cold in lacking for term in made.terms)
    assert found.estimate.high == 3 * len(made.terms) - 2 * alone
    assert found.estimate.kernels_without_cold == len(lacking)
    whole = estimate(made, {case: row(case, 1.0) for case in made.specs}).estimate
    assert (whole.kernels_without_cold, whole.without_cold) == (0, "")


def test_what_training_does_to_weights_is_no_part_of_the_passes():
    made = plan_step(build_model("mnist", 1), "training")
    found = estimate(made, {case: row(case, 1.0) for case in made.specs})
    layers = {one.name: dict(one.passes) for one in found.layers}
    # Each of these sums a product and its bias, or two tensors.
    assert layers["fc1"] == {
        "forward": 2.0,
        "backward-data": 1.0,
        "backward-weights": 2.0,
        "l2": 4.0,
        "update": 2.0,
    }
    assert layers["loss"] == {"forward": 1.0, "backward-data": 1.0}
    tutorial = plan_step(build_model("alexnet", 1), "forward-backward")
    found = estimate(tutorial, {case: row(case, 1.0) for case in tutorial.specs})
    assert set(found.layers[-1].passes) <= {"forward", "backward-data", "backward-weights"}
    assert {one.name: set(one.passes) for one in found.layers}["loss"] == {"forward"}


@pytest.mark.parametrize(("bias_s", "kind"), [(9.0, "bias"), (0.5, "gemm")])
def test_a_layers_kind_is_that_of_its_slowest_kernel(bias_s, kind):
    made = plan_step(build_model("mnist", 1), "forward")
    rows = {each: row(each, bias_s if each.layer.op == "bias" else 1.0) for each in made.specs}
    layers = {layer.name: layer for layer in estimate(made, rows).layers}
    assert layers["fc1"].kind == kind


def test_sums_of_gradients_are_a_part_of_the_way_back(made):
    found = estimate(made, {case: row(case, 1.0) for case in made.specs})
    layers = {one.name: dict(one.passes) for one in found.layers}
    # Its output is read twice: by the next unit and by that unit's shortcut.
    assert layers["stage2/unit1/relu"] == {"forward": 1.0, "backward-data": 2.0}


def test_layers_that_run_the_same_kernels_count_together():
    made = plan_step(build_model("resnet18", 2))
    rows = {case: row(case, 1.0, roof=0.25) for case in made.specs}
    found = estimate(made, rows)
    by_name = {layer.name: layer for layer in found.layers}
    alike = [layer for layer in found.layers if layer.like == "stage2/unit1/conv1"]
    assert len(alike) == 4  # two units with two convolutions of 64 channels each
    (group,) = [one for one in found.groups if one.name == "stage2/unit1/conv1"]
    assert group.count == 4
    assert group.time_s == sum(layer.time_s for layer in alike)
    assert group.roof_s == sum(layer.roof_s for layer in alike)
    assert math.isclose(group.share, 4 * by_name["stage2/unit1/conv1"].share)
    assert sum(one.count for one in found.groups) == len(found.layers)
    assert math.isclose(sum(one.share for one in found.groups), 1)


def test_many_small_layers_of_one_kind_dominate_a_large_one():
    made = plan_step(build_model("resnet18", 2))
    many = next(t.hot for t in made.terms if t.step_pass.node == "stage2/unit1/conv1")
    large = next(t.hot for t in made.terms if t.step_pass.node == "conv1")
    times = {many.layer.problem: 4.0, large.layer.problem: 10.0}
    rows = {case: row(case, times.get(case.layer.problem, 0.1), roof=0.1) for case in made.specs}
    found = estimate(made, rows)
    document = found.to_dict()
    assert document["dominant"] == "conv1"  # the single slowest one
    group = document["dominant_group"]
    assert (group["layer"], group["layers"]) == ("stage2/unit1/conv1", 4)
    assert math.isclose(group["share"], 16 / found.estimate.time_s)
    assert math.isclose(
        document["what_if"][0]["step_at_its_roof_s"], found.estimate.time_s - 4 * (4.0 - 0.1)
    )
    (last,) = [one for one in document["layers"] if one["name"] == "stage2/unit2/conv2"]
    assert last["like"] == "stage2/unit1/conv1"

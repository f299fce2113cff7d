"""The estimate of a step: every occurrence of every kernel, from invented rows."""

import math

import pytest
from invented_evidence import row

from pydlbench.analysis.estimate import estimate, native_sum, plan_step
from pydlbench.errors import UsageError
from pydlbench.models import build_model
from pydlbench.models.passes import step_passes


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
    (lost,) = found.missing
    sizes = [term.hot.layer.bytes(term.hot.pass_, 4) for term in made.terms]
    assert lost["share_of_bytes"] == sizes[0] / sum(sizes)
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


# -----------------------------------------------------------------------------
# Which kernels an estimate measures: one for each distinct piece of a model's work.


def test_a_plan_has_a_term_for_each_piece_of_work():
    model = build_model("alexnet-owt", 2)
    found = plan_step(model, "training")
    assert [term.step_pass for term in found.terms] == list(step_passes(model, "training"))


def test_identical_kernels_are_measured_once():
    model = build_model("resnet152", 2)
    found = plan_step(model, "training")
    assert len(found.terms) > 1000
    assert len({term.hot for term in found.terms}) < 300
    assert len(found.specs) == len(set(found.specs))


def test_kernels_that_differ_in_their_names_only_are_one_case():
    found = plan_step(build_model("vgg16", 1))
    conv = [t for t in found.terms if t.step_pass.node in ("conv3_2", "conv3_3")]
    convolutions = [t for t in conv if t.step_pass.layer.kind == "conv2d"]
    assert len({t.step_pass.layer.name for t in convolutions}) == 2
    assert len({t.hot for t in convolutions}) == 1


def test_hot_and_cold_stand_beside_each_other():
    cases = plan_step(build_model("mnist", 1)).specs
    assert [case.cache for case in cases[:4]] == ["hot", "all-cold", "hot", "all-cold"]


def test_what_no_cache_holds_is_measured_once():
    model = build_model("vgg11", 4)
    some = plan_step(model, cache_bytes=1 << 20)
    none = plan_step(model, cache_bytes=1)
    both = plan_step(model, cache_bytes=1 << 40)
    assert {case.cache for case in none.specs} == {"hot"}
    assert len(none.specs) < len(some.specs) < len(both.specs)
    for term in some.terms:
        big = term.step_pass.layer.bytes(term.step_pass.pass_, 4) >= 4 << 20
        assert term.cold.cache == ("hot" if big else "all-cold")


def test_bf16_needs_half_the_bytes():
    model = build_model("vgg11", 4)
    assert len(plan_step(model, precision="bf16", cache_bytes=1 << 22).specs) > len(
        plan_step(model, precision="fp32", cache_bytes=1 << 22).specs
    )


def test_an_unknown_phase_is_refused():
    with pytest.raises(UsageError, match="training"):
        plan_step(build_model("mnist", 1), "trainin")


# -----------------------------------------------------------------------------
# Native rows of a step, summed by what they stand for.


def test_native_rows_are_sorted_by_what_they_stand_for():
    model = build_model("resnet18", 2)
    wanted = plan_step(model, "training")
    native = native_sum(wanted, {case: row(case, 2.0, 0.5) for case in wanted.specs})
    updates = [one for one in wanted.terms if (one.step_pass.layer.name or "").endswith("/update")]
    assert native.of_part("optimizer") == 2.0 * len(updates)
    assert native.of_part("loss") == 4.0 * (1 + len(model.decays))  # forward and backward
    assert sum(native.seconds.values()) == pytest.approx(2.0 * len(wanted.terms))
    layers = [name for name in native.by_node if model[name].op in ("conv", "linear", "pool")]
    nodes = sum(native.by_node.values()) + native.of_part("sum")
    of_layers = sum(native.by_node[name] for name in layers)
    assert native.of_pointwise(model) == pytest.approx(nodes - of_layers)


def test_a_node_some_of_whose_native_rows_failed_is_incomplete():
    model = build_model("resnet18", 2)
    wanted = plan_step(model, "training")
    nodes = {node.name for node in model}
    backward = [one for one in wanted.terms if one.step_pass.pass_ == "backward-data"]
    bad = next(one for one in backward if one.step_pass.node in nodes)
    rows = {c: row(c, 2.0, status="failed" if c == bad.hot else "ok") for c in wanted.specs}
    made = native_sum(wanted, rows)
    assert bad.step_pass.node in made.by_node
    assert made.incomplete == {bad.step_pass.node}

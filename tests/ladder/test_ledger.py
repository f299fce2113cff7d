"""Terms of the ledger: each is what its own experiment says, and all sum to the step."""

from __future__ import annotations

import dataclasses
import math

import pytest
from invented_evidence import evidence, row, terms

from pydlbench.ladder.estimate import Range, plan
from pydlbench.ladder.ledger import native_of
from pydlbench.ladder.native import NativeSum, native_sum
from pydlbench.ladder.operators import singles, step_operators
from pydlbench.models import build_model
from pydlbench.records.check import UNEXPLAINED

KINDS = ("layer", "pointwise", "gradient sum", "loss", "optimizer")


@pytest.fixture
def model():
    return build_model("resnet18", 2)


@pytest.fixture
def found(model):
    return step_operators(model, "training", "torch", "eager")


@pytest.fixture
def native(model):
    wanted = plan(model, "training")
    return native_sum(wanted, {case: row(case, 2.0, 0.5) for case in wanted.cases})


def test_the_terms_sum_to_the_measured_step(model, found, native):
    for seen in (
        evidence(found, native),
        evidence(found, native, reorder_s=None, host_s=3.0, measured_s=20.0),
    ):
        made = terms(model, found, seen)
        assert math.isclose(sum(one.seconds for one in made.values()), seen.measured_s)
        assert math.isclose(sum(one.share for one in made.values()), 1)
        assert list(made)[-1] == UNEXPLAINED
        assert all(one.how for one in made.values())


def test_what_a_compiler_joins_to_a_layer_is_held_against_all_its_nodes(model, native):
    found = step_operators(model, "training", "torch", "compiled")
    own = {one.name: native_of(model, one, native) or 0.0 for one in found}
    seen = evidence(found, native, times=own, dispatch_s=0.0, reorder_s=None)
    made = terms(model, found, seen)
    # As fast as the native rows of the same nodes: no choice has cost anything.
    assert math.isclose(made["operator choice"].seconds, 0.0, abs_tol=1e-9)
    assert "joins" in made["operator choice"].how


def test_starting_the_step_is_dispatch(model, found, native):
    less = terms(model, found, evidence(found, native))
    more = terms(model, found, evidence(found, native, start_s=3.0))
    assert math.isclose(more["dispatch"].seconds - less["dispatch"].seconds, 3.0)
    assert math.isclose(less[UNEXPLAINED].seconds - more[UNEXPLAINED].seconds, 3.0)


def test_an_operator_some_of_whose_native_rows_failed_has_no_native_time(model, found):
    wanted = plan(model, "training")
    conv = next(one for one in found if one.kind == "layer" and one.differentiated)
    bad = next(
        one.hot
        for one in wanted.terms
        if one.work.node == conv.nodes[0] and one.work.pass_ == "backward-data"
    )
    rows = {c: row(c, 2.0, status="failed" if c == bad else "ok") for c in wanted.cases}
    native = native_sum(wanted, rows)
    assert conv.nodes[0] in native.by_node
    assert native_of(model, conv, native) is None


def test_each_term_is_what_its_own_experiment_says(model, found, native):
    made = terms(model, found, evidence(found, native))
    count = {kind: sum(p.count for p in found if p.kind == kind) for kind in KINDS}
    single = count["layer"] + count["pointwise"]
    assert made["layout reorders"].seconds == 11
    assert made["allocation, first touch"].seconds == 30
    assert math.isclose(made["dispatch"].seconds, 0.125 * single)
    layers = native.of_layers(model)
    expected = count["layer"] * (7 - 0.125) - layers - 11
    assert math.isclose(made["operator choice"].seconds, expected)
    expected = count["pointwise"] * (7 - 0.125) + 7 * count["gradient sum"]
    assert math.isclose(made["pointwise"].seconds, expected - native.of_pointwise(model))
    assert made["loss"].seconds == made["optimizer"].seconds == 7
    nodes = layers + native.of_pointwise(model)
    assert math.isclose(made["layers at their roof"].seconds, nodes / 4)
    assert math.isclose(made["above the roof, native"].seconds, nodes * 3 / 4)


def test_only_unexplained_changes_with_the_measured_step(model, found, native):
    less = terms(model, found, evidence(found, native))
    more = terms(model, found, evidence(found, native, measured_s=5100.0))
    differing = [name for name in less if less[name].seconds != more[name].seconds]
    assert differing == [UNEXPLAINED]
    assert math.isclose(more[UNEXPLAINED].seconds - less[UNEXPLAINED].seconds, 100)


def test_what_was_not_measured_is_absent(model, found, native):
    made = terms(model, found, evidence(found, native, reorder_s=None))
    assert "layout reorders" not in made
    assert "fusion" not in made
    assert "host transfer" not in made


def test_a_slow_operator_is_named(model, found, native):
    slow = next(one for one in found if one.kind == "layer" and one.count == 1)
    times = {one.name: 700.0 if one is slow else 4.0 for one in found}
    made = terms(model, found, evidence(found, native, times=times))
    assert made["operator choice"].detail.startswith(slow.name)


def test_native_rows_are_sorted_by_what_they_stand_for(model, native):
    wanted = plan(model, "training")
    assert native.time == Range(hot=2.0 * len(wanted.terms), cold=2.0 * len(wanted.terms))
    parts = native.of_layers(model) + native.of_pointwise(model)
    assert math.isclose(parts + native.loss_s + native.optimizer_s, native.time.middle)
    updates = [one for one in wanted.terms if (one.work.layer.name or "").endswith("/update")]
    assert native.optimizer_s == 2.0 * len(updates)
    assert native.loss_s == 4.0 * (1 + len(model.decays))  # forward and backward


def test_a_row_that_could_not_be_measured_is_named(model):
    wanted = plan(model, "forward")
    bad = wanted.terms[0].hot
    rows = {c: row(c, 2.0, status="failed" if c == bad else "ok") for c in wanted.cases}
    found = native_sum(wanted, rows)
    assert found.missing == (f"{bad.layer.name} forward: no such kernel",)
    assert wanted.terms[0].work.node not in found.by_node


def test_native_seconds_stand_beside_each_operator(model, found, native):
    conv = next(one for one in found if one.kind == "layer")
    assert native_of(model, conv, native) == native.by_node[conv.nodes[0]]
    sums = next(one for one in found if one.kind == "gradient sum")
    assert native_of(model, sums, native) == 2.0
    unknown = dataclasses.replace(native, by_node={})
    assert native_of(model, conv, unknown) is None


def test_a_node_that_computes_nothing_is_natively_free(model, native):
    own = NativeSum(time=native.time, by_node={})
    free = next(
        one
        for one in step_operators(model, "forward", "torch", "eager")
        if model[one.nodes[0]].layer is None
    )
    assert native_of(model, free, own) == 0


def test_what_joining_saves_is_a_term_of_its_own(model, native):
    found = step_operators(model, "training", "tensorflow", "graph")
    alone = singles(model, "training", found)
    times = {**{one.name: 7.0 for one in found}, **{one.name: 5.0 for one in alone}}
    seen = evidence(found, native, times=times, singles=alone, dispatch_s=0.0)
    made = terms(model, found, seen)
    joined = [one for one in found if len(one.nodes) > 1]
    assert sum(one.count for one in alone) == sum(one.count * len(one.nodes) for one in joined)
    expected = 7 * sum(one.count for one in joined) - 5 * sum(one.count for one in alone)
    assert math.isclose(made["fusion"].seconds, expected)
    assert math.isclose(sum(one.seconds for one in made.values()), seen.measured_s)

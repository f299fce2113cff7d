"""Native rows of a step, summed by what they stand for."""

import pytest
from invented_evidence import row

from pydlbench.analysis.estimate import Range, plan
from pydlbench.analysis.native import native_sum
from pydlbench.models import build_model


@pytest.fixture(scope="module")
def model():
    return build_model("resnet18", 2)


@pytest.fixture(scope="module")
def native(model):
    wanted = plan(model, "training")
    return native_sum(wanted, {case: row(case, 2.0, 0.5) for case in wanted.cases})


def test_native_rows_are_sorted_by_what_they_stand_for(model, native):
    wanted = plan(model, "training")
    assert native.time == Range(hot=2.0 * len(wanted.terms), cold=2.0 * len(wanted.terms))
    parts = native.of_layers(model) + native.of_pointwise(model)
    assert parts + native.loss_s + native.optimizer_s == pytest.approx(native.time.middle)
    updates = [one for one in wanted.terms if (one.work.layer.name or "").endswith("/update")]
    assert native.optimizer_s == 2.0 * len(updates)
    assert native.loss_s == 4.0 * (1 + len(model.decays))  # forward and backward
    above = sum(native.above_roofs().values())
    assert above == pytest.approx(0.75 * native.of_nodes())


def test_a_row_that_could_not_be_measured_is_named(model):
    wanted = plan(model, "forward")
    bad = wanted.terms[0].hot
    rows = {c: row(c, 2.0, status="failed" if c == bad else "ok") for c in wanted.cases}
    made = native_sum(wanted, rows)
    assert made.missing == (f"{bad.layer.name} forward: no such kernel",)
    assert wanted.terms[0].work.node not in made.by_node


def test_a_node_some_of_whose_native_rows_failed_is_incomplete(model):
    wanted = plan(model, "training")
    nodes = {node.name for node in model}
    backward = [one for one in wanted.terms if one.work.pass_ == "backward-data"]
    bad = next(one for one in backward if one.work.node in nodes)
    rows = {c: row(c, 2.0, status="failed" if c == bad.hot else "ok") for c in wanted.cases}
    made = native_sum(wanted, rows)
    assert bad.work.node in made.by_node
    assert made.incomplete == {bad.work.node}

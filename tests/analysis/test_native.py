"""Native rows of a step, summed by what they stand for."""

import pytest
from invented_evidence import row

from pydlbench.analysis.estimate import plan_step
from pydlbench.analysis.native import native_sum
from pydlbench.models import build_model


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

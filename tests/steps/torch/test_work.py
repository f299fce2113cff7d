"""What calls compute, held against the graphs of our models and against PyTorch's own counter."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from pydlbench.backends.torch.backend import create  # noqa: E402 - not installed everywhere
from pydlbench.models import build_model  # noqa: E402
from pydlbench.models.work import work  # noqa: E402
from pydlbench.records.step import StepSpec  # noqa: E402
from pydlbench.steps.aten.work import coverage, work_of  # noqa: E402
from pydlbench.steps.torch.calls import list_calls  # noqa: E402


def products(items):
    """Return the convolutions and products among layers and passes, with their numbers."""
    found = Counter()
    for layer, pass_, count in items:
        if layer.multiply_adds:
            found[dataclasses.replace(layer, name=None), pass_] += count
    return found


@pytest.mark.parametrize("phase", ["forward", "training"])
@pytest.mark.parametrize(
    "name",
    [
        "mnist",
        *(
            pytest.param(one, marks=pytest.mark.deep)
            for one in ("alexnet-owt", "resnet50", "densenet121", "mobilenet-v2")
        ),
    ],
)
def test_the_products_of_a_recorded_step_are_those_of_its_graph(name, phase):
    model = build_model(name, 2)
    calls = list_calls(create("cpu"), model, StepSpec(model=name, batch=2, phase=phase)).facts.calls
    of_graph = [(one.layer, one.pass_, 1) for one in work(model, phase)]
    mapped = [(one, work_of(one)) for one in calls]
    recorded = [(one.layer, one.pass_, call.count) for call, of in mapped for one in of.layers]
    assert products(recorded) == products(of_graph)
    assert sum(call.count * (of.product_flops or 0) for call, of in mapped) == sum(
        layer.flops(pass_) for layer, pass_, _ in of_graph if layer.multiply_adds
    )
    assert coverage(calls).native_flops > 0.9

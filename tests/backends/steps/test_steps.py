"""Checks, phases and the ways to feed and fetch, in both frameworks."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import numpy as np
import pytest
import tiny

from pydlbench.backends.steps.inputs import Batch, make_batch
from pydlbench.backends.steps.requests import request_step
from pydlbench.backends.steps.serving import catalogue_model, serve_step
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.workers.channel import encode

# XLA compiles each of JAX's steps.
FRAMEWORKS = ("torch", "tensorflow", pytest.param("jax", marks=pytest.mark.deep))
BF16 = {"avx512_bf16", "amx_bf16"} & set(read_cpu_facts().isa)


@pytest.mark.product
@pytest.mark.parametrize("phase", ["forward", "forward-backward", "training"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", tiny.MODELS)
def test_every_check_passes(backend_of, name, framework, phase):
    model = tiny.MODELS[name]()
    if phase == "training" and model.optimizer.kind == "none":
        pytest.skip("this model is not trained")
    case = StepSpec(model=name, phase=phase, framework=framework)
    kernel = serve_step(backend_of(framework), case, StepPreparation(), model)
    checks = {one.name: one for one in kernel.facts.checks}
    wanted = ["shapes", "parameters", "flops", "gradients", "descent"]
    assert list(checks) == wanted[: 5 if case.backward else 3]
    assert {one.detail for one in checks.values() if one.status != "ok"} == set()
    assert json.loads(encode(kernel.facts))["output"] == [
        model.batch,
        *model.output.shape,
    ]
    chunk = kernel.sample(ChunkRequest(samples=2, untimed=1))
    assert len(chunk.seconds) == 2
    assert chunk.faults is not None
    assert chunk.cpu_s is not None


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_step_that_is_not_the_graph_is_found(backend_of, framework, monkeypatch):
    model, wrong = tiny.chain(), tiny.chain()
    nodes = [
        dataclasses.replace(node, bias=False) if node.name == "conv1" else node for node in wrong
    ]
    wrong = dataclasses.replace(wrong, nodes=tuple(nodes[:-1]))
    case = StepSpec(model="chain", framework=framework)
    from pydlbench.backends.steps import catalogue

    own = catalogue.run_checks
    monkeypatch.setattr(catalogue, "run_checks", lambda _, made: own(model, made))
    batch = Batch(make_batch(model).images, None)
    found = serve_step(backend_of(framework), case, StepPreparation(), wrong, batch).facts.checks
    assert [one.status for one in found] == ["failed", "failed", "failed"]
    assert "fc2 None and not (4, 5)" in found[0].detail
    assert found[1].detail.endswith("and not 1,531")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_model_that_cannot_learn_is_found(backend_of, framework):
    # All units of the last hidden layer are dead: nothing behind them gets a gradient.
    model = tiny.chain()
    dead = tiny.Init(kind="constant", value=-1e4)
    nodes = [
        dataclasses.replace(node, bias_init=dead) if node.name == "fc1" else node for node in model
    ]
    model = dataclasses.replace(model, nodes=tuple(nodes), decays=())
    case = StepSpec(model="chain", phase="forward-backward", framework=framework)
    kernel = serve_step(backend_of(framework), case, StepPreparation(), model)
    checks = {one.name: one for one in kernel.facts.checks}
    assert checks["gradients"].status == "failed"
    assert "conv1/weights is zero" in checks["gradients"].detail


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_fetched_results_are_arrays_of_the_hosts(backend_of, framework):
    backend_of(framework)
    fetched = {}
    for phase in ("forward", "forward-backward", "training"):
        case = StepSpec(model="chain", framework=framework, fetch=True, feed="host", phase=phase)
        with catalogue_model(tiny.chain(), case) as made:
            fetched[phase] = made.run()
    output, gradients = fetched["forward"].output, fetched["forward-backward"].gradients
    assert output.shape == (4, 5)
    assert sum(gradient.size for gradient in gradients) == 1531
    assert {type(array) for array in (output, *gradients)} == {np.ndarray}
    assert np.isfinite(output).all()
    assert np.isfinite(fetched["training"].loss)


@pytest.mark.product
@pytest.mark.parametrize("cast", ["mixed", "whole"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_narrow_types_learn_too(backend_of, framework, cast):
    case = StepSpec(
        model="branches", phase="training", framework=framework, precision="bf16", cast=cast
    )
    if not BF16 or framework == "jax":
        with pytest.raises(UnsupportedError, match="bf16"):
            serve_step(backend_of(framework), case, StepPreparation(), tiny.branches())
        return
    kernel = serve_step(backend_of(framework), case, StepPreparation(), tiny.branches())
    assert {one.name for one in kernel.facts.checks if one.status != "ok"} == set()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_framework_has_not_is_refused(backend_of, framework):
    own, none = backend_of(framework), StepPreparation(checks=False)
    case = StepSpec(model="maps", phase="training", framework=framework)
    with pytest.raises(UsageError, match="nearest: --phase forward-"):
        serve_step(own, case, none, tiny.maps())
    with pytest.raises(UnsupportedError, match="tf32"):
        serve_step(own, msgspec.structs.replace(case, precision="tf32"), none, tiny.maps())


def test_a_workers_framework_is_the_cases(backend_of):
    case = StepSpec(model="mnist", framework="tensorflow", batch=1)
    with pytest.raises(UsageError, match="asked of a worker of torch"):
        request_step(backend_of("torch"), case.to_dict(), {})
    with pytest.raises(UsageError, match="nearest: mnist"):
        request_step(backend_of("torch"), StepSpec(model="mnits", batch=1).to_dict(), {})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_sum_is_a_loss(backend_of, framework):
    case = StepSpec(model="maps", phase="forward-backward", framework=framework)
    kernel = serve_step(backend_of(framework), case, StepPreparation(), tiny.maps("sum"))
    assert {one.name for one in kernel.facts.checks if one.status != "ok"} == set()

"""Frameworks compute the same, for every operation, in every phase and mode."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import tiny

from pydlbench.backends.steps.inputs import make_weights
from pydlbench.backends.steps.serving import catalogue_model, serve_step
from pydlbench.records.agreement import Agreement
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.steps import agreement
from pydlbench.steps.agreement import compare

if TYPE_CHECKING:
    from pathlib import Path

    from pydlbench.models.graph import Model

CLOSE = 1e-4
#: Who is held against PyTorch; XLA compiles each of JAX's steps.
OTHERS = ("tensorflow", pytest.param("jax", marks=pytest.mark.deep))


def saved(backend: Any, model: Model, folder: Path, **words: Any) -> Path:
    folder.mkdir()
    case = StepSpec(model=model.name, dropout=False, framework=backend.name, **words)
    serve_step(backend, case, StepPreparation(checks=False, save=str(folder)), model)
    return folder


@pytest.mark.product
@pytest.mark.parametrize("phase", ["forward", "forward-backward", "training"])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", tiny.MODELS)
def test_frameworks_agree(backend_of, tmp_path, name, other, phase):
    model = tiny.MODELS[name]()
    if phase == "training" and model.optimizer.kind == "none":
        pytest.skip("this model is not trained")
    folders = [
        saved(backend_of(one), model, tmp_path / one, phase=phase) for one in ("torch", other)
    ]
    found = compare(*folders)
    trained = [one for one in make_weights(model) if "/running_" not in one]
    assert set(found.tensors) == {"output", *(trained if phase != "forward" else ())}
    assert max(found.tensors.values()) < CLOSE
    assert found.check.status == "ok"


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("torch", {"layout": "nchw"}),
        ("torch", {"feed": "host"}),
        pytest.param("tensorflow", {"mode": "xla"}, marks=pytest.mark.deep),
        ("tensorflow", {"feed": "host"}),
        pytest.param("jax", {"layout": "nchw", "feed": "host"}, marks=pytest.mark.deep),
    ],
)
def test_ways_to_run_agree(backend_of, tmp_path, framework, words):
    model, own = tiny.branches(), backend_of(framework)
    folders = [
        saved(own, model, tmp_path / "plain", phase="training"),
        saved(own, model, tmp_path / "other", phase="training", **words),
    ]
    assert max(compare(*folders).tensors.values()) < CLOSE


@pytest.mark.parametrize("other", OTHERS)
def test_running_statistics_differ_from_the_batch(backend_of, tmp_path, other):
    model = tiny.branches()
    words = {"phase": "forward-backward", "running_statistics": True}
    folders = [saved(backend_of(one), model, tmp_path / one, **words) for one in ("torch", other)]
    batch = saved(backend_of("torch"), model, tmp_path / "batch", phase="forward-backward")
    running = np.load(folders[0] / "0.npy")
    assert np.abs(np.load(batch / "0.npy") - running).max() > 0.01 * np.abs(running).max()
    assert max(compare(*folders).tensors.values()) < CLOSE


@pytest.mark.parametrize("other", OTHERS)
def test_updates_agree(backend_of, other):
    # Momentum shows in the second step only; running statistics in the first.
    model = tiny.branches()
    momentum = dataclasses.replace(model.optimizer, kind="momentum", rate=0.05)
    model = dataclasses.replace(model, optimizer=momentum)

    weights, after = make_weights(model), {}
    for name in ("torch", other):
        case = StepSpec(model=model.name, phase="training", framework=name)
        backend_of(name)
        with catalogue_model(model, case) as made:
            for _ in range(3):
                made.descend(0.05)
        after[name] = _plain(name, made)
    for key, ours in after["torch"].items():
        np.testing.assert_allclose(after[other][key], ours, rtol=1e-4, atol=1e-5)
        moved = np.abs(ours - weights[key]).max()
        assert moved > 1e-5, key


def _plain(name: str, model: Any) -> dict[str, Any]:
    """Return weights and running statistics by name, as they are in the graph."""
    net = model.net
    if name == "torch":
        return {key: net.plain(key, one) for key, one in net.tensors().items()}
    if name == "tensorflow":
        return {key: net.plain(key, one.numpy()) for key, one in net.variables.items()}
    tensors = {**model.state["trained"], **model.state["buffers"]}
    return {key: net.plain(key, np.asarray(one)) for key, one in tensors.items()}


def write(folder: Path, **tensors: list[float]) -> Path:
    folder.mkdir()
    for number, values in enumerate(tensors.values()):
        np.save(folder / f"{number}.npy", np.array(values, np.float32))
    (folder / "names.txt").write_text("\n".join(tensors))
    return folder


def test_differences_are_relative_to_the_largest_value(tmp_path):
    first = write(tmp_path / "torch", output=[1, -4], a=[1, 2], b=[8, 0])
    other = write(tmp_path / "tensorflow", output=[1, -4], a=[1, 2.5], b=[8, 0.004])
    found = compare(first, other)
    assert found.tensors == pytest.approx({"output": 0, "a": 0.25, "b": 0.0005})
    assert (found.output, found.gradients, found.worst) == (0, pytest.approx(0.25), "a")
    assert found.check.status == "failed"
    assert "gradients 0.25 (a)" in found.check.detail


@pytest.mark.parametrize("values", [[float("nan"), 1], [1, 2, 3]])
def test_nans_and_other_shapes_never_agree(tmp_path, values):
    first = write(tmp_path / "torch", output=[1, 2])
    found = compare(first, write(tmp_path / "tensorflow", output=values))
    assert found.output == float("inf")
    assert found.check.status == "failed"


def test_results_without_elements_agree(tmp_path):
    found = compare(*(write(tmp_path / name, output=[]) for name in ("torch", "tensorflow")))
    assert found.tensors == {"output": 0}
    assert found.check.status == "ok"


def test_each_gradient_may_differ_as_far_as_rounding_carries_it():
    """A small tensor is not excused by how far another one moves."""
    found = Agreement(
        frameworks=("torch", "tensorflow"),
        output=1e-5,
        gradients=0.3,
        worst="a",
        median=0.01,
        tensors={"output": 1e-5, "a": 0.3, "small": 0.02},
        norms={"output": 1e-5, "a": 0.1, "small": 0.02},
    )
    assert found.wrong == ["a", "small"]
    floors = {"output": 1e-6, "a": 0.06, "small": 0.011}
    held = msgspec.structs.replace(found, floors=floors)
    assert (held.wrong, held.check.status) == ([], "ok")
    held = msgspec.structs.replace(found, floors=floors | {"small": 0.005})
    assert (held.wrong, held.check.status) == (["small"], "failed")
    # Nor the output by gradients.
    wild = msgspec.structs.replace(
        held, tensors=found.tensors | {"output": 0.02}, norms=found.norms | {"output": 0.02}
    )
    assert wild.wrong == ["output", "small"]


#: A model with other names, another order of creation, or another result.
_MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.{first} = torch.nn.Linear(8, 16)
        self.{second} = torch.nn.Linear(16, 4)
    def forward(self, x):
        return self.{second}(torch.relu(self.{first}(x))) * {scale}
def build():
    torch.rand({drawn})
    return Net(), torch.randn({batch}, 8)
"""
_OLD = {"first": "a", "second": "b", "scale": 1.0, "drawn": 1, "batch": 3}


@pytest.mark.product
@pytest.mark.parametrize("phase", ["forward", "training"])
@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, []),
        ({"first": "one", "second": "two", "drawn": 5}, []),
        ({"scale": 1.001}, ["output"]),
        ({"batch": 5}, None),
    ],
)
def test_a_changed_model_has_the_weights_and_inputs_of_the_other_one(
    backend_of, tmp_path, monkeypatch, changed, wrong, phase
):
    steps = []
    for name, words in (("old", _OLD), ("new", _OLD | changed)):
        (tmp_path / f"{name}.py").write_text(_MODEL.format(**words))
        steps.append(StepSpec(model=f"{tmp_path}/{name}.py:build", phase=phase))

    def prepared(step: StepSpec, _: Any, preparation: StepPreparation) -> Any:
        facts = serve_step(backend_of("torch"), step, preparation).facts
        return SimpleNamespace(facts=facts, release=lambda: None)

    monkeypatch.setattr(agreement, "prepare_step", prepared)
    found = agreement.agree_steps(steps, SimpleNamespace(renew=lambda: None), tmp_path / "values")
    assert found.shared == 4
    if wrong is None:
        assert "inputs differ" in found.unchecked
        return
    assert found.agreement is not None
    assert found.differs == bool(wrong)
    assert set(found.agreement.wrong) >= set(wrong)
    expected = {"output"} if phase == "forward" else {"output", "a.weight", "b.bias"}
    assert set(found.agreement.tensors) >= expected
    assert found.agreement.tolerance < 1e-5

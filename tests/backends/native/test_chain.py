"""Chains of tiny models hold against PyTorch, in every way to lay tensors out."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import tiny

import pydlbench._cpu as _cpu
from pydlbench.backends.native.chains import CpuChains
from pydlbench.backends.native.links import list_step
from pydlbench.backends.native.model_chain import NativeChain, check_kernels
from pydlbench.models.builder import Builder
from pydlbench.models.graph import Optimizer
from pydlbench.ops.table import build_layer
from pydlbench.records.step import StepSpec
from pydlbench.timing.statistics import interval_ranks

WAYS = ("channels last", "blocked", "as each row")


def gates():
    """Activations, factors of channels, a transposed convolution; a loss over maps."""
    made = Builder("gates", 2, (3, 8, 8))
    made.conv("deep", 12, 3, 1, 1)
    deep = made.activation("relu6")
    made.global_pool("mean")
    made.conv("squeeze", 4, 1)
    made.activation("hardswish")
    made.conv("widen", 12, 1)
    made.scale("scaled", deep, made.activation("hardsigmoid"))
    made.deconv("up", 5, 2, 2)
    return made.model(
        title="gates", source="this test", loss=tiny.maps().loss, optimizer=Optimizer(rate=1e-3)
    )


MODELS = {
    "chain": tiny.chain,
    "joins": lambda: tiny.joins(left=16, right=2),
    "gates": gates,
    "maps, squares": tiny.maps,
    "maps, sum": lambda: tiny.maps("sum"),
}


@pytest.fixture(scope="module")
def expected():
    """What PyTorch computes of a model and phase: output and gradients; made once."""
    pytest.importorskip("torch")
    from pydlbench.backends.steps.serving import catalogue_model

    known = {}

    def get(name, phase):
        if (name, phase) not in known:
            model = MODELS[name]()
            case = StepSpec(model=name, phase=phase, dropout=False)
            with catalogue_model(model, case) as made:
                gradients = dict(made.gradients()) if case.backward else {}
                made.initialize()
                known[name, phase] = model, made.output(), gradients
        return known[name, phase]

    return get


def error(found, wanted) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.product
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("phase", ["forward", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_output_and_gradients_are_those_of_pytorch(expected, name, phase, way):
    if phase == "training" and MODELS[name]().optimizer.kind == "none":
        phase = "forward-backward"
    model, output, gradients = expected(name, phase)
    made = NativeChain(list_step(model, phase, dropout=False), way)

    # Twice from the first weights: nothing of the first run is left in the second.
    for _ in range(2):
        made.chain.load()
        made.chain.run()
        assert error(made.output(), output) < 1e-5
        found = dict(made.gradients())
        assert found.keys() == gradients.keys()
        for tensor, gradient in gradients.items():
            assert error(found[tensor], gradient) < 1e-4, tensor
    if phase == "training":
        assert made.check_update().status == "ok"


def test_conversions_are_timed_run_by_run():
    made = NativeChain(list_step(tiny.chain(), "training"), "blocked")
    steps, runs = made.steps()
    assert len(steps) == len(made.chain.steps)
    assert interval_ranks(len(runs), 0.95) is not None
    reorders = [one.seconds for one in steps if one.tensor]
    assert len(reorders) > 0
    assert min(runs) > 0


class Planted(CpuChains):
    """Chains of which one tensor is read back wrong."""

    def __init__(self, name, factor) -> None:
        super().__init__()
        self._name, self._factor = name, factor

    def make(self, *words):
        chain = super().make(*words)

        def tensor(name):
            return chain.tensor(name) * (self._factor if name == self._name else 1)

        names = ("load", "run", "steps")
        return SimpleNamespace(tensor=tensor, **{name: getattr(chain, name) for name in names})


@pytest.mark.parametrize("rate", [1e-4, 1e-6, 1e-8])
def test_an_update_that_is_wrong_by_a_part_of_itself_shows(rate):
    """Relative to the weights it would be nothing."""
    model = dataclasses.replace(tiny.chain(), optimizer=Optimizer(rate=rate))
    made = NativeChain(list_step(model, "training", dropout=False), "channels last")
    assert made.check_update().status == "ok"
    made._listing = dataclasses.replace(made._listing, rate=1.01 * rate)
    assert made.check_update().status == "failed"


@pytest.mark.parametrize(
    ("tensor", "wrong"),
    [("", ""), ("left/weights/gradient", "left"), ("left/bn/bias/gradient", "left/bn")],
)
def test_a_wrong_gradient_is_found_behind_normalisations(tensor, wrong, monkeypatch):
    """By one per cent, where rounding carries further; with room for few tensors at a time."""
    monkeypatch.setattr("pydlbench.backends.native.model_chain._TOGETHER", 100_000)
    listing = list_step(MODELS["joins"](), "forward-backward", dropout=False)
    found = check_kernels(listing, "blocked", chains=Planted(tensor, 1.01))
    assert found.status == ("failed" if wrong else "ok")
    assert wrong in found.detail
    assert not wrong or found.detail.startswith("1 of ")


def test_memory_is_shared_by_lifetime_and_no_larger_than_needed():
    made = NativeChain(list_step(tiny.chain(), "training"), "channels last")

    memory = made.chain.memory
    assert 0 < memory["shared"] < memory["unshared"]


def test_weights_that_do_not_change_are_packed_before_and_others_within():
    model = MODELS["joins"]()
    forward = NativeChain(list_step(model, "forward"), "channels last").chain
    training = NativeChain(list_step(model, "training"), "channels last").chain

    def packed(chain):
        return {one["tensor"] for one in chain.steps if one["tensor"].endswith("/weights")}

    assert not packed(forward)
    loaded = [one["tensor"] for one in forward.loads if one["tensor"] == "left/weights"]
    assert loaded
    # Kept as the forward kernel wants it, and packed anew for another layout in each step.
    kept = [one["tensor"] for one in training.loads if one["tensor"] == "left/weights"]
    assert len(kept) == 1


def test_samples_and_steps_have_times():
    chain = NativeChain(list_step(tiny.chain(), "training"), "channels last").chain

    chunk = chain.sample(3, 2, 1)
    assert len(chunk["seconds"]) == 3
    assert min(chunk["seconds"]) > 0
    seconds = chain.step_seconds()
    assert len(seconds) == len(chain.steps)
    assert min(seconds) > 0


@pytest.mark.parametrize(
    ("reads", "given", "said"),
    [
        ({"src": "nobody"}, {}, "nobody"),
        ({}, {}, "no tensor for the role src"),
        ({"src": "x"}, {"x": np.zeros(3, np.float32)}, "the wrong number of elements"),
    ],
)
def test_a_list_that_does_not_fit_together_is_refused(reads, given, said):
    link = _cpu.Link(
        name="a forward",
        problem="relu",
        kind="pointwise",
        fields=build_layer("relu", channels=4, height=2, width=2).problem_fields(),
        pass_=_cpu.Pass.forward_inference,
        reads=reads,
        writes={"dst": "y"},
    )
    with pytest.raises(ValueError, match=said):
        _cpu.Chain(
            [link], given, {"y"}, _cpu.Precision.fp32, _cpu.Layouts.channels_last, _cpu.Choices()
        )


def test_a_chosen_kernel_is_taken():
    fields = build_layer("relu", batch=2, channels=32, height=5, width=5).problem_fields()
    found = _cpu.candidates("pointwise", _cpu.Pass.forward_inference, _cpu.Precision.fp32, fields)
    for one in {f"{c.implementation} {c.layout}" for c in found if not c.is_reference}:
        link = _cpu.Link(
            name="a",
            problem="relu",
            kind="pointwise",
            fields=fields,
            pass_=_cpu.Pass.forward_inference,
            reads={"src": "x"},
            writes={"dst": "y"},
            choice=one,
        )
        x = np.linspace(-1, 1, 2 * 32 * 25, dtype=np.float32)
        chain = _cpu.Chain(
            [link], {"x": x}, {"y"}, _cpu.Precision.fp32, _cpu.Layouts.chosen, _cpu.Choices()
        )
        chain.run()
        (step,) = chain.steps
        assert f"{step['algorithm']} {step['layout']}" == one
        np.testing.assert_array_equal(chain.tensor("y"), np.maximum(x, 0))

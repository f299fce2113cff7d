"""Parts in the frameworks' own processes' code, here in this one: tiny models with every oddity."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from math import prod

import pytest

from pydlbench.ladder.operators import blocks, singles, step_operators
from pydlbench.models.builder import Builder
from pydlbench.models.graph import Decay, Optimizer, trained_tensors
from pydlbench.records.step import StepSpec
from pydlbench.timing.chunk import Request
from pydlbench.words import FRAMEWORK_MODES


def tiny():
    """Branches that are joined and added, uneven padding, batch-norm, dropout, an L2 term."""
    made = Builder("tiny", 2, (3, 10, 10))
    made.conv("stem", 8, 3, bias=False, padding=(0, 1, 1, 0))
    made.batchnorm()
    stem = made.relu()
    left = made.conv("left", 8, 3, 1, 1, after=stem)
    right = made.conv("right", 8, 3, 1, 1, after=stem)
    made.add("both", left, right)
    both = made.relu()
    made.concat("joined", [both, stem])
    made.pool("pool", 3, 2, "SAME")
    made.lrn("norm", 5, 1e-2, 0.75, 2.0)
    made.flatten()
    made.linear("fc1", 6)
    made.relu("fc1/out")
    made.dropout("drop", 0.5)
    made.linear("fc2", 5)
    return made.model(
        title="tiny",
        source="this test",
        decays=(Decay(node="fc1", tensor="weights", factor=1e-2),),
        optimizer=Optimizer(kind="momentum", rate=0.02, mu=0.9),
    )


@pytest.fixture(scope="module")
def prepared():
    def prepare(framework, phase, mode=None, traces=False):
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TensorFlow's imports are full of deprecations
            backend = importlib.import_module(f"pydlbench.backends.{framework}.backend")
            serving = importlib.import_module(f"pydlbench.steps.{framework}.operators")
            model, mode = tiny(), mode or FRAMEWORK_MODES[framework][0]
            case = StepSpec(model="tiny", phase=phase, framework=framework, mode=mode)
            found = step_operators(model, phase, framework, mode, "host")
            found += singles(model, phase, found)
            wanted = [one.request() for one in found]
            own = {"traces": traces} if framework == "torch" else {}
            return model, found, serving.prepare(backend.create("cpu"), model, case, wanted, **own)

    return prepare


@pytest.mark.product
@pytest.mark.parametrize("phase", ["forward", "forward-backward", "training"])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_every_part_runs_and_has_a_time(prepared, framework, phase):
    _, found, kernel = prepared(framework, phase)
    chunk = kernel.sample(Request(samples=2, untimed=1))
    assert kernel.facts.names == tuple(one.name for one in found)
    assert len(chunk.seconds) == 2 * len(found)
    # They are differences: of tiny parts some are nothing, but not the one that computes most.
    times = dict(zip(kernel.facts.names, chunk.seconds, strict=False))
    assert max(seconds for name, seconds in times.items() if name.startswith("stem")) > 0
    assert kernel.facts.once_s > 0
    assert kernel.facts.dispatch_s >= 0


def test_the_blocks_of_a_part_are_its_outputs_and_its_gradients(prepared):
    large = {}
    for phase in ("forward", "training"):
        model, found, kernel = prepared("torch", phase, traces=True)
        traces = kernel.facts.traces
        assert set(traces) == {one.name for one in found}
        assert all(size > 0 for sizes in traces.values() for size in sizes)
        output = 4 * model.batch * prod(model["stem"].shape)
        assert max(traces["stem"]) >= output
        assert traces["feed"] == []
        assert blocks(found, traces) == [1 << 20]  # all of them are small
        weights = 4 * prod(trained_tensors(model["left"])["weights"])
        large[phase] = sum(size >= weights for size in traces["left"])
    # Gradients of images and of weights besides.
    assert large["training"] >= large["forward"] + 2


def test_what_works_in_place_gets_a_new_copy_in_each_round(prepared):
    _, found, kernel = prepared("torch", "forward")
    parts = dict(zip(kernel.facts.names, kernel._operators, strict=True))
    add = parts[next(one.name for one in found if one.nodes[:1] == ("both",))]
    before = [one.clone() for one in add.inputs]
    add.run()
    add.run()
    assert all(bool((a == b).all()) for a, b in zip(before, add.inputs, strict=True))


def test_a_groups_operands_are_those_of_the_step(prepared):
    model, found, kernel = prepared("torch", "training")
    parts = dict(zip(kernel.facts.names, kernel._operators, strict=True))
    relu = parts["fc1/out"]
    product = parts["fc1"]
    outputs = product.forward(product.ready())
    # The update has run once meanwhile, at a rate that hardly moves anything.
    assert bool((outputs[0] - relu.inputs[0]).abs().max() < 1e-5)
    # Its own gradient is what the operator in front of it gets.
    found = relu.backward(relu.forward(relu.ready()))
    assert bool((found[0] == product.gradients[0]).all())
    del model


def test_what_makes_an_operand_is_taken_off(monkeypatch):
    pytest.importorskip("tensorflow")
    parts = importlib.import_module("pydlbench.steps.tensorflow.operators")
    tf = importlib.import_module("tensorflow")

    class Model:
        case = StepSpec(model="tiny", framework="tensorflow", mode="graph")

        @staticmethod
        def traced(body):
            return tf.function(body, autograph=False)

    seen = []

    def body(value):
        seen.append(value)
        return [tf.nn.relu(value)]

    operand = tf.constant([[1.0, -2.0]])
    part = parts.ProducedOperator(Model(), body, [[operand], [operand]])
    assert part.executions == 2
    # It reads what was made for it, which has the operand's values.
    assert all(value.op.type == "Mul" for value in seen)
    taken = iter([10.0, 4.0])
    monkeypatch.setattr(parts.TimedCall, "run", lambda _: next(taken))
    assert part.run() == 10.0 / 2 - 4.0 / 2
    taken = iter([3.0, 4.0])
    assert part.run() == 0.0

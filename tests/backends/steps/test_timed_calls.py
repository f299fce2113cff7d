"""Operators made of their signatures, here in this process: a tiny model with every oddity."""

import importlib
import importlib.util
import warnings

import pytest

from pydlbench.backends.steps import serving
from pydlbench.backends.steps.timed_calls import CallCost
from pydlbench.calls.groups import CallGroup, feed_signature
from pydlbench.models.graph import Builder, Decay, Optimizer
from pydlbench.records.step import StepSpec
from pydlbench.timing.chunk import ChunkRequest


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


# Training has the operators of the other phases too, which take long to be made.
@pytest.mark.parametrize(
    ("framework", "mode", "phase"),
    [
        ("torch", "compiled", "training"),
        pytest.param("tensorflow", "graph", "forward", marks=pytest.mark.deep),
        pytest.param("tensorflow", "graph", "training", marks=pytest.mark.deep),
        ("tensorflow", "xla", "training"),
        ("jax", "xla", "training"),
    ],
)
def test_every_operator_is_made_of_its_signature_and_has_a_time(
    framework, mode, phase, monkeypatch
):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's imports are full of deprecations
        backend = importlib.import_module(f"pydlbench.backends.{framework}.backend").create("cpu")
        worker = importlib.import_module(f"pydlbench.backends.{framework}.worker")
    for module in (importlib.import_module(worker.serve_calls.__module__), serving):
        monkeypatch.setattr(module, "build_model", lambda *_, **__: tiny(), raising=False)
    case = StepSpec(model="tiny", phase=phase, framework=framework, mode=mode)
    calls = worker.serve_call_list(backend, case).facts.calls
    names = {name for one in calls for name in one.names}
    assert any(name.startswith("left") for name in names)
    directions = (
        {"forward", "backward", "loss", "optimizer"} if phase == "training" else {"forward"}
    )
    assert directions <= {one.direction for one in calls}
    fed = feed_signature(case.layout, (2, 3, 10, 10), labels=True)
    signatures = [fed, *(one.signature for one in calls)]
    kernel = worker.serve_calls(backend, case, signatures)
    assert kernel.facts.refused == {}
    assert set(kernel.facts.names) == set(signatures)
    chunk = kernel.sample(ChunkRequest(samples=2, untimed=1))
    assert len(chunk.seconds) == 2 * len(kernel.facts.names)

    # They are differences: of tiny operators some are nothing, but not always all that compute
    # most, whatever else uses the cores.
    def computes():
        seconds = kernel.sample(ChunkRequest(samples=2, untimed=1)).seconds
        times = zip(kernel.facts.names * 2, seconds, strict=True)
        return any(one > 0 for name, one in times if "conv" in name.lower())

    assert any(computes() for _ in range(20))
    assert kernel.facts.dispatch_s >= 0


def test_a_compiled_group_computes_what_its_calls_do():
    torch = pytest.importorskip("torch")
    compiled = importlib.import_module("pydlbench.backends.torch.steps.compiled_trace")
    group = CallGroup(
        calls=(
            "aten.mm.default(float32[2, 3](3, 1), float32[3, 4](4, 1))",
            "aten.relu_.default(float32[2, 4](4, 1))",
            "aten.add.Tensor(float32[2, 4](4, 1), float32[2, 4](4, 1))",
        ),
        links=((1, 0, 0, 0), (2, 0, 1, 0)),
        results=((1, 0), (2, 0)),
    )
    made = compiled.GroupOperator(group)
    left, right, other = made.operands
    maxima, total = made.call()
    torch.testing.assert_close(maxima, torch.relu(left @ right))
    torch.testing.assert_close(total, torch.relu(left @ right) + other)


def test_what_makes_an_operand_is_taken_off(monkeypatch):
    pytest.importorskip("tensorflow")
    parts = importlib.import_module("pydlbench.backends.tensorflow.steps.calls_alone")
    tf = importlib.import_module("tensorflow")

    traced = importlib.import_module("pydlbench.backends.tensorflow.steps.step").Tracer(
        "/CPU:0", "graph"
    )
    seen = []

    def body(value):
        seen.append(value)
        return [tf.nn.relu(value)]

    operand = tf.constant([[1.0, -2.0]])
    part = parts.ProducedOperator(traced, body, [[operand], [operand]])
    assert part.executions == 2
    # It reads what was made for it, which has the operand's values.
    assert all(value.op.type == "Mul" for value in seen)
    taken = iter([10.0, 4.0])
    monkeypatch.setattr(parts.TimedCall, "run", lambda _: next(taken))
    assert part.run() == 10.0 / 2 - 4.0 / 2
    taken = iter([3.0, 4.0])
    assert part.run() == 0.0


def test_the_median_of_the_last_calls_counts():
    times = iter([1.0, 9.0, 2.0, *[4.0] * 100])
    cost = CallCost(lambda: next(times))
    assert [cost.seconds() for _ in range(3)] == [1.0, 5.0, 2.0]
    for _ in range(60):
        last = cost.seconds()
    assert last == 4.0  # the first ones are forgotten

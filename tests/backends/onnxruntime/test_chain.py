"""The nodes of an ONNX step in their order, each in a session of its own."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - not installed everywhere

from pydlbench.backends.onnxruntime import chain  # noqa: E402
from pydlbench.backends.onnxruntime.backend import create  # noqa: E402
from pydlbench.backends.onnxruntime.recording import recorded  # noqa: E402
from pydlbench.backends.onnxruntime.step import OnnxModel  # noqa: E402
from pydlbench.backends.steps import operations  # noqa: E402
from pydlbench.errors import PrimitiveError, UnsupportedError  # noqa: E402
from pydlbench.records.step import StepSpec  # noqa: E402
from pydlbench.timing.chunk import Request  # noqa: E402

FLOAT = TensorProto.FLOAT
STREAM = np.random.default_rng(0)
# Results are read again behind others of their size: memory that is taken too early would show.
RESIDUAL = [
    helper.make_node("Conv", ["x", "kernel"], ["a"], name="stem", pads=[1] * 4),
    helper.make_node("Conv", ["a", "square"], ["b"], name="left", pads=[1] * 4),
    helper.make_node("Sigmoid", ["b"], ["c"], name="gate"),
    helper.make_node("Conv", ["c", "square"], ["d"], name="right", pads=[1] * 4),
    helper.make_node("Add", ["a", "d"], ["e"], name="sum"),
    helper.make_node("Reshape", ["e", "flat"], ["f"], name="rows"),
    helper.make_node("Tanh", ["d"], ["g"], name="beside"),
    helper.make_node("MatMul", ["f", "matrix"], ["y"], name="head"),
]


@pytest.fixture(scope="module")
def backend():
    return create("cpu")


@pytest.fixture
def case(tmp_path, monkeypatch):
    """Return what writes nodes into a file and returns its step."""
    monkeypatch.chdir(tmp_path)

    def write(nodes=RESIDUAL, results=("y", "g"), **how):
        weights = {
            "kernel": STREAM.standard_normal((8, 3, 3, 3)).astype(np.float32),
            "square": STREAM.standard_normal((8, 8, 3, 3)).astype(np.float32),
            "matrix": STREAM.standard_normal((8 * 36, 5)).astype(np.float32),
            "flat": np.array([2, 8 * 36]),
            "true": np.array(True),
        }
        used = {name for node in nodes for name in node.input}
        graph = helper.make_graph(
            nodes,
            "net",
            [helper.make_tensor_value_info("x", FLOAT, (2, 3, 6, 6))],
            [helper.make_tensor_value_info(name, FLOAT, None) for name in results],
            [numpy_helper.from_array(one, name) for name, one in weights.items() if name in used],
        )
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "net.onnx")
        return StepSpec(model="net.onnx", framework="onnxruntime", **how)

    return write


@pytest.mark.parametrize("mode", ["optimized", "unoptimized"])
def test_a_chain_computes_what_the_step_does(backend, case, mode):
    made = OnnxModel(backend, case(mode=mode))
    with made, recorded(made) as recording:
        found = chain.NodeChain(recording, made.feeds, backend)
        found.run()
        expected = made.run()
    for name, one in zip(("y", "g"), expected, strict=True):
        np.testing.assert_allclose(found.values[name], one, rtol=1e-4, atol=1e-4)
    # What is a view is started by none.
    nodes = sum(one.count for one in recording.calls)
    assert found.sessions == nodes - sum("Reshape" in one.operator for one in recording.calls)
    own = [one for name, one in found.values.items() if name not in made.feeds]
    blocks = {one.__array_interface__["data"][0] for one in own}
    assert len(blocks) < found.sessions


def test_a_chain_is_timed_where_starting_it_is_a_small_part(backend, case, monkeypatch):
    monkeypatch.setattr(chain, "_dispatch_s", lambda _: 1e-12)
    kernel = operations.prepare_chain(backend, case().to_dict())
    assert kernel.facts.dispatch_s == 1e-12
    assert [one.status for one in kernel.facts.checks] == ["ok"]
    assert len(kernel.sample(Request(samples=3)).seconds) == 3


def test_a_chain_that_is_mostly_started_is_refused_with_what_was_measured(
    backend, case, monkeypatch
):
    monkeypatch.setattr(chain, "_dispatch_s", lambda _: 2.0)
    with pytest.raises(UnsupportedError, match=r"takes 14\.0 s of the"):
        operations.prepare_chain(backend, case(mode="unoptimized").to_dict())


def test_the_cost_of_a_session_is_measured(backend):
    assert 0 < chain._dispatch_s(backend) < 1


def test_a_node_with_a_graph_of_its_own_is_refused_by_name(backend, case):
    inner = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["z"])],
        "inner",
        [],
        [helper.make_tensor_value_info("z", FLOAT, None)],
    )
    given = helper.make_node("Greater", ["x", "x"], ["more"], name="more")
    any_ = helper.make_node("ReduceMax", ["small"], ["one"], name="any", keepdims=0)
    small = helper.make_node("Cast", ["more"], ["small"], name="small", to=FLOAT)
    chosen = helper.make_node("Cast", ["one"], ["is"], name="is", to=TensorProto.BOOL)
    branch = helper.make_node(
        "If", ["is"], ["y"], name="choice", then_branch=inner, else_branch=inner
    )
    step = case([given, small, any_, chosen, branch], ["y"], mode="unoptimized")
    with pytest.raises(UnsupportedError, match="choice: If has a graph of its own"):
        operations.prepare_chain(backend, step.to_dict())


def test_a_chain_with_other_results_is_told(backend, case, monkeypatch):
    monkeypatch.setattr(chain, "_ROUNDINGS", -1.0)
    with pytest.raises(PrimitiveError, match=r"does not compute what the step does: .*y"):
        operations.prepare_chain(backend, case().to_dict())

"""The nodes of an ONNX file: recorded, told by native layers, and each run alone."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx_network  # noqa: E402 - needs onnx
from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - not installed everywhere

from pydlbench.analysis.mapped import kernels_of, map_calls  # noqa: E402 - below importorskip
from pydlbench.backends.onnxruntime.backend import create  # noqa: E402 - below importorskip
from pydlbench.backends.onnxruntime.step import node_operator  # noqa: E402 - below importorskip
from pydlbench.backends.steps import requests  # noqa: E402 - below importorskip
from pydlbench.calls.seen import meaning_of  # noqa: E402 - below importorskip
from pydlbench.calls.seen.onnx import OnnxNode, Tensor  # noqa: E402 - below importorskip
from pydlbench.models.passes import macs  # noqa: E402 - below importorskip
from pydlbench.records.step import StepSpec  # noqa: E402 - below importorskip
from pydlbench.records.trace import RecordedCall  # noqa: E402 - below importorskip
from pydlbench.timing.chunk import ChunkRequest  # noqa: E402 - below importorskip

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
STREAM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def backend():
    return create("cpu")


def recorded(backend, model, mode="optimized"):
    """Return the facts of a step whose nodes were listed."""
    case = StepSpec(model=model, framework="onnxruntime", mode=mode)
    return requests.request_call_list(backend, case.to_dict()).facts


def ready(backend, calls):
    """Return the kernel of calls that are ready to be timed."""
    case = StepSpec(model="net.onnx", framework="onnxruntime")
    return requests.request_calls(backend, case.to_dict(), [one.signature for one in calls])


# -----------------------------------------------------------------------------
# A network whose graph is known.


@pytest.mark.parametrize("mode", ["optimized", "unoptimized"])
def test_all_nodes_of_a_network_of_ours_run_alone_and_have_native_layers(
    backend, mode, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    model = onnx_network.network()
    onnx_network.save(model, tmp_path / "units.onnx")
    facts = recorded(backend, "units.onnx", mode)
    assert (facts.batch, facts.types) == (model.batch, "fp32")
    assert sum(one.profiled for one in facts.calls) == pytest.approx(1.0)
    mapped = map_calls(facts.calls, "forward", "fp32", "cpu", None)
    for one in facts.calls:
        call = mapped[one.signature, one.direction]
        idle = call.meaning.kind == "view" or one.operator.startswith("nchwc.Reorder")
        assert bool(call.terms) != idle, (one.operator, call.meaning)
    products = sum(one.count * one.meaning.product_flops for one in mapped.values())
    flops = 2 * macs(model, "forward") * model.batch
    # Maps in blocks of channels are filled up.
    assert products >= flops
    if mode == "unoptimized":
        assert products == flops
        assert sum(one.count for one in facts.calls) == len(model.nodes)
        names = {name for one in facts.calls for name in one.names}
        assert names == {node.name for node in model}
        said = {OnnxNode.read(one.signature).get("epsilon") for one in facts.calls} - {None}
        assert said == {node.layer.epsilon for node in model if node.op == "batchnorm"}
    kernel = ready(backend, facts.calls)
    assert kernel.facts.refused == {}
    assert set(kernel.facts.names) == {one.signature for one in facts.calls}
    chunk = kernel.sample(ChunkRequest(samples=2, untimed=1))
    assert len(chunk.seconds) == 2 * len(facts.calls)
    assert kernels_of(mapped).specs


# -----------------------------------------------------------------------------
# A graph with shapes that are computed, indices, equal nodes, and a loop.


def info(name, kind, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.fixture
def facts(backend, tmp_path, monkeypatch):
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["value", "value"], ["next"]),
        ],
        "body",
        [info("round", INT64, ()), info("go", BOOL, ()), info("value", FLOAT)],
        [info("on", BOOL, ()), info("next", FLOAT)],
    )
    make = helper.make_node
    nodes = [
        make("Gather", ["table", "ids"], ["rows"], name="/tokens/Gather"),
        make("MatMul", ["rows", "m1"], ["a"], name="/first/MatMul"),
        make("MatMul", ["a", "m2"], ["b"], name="/second/MatMul"),
        make("Mul", ["b", "b"], ["squares"], name="/Mul"),
        make("Shape", ["squares"], ["shape"], start=0, end=1),
        make("Concat", ["shape", "rest"], ["flat"], axis=0),
        make("Reshape", ["squares", "flat"], ["features"]),
        make("Clip", ["features", "zero", "six"], ["limited"]),
        make("Loop", ["three", "", "limited"], ["y"], name="again", body=body),
    ]
    weights = {
        "table": STREAM.standard_normal((50, 8)).astype(np.float32),
        "m1": STREAM.standard_normal((8, 8)).astype(np.float32),
        "m2": STREAM.standard_normal((8, 8)).astype(np.float32),
        "rest": np.array([-1]),
        "zero": np.array(0, np.float32),
        "six": np.array(6, np.float32),
        "three": np.array(3),
    }
    graph = helper.make_graph(
        nodes,
        "net",
        [info("ids", INT64, ("N", 7))],
        [info("y", FLOAT)],
        [numpy_helper.from_array(one, name) for name, one in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    monkeypatch.chdir(tmp_path)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "net.onnx")
    case = StepSpec(model="net.onnx", framework="onnxruntime", mode="unoptimized", batch=20)
    return requests.request_call_list(backend, case.to_dict()).facts


def test_nodes_keep_what_decides_what_they_compute(facts):
    calls = {one.operator: one for one in facts.calls}
    nodes = {name: OnnxNode.read(one.signature) for name, one in calls.items()}
    assert calls["onnx.MatMul"].count == 2
    assert calls["onnx.MatMul"].names == ("first/MatMul", "second/MatMul")
    assert nodes["onnx.MatMul"].inputs[1] == Tensor(dtype="float32", shape=(8, 8), constant=True)
    ids = nodes["onnx.Gather"].inputs[1]
    assert (ids.shape, ids.values, ids.bounds) == ((20, 7), None, (0, 1))
    assert nodes["onnx.Mul"].inputs[1].same == 0
    assert nodes["onnx.Reshape"].inputs[1].values == (20, -1)
    assert nodes["onnx.Reshape"].outputs == (Tensor(dtype="float32", shape=(20, 56)),)
    assert [one.values for one in nodes["onnx.Clip"].inputs[1:]] == [(0,), (6,)]
    assert calls["onnx.Mul"].bytes == 4 * 2 * 20 * 7 * 8
    for one in facts.calls:
        assert OnnxNode.read(one.signature).signature == one.signature


def test_conditions_that_are_known_are_read_again():
    chosen = Tensor(dtype="bool", shape=(3,), values=(True, False, True))
    rows = Tensor(dtype="float32", shape=(3,))
    node = OnnxNode(operator="Where", version=17, inputs=(chosen, rows, rows), outputs=(rows,))
    assert OnnxNode.read(node.signature) == node
    found = meaning_of(RecordedCall(signature=node.signature, operator=node.name, bytes=node.bytes))
    assert (found.kind, found.flops, found.bytes) == ("elementwise", 3, 3 * (1 + 4 + 4 + 4))


def test_what_cannot_run_alone_has_its_reason_and_its_share(backend, facts):
    kernel = ready(backend, facts.calls)
    (loop,) = [one for one in facts.calls if one.signature in kernel.facts.refused]
    assert (loop.operator, loop.names) == ("onnx.Loop", ("again",))
    assert "graph of its own" in kernel.facts.refused[loop.signature]
    assert 0 < loop.profiled < 1
    assert len(kernel.facts.names) == len(facts.calls) - 1


def test_one_node_that_fails_costs_no_other(backend):
    tensor = Tensor(dtype="float32", shape=(2, 2))
    wrong = OnnxNode(operator="Nope", version=17, inputs=(tensor,), outputs=(tensor,))
    right = OnnxNode(operator="Relu", version=17, inputs=(tensor,), outputs=(tensor,))
    strange = Tensor(dtype="float8e4m3fn", shape=(2,))
    typed = OnnxNode(operator="Cast", version=19, inputs=(strange,), outputs=(tensor,))
    calls = [
        RecordedCall(signature=one.signature, operator=one.name) for one in (wrong, right, typed)
    ]
    kernel = ready(backend, calls)
    assert kernel.facts.names == (right.signature,)
    assert "Nope" in kernel.facts.refused[wrong.signature]
    assert kernel.facts.refused[typed.signature]


def test_operands_are_those_of_the_text(backend):
    source = Tensor(dtype="float32", shape=(40, 4))
    rows = Tensor(dtype="int64", shape=(100,), bounds=(37, 39))
    result = Tensor(dtype="float32", shape=(100, 4))
    limit = Tensor(dtype="float32", shape=(), constant=True, values=(0.25,))
    gather = OnnxNode(operator="Gather", version=17, inputs=(source, rows), outputs=(result,))
    clip = OnnxNode(operator="Clip", version=17, inputs=(source, None, limit), outputs=(source,))
    sides = Tensor(dtype="int64", shape=(2,), values=(20, -1))
    turned = Tensor(dtype="float32", shape=(20, 8))
    reshape = OnnxNode(operator="Reshape", version=17, inputs=(source, sides), outputs=(turned,))
    for node, shape in ((gather, (100, 4)), (reshape, (20, 8)), (clip, (40, 4))):
        made = node_operator(node, backend)
        made.run()
        (found,) = made.results()
        assert found.shape == shape
        assert np.abs(found).max() <= 1
    assert found.max() == np.float32(0.25)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("bool", 1),
        ("uint4", 1),
        ("float4_e2m1fn", 1),
        ("float8_e4m3fn", 1),
        ("bfloat16", 2),
        ("complex64", 8),
        ("object", 0),
    ],
)
def test_the_bytes_of_an_element_are_in_its_types_name(dtype, size):
    assert Tensor(dtype=dtype, shape=(2, 3)).bytes == 6 * size


def test_a_constant_that_json_cannot_say_is_left_out(backend, tmp_path, monkeypatch):
    nodes = [helper.make_node("Max", ["x", one], [f"of_{one}"]) for one in ("least", "small")]
    graph = helper.make_graph(
        nodes,
        "net",
        [info("x", FLOAT, (2, 3))],
        [info(one.output[0], FLOAT) for one in nodes],
        [
            numpy_helper.from_array(np.array(-np.inf, np.float32), "least"),
            numpy_helper.from_array(np.array(-1, np.float32), "small"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    monkeypatch.chdir(tmp_path)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "net.onnx")
    case = StepSpec(model="net.onnx", framework="onnxruntime", mode="unoptimized")
    calls = requests.request_call_list(backend, case.to_dict()).facts.calls
    constants = [OnnxNode.read(one.signature).inputs[1] for one in calls]
    assert all(one.constant for one in constants)
    assert {one.values for one in constants} == {None, (-1.0,)}
    assert ready(backend, calls).facts.refused == {}

"""Broken and hostile ONNX files: one line each that names the file, soon, and no crash."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - not installed everywhere

from pydlbench.backends.onnxruntime.backend import create, read_graph, types_of  # noqa: E402 - below importorskip
from pydlbench.backends.steps import requests  # noqa: E402 - below importorskip
from pydlbench.errors import (  # noqa: E402 - below importorskip
    InsufficientMemoryError,
    PydlbenchError,
    UnsupportedError,
    UsageError,
)
from pydlbench.records.step import StepSpec  # noqa: E402 - below importorskip
from pydlbench.runner.options import RunnerOptions  # noqa: E402 - below importorskip
from pydlbench.runner.session import Session  # noqa: E402 - below importorskip
from pydlbench.steps.run import run_in_turn  # noqa: E402 - below importorskip

FLOAT, STRING, INT64 = TensorProto.FLOAT, TensorProto.STRING, TensorProto.INT64
HUGE = 2**40


def model(nodes, *tensors, given=("x", FLOAT, (2, 3)), results=("y",), opset=17):
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(*given)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in results],
        tensors,
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def node(operator, *names, **attributes):
    *sources, result = names
    return helper.make_node(operator, sources, [result], **attributes)


def tensor(*dims, location=None):
    """Return a tensor that says that it is larger than its four bytes, or lies elsewhere."""
    made = TensorProto(name="w", data_type=FLOAT, dims=dims)
    if location is None:
        made.raw_data = bytes(4)
        return made
    made.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "24")):
        made.external_data.add(key=key, value=value)
    return made


def endless():
    """A loop without a last round, whose condition stays true."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Identity", "value", "next")],
        "body",
        [value("round", INT64, ()), value("go", TensorProto.BOOL, ()), value("value", FLOAT, None)],
        [value("on", TensorProto.BOOL, ()), value("next", FLOAT, None)],
    )
    return node("Loop", "", "true", "x", "y", body=body)


ADDED = node("Add", "x", "w", "y")
RELU = node("Relu", "x", "y")
SCALED = (node("ReduceSum", "w", "s", keepdims=0), node("Add", "x", "s", "y"))
CYCLE = [node("Add", "x", "b", "a"), node("Add", "a", "x", "b"), node("Relu", "b", "y")]


@pytest.mark.parametrize(
    ("content", "kind", "told"),
    [
        pytest.param(b"", UsageError, "No graph", id="empty"),
        pytest.param(model([RELU])[:40], UsageError, "Protobuf parsing failed", id="truncated"),
        pytest.param(bytes(5000), UsageError, "Protobuf parsing failed", id="no protobuf"),
        pytest.param(model(CYCLE), UsageError, "not acyclic", id="cyclic"),
        pytest.param(model([ADDED]), UsageError, "'w' is not a graph input", id="undefined"),
        pytest.param(model([RELU], opset=999), UsageError, "Opset 999", id="opset"),
        pytest.param(model([node("Nope", "x", "y")]), UsageError, "Nope", id="operator"),
        pytest.param(model([RELU], results=()), UsageError, "has no outputs", id="no outputs"),
        pytest.param(model(SCALED, tensor(HUGE)), UsageError, "net.onnx", id="huge weight"),
        pytest.param(
            model([node("Constant", "w", value=tensor(HUGE)), *SCALED]),
            UsageError,
            "net.onnx",
            id="huge constant",
        ),
        pytest.param(model(SCALED, tensor(HUGE, HUGE)), UsageError, "net.onnx", id="overflow"),
        pytest.param(model(SCALED, tensor(-4)), UsageError, "net.onnx", id="negative"),
        pytest.param(
            model([ADDED], tensor(2, 3, location="../../../../../../../../etc/passwd")),
            UsageError,
            "xternal",
            id="outside",
        ),
        pytest.param(
            model([ADDED], tensor(2, 3, location="/etc/passwd")),
            UsageError,
            "xternal",
            id="absolute",
        ),
        pytest.param(
            model(
                [node("ConstantOfShape", "n", "w"), *SCALED],
                numpy_helper.from_array(np.array([HUGE]), "n"),
            ),
            PydlbenchError,
            "",
            id="made in the run",
        ),
        pytest.param(
            model([RELU], given=("x", FLOAT, (HUGE, HUGE))),
            InsufficientMemoryError,
            "its inputs take",
            id="huge input",
        ),
        pytest.param(
            model([RELU], given=("x", FLOAT, (0, 3))),
            UsageError,
            "x is 0x3, without any element",
            id="no elements",
        ),
        pytest.param(
            model([RELU], given=("x", FLOAT, (-2, 3))), UsageError, "--batch 8", id="open"
        ),
        pytest.param(
            model([node("Identity", "x", "y")], given=("x", STRING, (2,))),
            (UnsupportedError, UsageError),
            "net.onnx",
            id="texts",
        ),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, monkeypatch, content, kind, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(content)
    case = StepSpec(model="net.onnx", framework="onnxruntime").to_dict()
    with pytest.raises(kind) as raised:
        requests.request_step(create("cpu"), case, {"checks": False})
    said = str(raised.value)
    assert told in said
    assert "\n" not in said
    assert "onnxruntime_src" not in said


@pytest.mark.deep
def test_a_step_without_an_end_is_stopped_at_the_limit_of_ones_own_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = model([endless()], numpy_helper.from_array(np.array(True), "true"))
    (tmp_path / "net.onnx").write_bytes(content)
    with Session(RunnerOptions(code_limit_s=5.0)) as session:
        (found,) = run_in_turn([StepSpec(model="net.onnx", framework="onnxruntime")], session)
    assert found.status == "failed"
    assert "--time-limit" in str(found.reason)


SCALE = numpy_helper.from_array(np.array(0.1, np.float32), "scale")


def weights(dtype, shape=(2, 3)):
    return numpy_helper.from_array(np.zeros(shape, dtype), "w")


@pytest.mark.parametrize(
    ("nodes", "tensors", "types"),
    [
        ([ADDED], [weights("float32")], "fp32"),
        ([ADDED], [weights("float16")], "mixed (fp16, fp32)"),
        ([ADDED], [weights("float64")], "mixed (fp32, fp64)"),
        ([RELU], [], "fp32"),
        ([node("Constant", "w", value=weights("float32")), ADDED], [], "fp32"),
        ([node("Gather", "x", "w", "y")], [weights("int64", (1,))], "fp32"),
        ([node("MatMulInteger", "x", "w", "y")], [weights("int8"), SCALE], "int8"),
        ([node("DequantizeLinear", "w", "scale", "y")], [weights("int8"), SCALE], "int8 QDQ"),
        (
            [node("QuantizeLinear", "w", "scale", "q"), node("Add", "x", "w", "y")],
            [weights("float32"), SCALE],
            "mixed (fp32, int8) QDQ",
        ),
    ],
)
def test_types_are_those_of_weights_and_inputs(tmp_path, nodes, tensors, types):
    path = tmp_path / "net.onnx"
    path.write_bytes(model(nodes, *tensors))
    assert types_of(read_graph("net.onnx", str(path))) == types

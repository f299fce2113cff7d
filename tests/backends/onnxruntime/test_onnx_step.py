"""ONNX files as steps: tiny ones, written here, run, and what is wrong with others."""

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - not installed everywhere

from pydlbench.backends.onnxruntime.backend import create  # noqa: E402 - below importorskip
from pydlbench.backends.onnxruntime.step import OnnxModel  # noqa: E402 - below importorskip
from pydlbench.backends.steps import requests  # noqa: E402 - below importorskip
from pydlbench.errors import (  # noqa: E402 - below importorskip
    InsufficientMemoryError,
    ModelError,
    UnsupportedError,
    UsageError,
)
from pydlbench.records.step import StepFacts, StepSpec  # noqa: E402 - below importorskip
from pydlbench.records.user_model import UserInput, UserModelSpec  # noqa: E402 - below importorskip
from pydlbench.timing.chunk import ChunkRequest  # noqa: E402 - below importorskip

STREAM = np.random.default_rng(0)
KERNEL = STREAM.standard_normal((4, 3, 3, 3)).astype(np.float32)
MATRIX = STREAM.standard_normal((144, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def backend():
    return create("cpu")


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return what writes a small network into ``net.onnx`` of the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(images=(2, 3, 8, 8), *, nodes=(), opset=17, **how):
        weights = {"kernel": KERNEL, "matrix": MATRIX, "flat": np.array([-1, 144])}
        graph = helper.make_graph(
            [
                helper.make_node("Conv", ["images", "kernel"], ["maps"], name="conv1"),
                helper.make_node("Relu", ["maps"], ["positive"], name="relu1"),
                helper.make_node("Reshape", ["positive", "flat"], ["rows"], name="flatten"),
                helper.make_node("MatMul", ["rows", "matrix"], ["scores"], name="fc"),
                *nodes,
            ],
            "tiny",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, images)],
            [helper.make_tensor_value_info("scores", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(one, name) for name, one in weights.items()],
        )
        opsets = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.save(model, "net.onnx", **how)

    return write


def case(*inputs, **how):
    own = UserModelSpec(inputs=tuple(map(UserInput.parse, inputs)))
    return StepSpec(model="net.onnx", framework="onnxruntime", own=own, **how)


def facts_of(backend, step):
    return requests.request_step(backend, step.to_dict(), {}).facts


@pytest.mark.parametrize("mode", ["optimized", "unoptimized"])
def test_a_file_runs_and_computes_what_it_says(backend, written, mode):
    written()
    made = OnnxModel(backend, case(mode=mode))
    with made:
        (scores,) = made.run()
    (images,) = made.feeds.values()
    assert images.shape == (2, 3, 8, 8)
    assert np.abs(images).max() <= 1
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), (2, 3))
    maps = np.einsum("nchwij,ocij->nohw", windows, KERNEL)
    expected = np.maximum(maps, 0).reshape(2, -1) @ MATRIX
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


def test_it_is_timed(backend, written):
    written()
    kernel = requests.request_step(backend, case(mode="unoptimized").to_dict(), {})
    facts = kernel.facts
    assert (facts.batch, facts.output, facts.parameters) == (2, (2, 5), 4 * 27 + 144 * 5)
    assert facts.inputs == ("2x3x8x8",)
    assert [(one.name, one.status) for one in facts.checks] == [("output", "ok")]
    assert StepFacts.from_dict(facts.to_dict()) == facts
    assert len(kernel.sample(ChunkRequest(samples=3, untimed=1)).seconds) == 3


@pytest.mark.parametrize(
    ("images", "step", "shape"),
    [
        (("N", 3, 8, 8), {"batch": 4}, (4, 3, 8, 8)),
        (("N", 3, "H", 8), {"inputs": ["6x3x8x8"]}, (6, 3, 8, 8)),
        (("N", 3, 8, 8), {"inputs": ["images=1x3x8x8"]}, (1, 3, 8, 8)),
        ((2, 3, 8, 8), {"batch": 2}, (2, 3, 8, 8)),
    ],
)
def test_inputs_are_the_graphs_or_what_was_asked_for(backend, written, images, step, shape):
    written(images)
    made = OnnxModel(backend, case(*step.pop("inputs", ()), **step))
    assert made.feeds["images"].shape == shape
    assert made.batch == shape[0]


@pytest.mark.parametrize(
    ("images", "step", "told"),
    [
        (("N", 3, 8, 8), {}, "is Nx3x8x8, which leaves dimensions open; nearest: --batch 8"),
        (("N", 3, "H", 8), {"batch": 4}, "nearest: --input 4x3x128x8"),
        ((2, 3, 8, 8), {"batch": 4}, "--batch 4: the input images of net.onnx is 2x3x8x8"),
        ((2, 3, 8, 8), {"inputs": ["2x3x9x8"]}, "nearest: --input 2x3x8x8"),
        ((2, 3, 8, 8), {"inputs": ["2x3x8x8:int64"]}, "is 2x3x8x8 of float32"),
        ((2, 3, 8, 8), {"inputs": ["image=2x3x8x8"]}, "no input image; nearest: images"),
        ((2, 3, 8, 8), {"inputs": ["2x3x8x8", "4"]}, "--input 4: net.onnx has 1 inputs only"),
    ],
)
def test_inputs_that_do_not_fit_are_the_users_mistake(backend, written, images, step, told):
    written(images)
    with pytest.raises(UsageError) as raised:
        OnnxModel(backend, case(*step.pop("inputs", ()), **step))
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("right", [True, False])
def test_values_are_those_of_files_and_outputs_are_compared(backend, tmp_path, monkeypatch, right):
    monkeypatch.chdir(tmp_path)
    values = (np.uint32(3), np.arange(6, dtype=np.uint32).reshape(2, 3))
    shapes = [
        helper.make_tensor_value_info(name, TensorProto.UINT32, x.shape)
        for name, x in zip("ab", values, strict=True)
    ]
    result = helper.make_tensor_value_info("c", TensorProto.UINT32, (2, 3))
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "g", shapes, [result])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "net.onnx")
    for name, x in zip(
        ("input_0", "input_1", "output_0"), (*values, values[1] + 2 + right), strict=True
    ):
        Path(f"{name}.pb").write_bytes(numpy_helper.from_array(np.asarray(x)).SerializeToString())
    facts = facts_of(backend, case("input_0.pb", "b=input_1.pb"))
    assert [one.status for one in facts.checks] == ["ok", "ok" if right else "failed"]
    assert facts_of(backend, case()).batch == 2  # of the only input that has sides


def test_broken_files_are_told_in_onnxruntimes_words(backend, written, tmp_path):
    written(nodes=[helper.make_node("Nope", ["scores"], ["end"], name="last")])
    told = {"an operator": "No Op registered for Nope"}
    files = {"an operator": (tmp_path / "net.onnx").read_bytes()}
    written(opset=99)
    told["an opset"] = "opset 99"
    files["an opset"] = (tmp_path / "net.onnx").read_bytes()
    written(save_as_external_data=True, location="weights.bin", size_threshold=100)
    (tmp_path / "weights.bin").unlink()
    told["weights"] = "weights.bin"
    files["weights"] = (tmp_path / "net.onnx").read_bytes()
    written(opset=5)
    told["an old opset"] = "convert_version"
    files["an old opset"] = (tmp_path / "net.onnx").read_bytes()
    told["text"], files["text"] = "Protobuf parsing failed", b"hello"
    told["nothing"], files["nothing"] = "No graph was found", b""
    for name, content in files.items():
        (tmp_path / "net.onnx").write_bytes(content)
        with pytest.raises(UsageError) as raised:
            facts_of(backend, case())
        text = str(raised.value)
        assert text.startswith("net.onnx: "), name
        assert told[name].lower() in text.lower()
        assert "\n" not in text
        assert "onnxruntime_src" not in text


def test_what_fails_in_a_run_costs_the_row(backend, written):
    written(("N", 3, "H", "W"))
    with pytest.raises(ModelError, match=r"^net\.onnx: "):  # 360 numbers for rows of 144
        facts_of(backend, case("3x3x8x7"))


def test_memory_that_runs_out_is_told_as_such(backend, written):
    written()
    made = OnnxModel(backend, case())

    def fail(*_):
        raise RuntimeError("std::bad_alloc")

    made.session = type("Session", (), {"run": fail})()
    with pytest.raises(InsufficientMemoryError), made:
        made.run()


def test_layers_and_gpus_are_refused(backend):
    with pytest.raises(UnsupportedError, match="--device cpu"):
        create("cuda:0")
    with pytest.raises(UnsupportedError, match="whole ONNX files"):
        backend.empty(None)

"""Every protocol on a tiny real run in each framework: lines as in the source documents."""

import importlib.util
import itertools
import json
import re

import pytest

from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.models import build_model, model_names
from pydlbench.models.passes import parameters
from pydlbench.protocols.protocol import PROTOCOLS
from pydlbench.protocols.runner import ProtocolSpec, run_in_worker
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session

FRAMEWORKS = ("torch", "tensorflow")
real = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in FRAMEWORKS),
    reason="needs torch and tensorflow",
)

# A line of the source document for each kind that is printed; digits stand for any number.
BENCHMARK = (
    "conv1   [128, 56, 56, 64]",
    "2019-01-08 10:01:15.496202: step 0, duration = 0.131",
    "2019-01-08 10:01:28.494875: Forward across 100 steps, 0.131 +/- 0.001 sec / batch",
    "2019-01-08 10:02:04.218553: Forward-backward across 100 steps, 0.315 +/- 0.001 sec / batch",
)
SOURCES = {
    "alexnet-tutorial": BENCHMARK,
    "convnet-benchmarks-tf": BENCHMARK[1:],
    "mnist-tutorial": (
        "Initialized!",
        "Step 100 (epoch 0.12), 4.2 ms",
        "Minibatch loss: 3.239, learning rate: 0.010000",
        "Minibatch error: 6.2%",
        "Validation error: 7.6%",
        "Test error: 0.8%",
    ),
    "cifar10-tutorial": (
        "2018-09-09 23:09:06.868952: step 10, loss = 4.63 (4765.9 examples/sec; 0.027 sec/batch)",
    ),
    "tf-cnn-benchmarks": (
        "Done warm up",
        "10\timages/sec: 51.8 +/- 0.2 (jitter = 0.1)\t7.593",
        "----------------------------------------------------------------",
        "total images/sec: 51.66",
    ),
    "deep-learning-benchmark": (
        "Timestamp,Framework,Algorithm,BenchStage,Precision,Result",
        "2018-01-08T10:01:15.496202,pytorch,vgg16,eval,fp32,39.3",
    ),
    "convnet-benchmarks": (
        "ModelType: GoogleNet\tKernels: cudnn\tInput shape: 128x3x224x224",
        "cudnn                                   :updateOutput():      27.65",
        "cudnn                                            :TOTAL:      81.00",
    ),
}
TINY = {
    "alexnet-tutorial": {"batch": 2, "steps": 2, "every": 1, "warmup": 0},
    "convnet-benchmarks-tf": {"batch": 1, "steps": 2, "every": 1, "warmup": 0},
    "mnist-tutorial": {"batch": 16, "steps": 41, "every": 10, "generated": (128, 32, 32)},
    "cifar10-tutorial": {"batch": 8, "steps": 5, "every": 2, "generated": (64, 0, 8)},
    "tf-cnn-benchmarks": {
        "model": "alexnet-tfcnn-cifar10",
        "batch": 2,
        "steps": 4,
        "every": 2,
        "warmup": 1,
    },
    "deep-learning-benchmark": {"model": "densenet161", "batch": 1, "steps": 1, "warmup": 0},
    "convnet-benchmarks": {"model": "googlenet", "batch": 1, "steps": 1, "warmup": 1},
}


def shape(line: str) -> str:
    """A line with its numbers made anonymous, those of time and place kept in their form."""
    line = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d{6}", "<time>", line)
    line = re.sub(r"\d+\.(\d+)", lambda found: f"<{len(found[1])} decimals>", line)
    line = re.sub(r"\d+", "<n>", line)
    for framework in ("cudnn", "torch", "tensorflow", "pytorch"):
        line = line.replace(framework, "<framework>").replace("py<framework>", "<framework>")
    # Columns are padded to a width that a longer name has no part in.
    return re.sub(r" +", " ", line)


@pytest.fixture(scope="module")
def session():
    with Session(RunnerOptions()) as session:
        yield session


# Seconds each: one stands for the others in the default set.
QUICK = {("tf-cnn-benchmarks", "torch")}


@real
@pytest.mark.parametrize(
    ("protocol", "framework"),
    [
        pytest.param(*both, marks=() if both in QUICK else pytest.mark.deep)
        for both in itertools.product(sorted(PROTOCOLS), FRAMEWORKS)
    ],
)
def test_lines_look_as_in_the_source_document(session, protocol, framework):
    lines: list[str] = []
    notes: list[str] = []
    spec = ProtocolSpec(protocol=protocol, framework=framework, **TINY[protocol])
    result = run_in_worker(spec, session, lines.append, notes.append)
    printed = {shape(line).replace("densenet<n>", "vgg<n>") for line in lines}
    for source in SOURCES[protocol]:
        assert shape(source) in printed, (source, lines)
    assert all(number.value >= 0 for number in result.numbers)
    assert result.numbers
    assert bool(notes) == (PROTOCOLS[protocol].data is not None)
    assert result.library.split()[0] == framework
    if protocol == "mnist-tutorial":
        losses = [float(line.split()[2].rstrip(",")) for line in lines if "Minibatch loss" in line]
        assert losses[-1] < losses[0]
        assert result.data == "generated"


@pytest.mark.deep
@real
def test_both_frameworks_start_from_the_same_loss(session):
    first = {}
    for framework in FRAMEWORKS:
        lines: list[str] = []
        tiny = TINY["cifar10-tutorial"]
        spec = ProtocolSpec(protocol="cifar10-tutorial", framework=framework, **tiny)
        run_in_worker(spec, session, lines.append, lambda _text: None)
        first[framework] = [float(one.split("loss = ")[1].split()[0]) for one in lines]
    # Two decimals are printed; the last of them may be rounded the other way.
    assert first["torch"] == pytest.approx(first["tensorflow"], abs=0.011)
    assert len(first["torch"]) == 3


@real
def test_what_a_framework_cannot_do_is_refused_in_a_sentence(session):
    spec = ProtocolSpec(
        protocol="convnet-benchmarks", framework="torch", mode="compiled", batch=1, steps=1
    )
    with pytest.raises(UnsupportedError, match="nearest: --mode eager"):
        run_in_worker(spec, session, lambda _line: None, lambda _text: None)


@real
def test_whoever_cannot_write_a_line_ends_the_run(session):
    def full(_line: str) -> None:
        raise BrokenPipeError

    spec = ProtocolSpec(protocol="alexnet-tutorial", batch=1)
    with pytest.raises(BrokenPipeError):
        run_in_worker(spec, session, full, lambda _text: None)


def test_published_models_and_batches_are_models_of_ours():
    known = set(model_names())
    for protocol in PROTOCOLS.values():
        assert set(protocol.models) <= known
        assert set(protocol.batches) <= set(protocol.models)
        assert set(protocol.options_by_model) <= set(protocol.models)
        for name in protocol.models:
            build_model(name, 1, **protocol.model_options(name))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vgg16", 138_361_641),
        ("googlenet", 6_999_577),
        ("inception-v3", 23_819_401),  # no factor in its normalisations
        ("resnet50-v1", 25_559_081),
        ("resnet152-v1", 60_194_857),
        ("alexnet-tfcnn", 61_842_345),
        ("alexnet-tfcnn-cifar10", 1_756_619),
    ],
)
def test_tf_cnn_benchmarks_graphs_have_its_own_parameters(name, expected):
    model = ProtocolSpec(protocol="tf-cnn-benchmarks", model=name, batch=1).build()
    assert parameters(model) == expected
    # Its poolings pad as TensorFlow does.
    pools = [node.layer for node in model if node.op == "pool" and node.layer.stride[0] == 2]
    assert name != "googlenet" or all(one.pad_before[0] == 0 for one in pools)


def test_a_model_that_the_script_does_not_have():
    with pytest.raises(UsageError, match="nearest: mnist"):
        ProtocolSpec(protocol="mnist-tutorial", model="resnet50")


def test_case_survives_the_wire():
    spec = ProtocolSpec(protocol="mnist-tutorial", quirks=("validation-in-time",), steps=3)
    assert ProtocolSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec

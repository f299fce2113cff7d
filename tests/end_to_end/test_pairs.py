"""Pairs of models through ``compare``: KernelBench's convention, Keras, ONNX, and a test's fixture.

The times are of a loaded machine, so only results, exit codes and the sums of rows are asserted.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pydlbench.cli import main
from pydlbench.cli.compare_models import read_task
from pydlbench.cli.compare_options import CompareOptions
from pydlbench.runner.session import Session
from pydlbench.steps.agreement import agree_steps

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
REFERENCE = """
class Model(nn.Module):
    def __init__(self{arguments}):
        super().__init__()
        {layers}

    def forward(self, {inputs}):
        return {old}

def get_inputs():
    return [{given}]

def get_init_inputs():
    return [{init}]
"""
NEW = """
class ModelNew(nn.Module):
    def __init__(self{arguments}):
        super().__init__()
        {new_layers}

    def forward(self, {inputs}):
        return {new}
"""


def pair(old, new, given, layers="pass", new_layers=None, arguments=(), right=True):
    """A pair: expressions of both, inputs, layers, and arguments of the constructor."""
    names = ", ".join("xyz"[: len(given)])
    values = {
        "old": old,
        "new": new,
        "inputs": names,
        "given": ", ".join(given),
        "layers": layers,
        "new_layers": new_layers or layers,
        "arguments": "".join(f", {'nmk'[place]}" for place in range(len(arguments))),
        "init": ", ".join(map(str, arguments)),
    }
    return values, right


IMAGE = "torch.rand(2, 3, 8, 8)"
PAIRS = {
    "product": pair("x @ y", "torch.mm(x, y)", ["torch.rand(16, 8)", "torch.rand(8, 4)"]),
    "swish": pair("x * torch.sigmoid(x)", "F.silu(x)", ["torch.rand(16, 64)"]),
    "softmax": pair(
        "torch.softmax(x, -1)",
        "torch.exp(x - torch.logsumexp(x, -1, keepdim=True))",
        ["torch.rand(16, 64)"],
    ),
    "normalised": pair(
        "self.norm(x)",
        "F.layer_norm(x, [64], self.norm.weight, self.norm.bias)",
        ["torch.rand(16, 64)"],
        "self.norm = nn.LayerNorm(64)",
    ),
    "attention": pair(
        "F.scaled_dot_product_attention(x, y, z)",
        "torch.softmax(x @ y.mT / x.shape[-1] ** 0.5, -1) @ z",
        ["torch.rand(2, 2, 8, 16)"] * 3,
    ),
    "convolution": pair(
        "F.relu(self.layer(x) + self.bias)",
        "F.relu_(F.conv2d(x, self.kernel.weight, self.kernel.bias) + self.shift)",
        [IMAGE],
        "self.layer = nn.Conv2d(3, n, 3); self.bias = nn.Parameter(torch.randn(n, 1, 1))",
        "self.kernel = nn.Conv2d(3, n, 3); self.shift = nn.Parameter(torch.randn(n, 1, 1))",
        arguments=(5,),
    ),
    "mlp": pair(
        "self.down(F.gelu(self.up(x)))",
        "torch.addmm(self.down.bias, F.gelu(F.linear(x, self.up.weight, self.up.bias)), "
        "self.down.weight.T)",
        ["torch.rand(4, 6)"],
        "self.up = nn.Linear(n, m); self.down = nn.Linear(m, n)",
        arguments=(6, 24),
    ),
    "batch": pair(
        "self.norm(x).mean((2, 3))",
        "self.norm(x).flatten(2).mean(2)",
        [IMAGE],
        "self.norm = nn.BatchNorm2d(n)",
        arguments=(3,),
    ),
    "pooled": pair("F.max_pool2d(x, 2)", "x.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5))", [IMAGE]),
    "loss": pair(
        "F.mse_loss(x, y)", "((x - y) ** 2).mean()", ["torch.rand(8, 4)", "torch.rand(8, 4)"]
    ),
    "wrong": pair("torch.cumsum(x, 1)", "torch.cumsum(x[:, :-1], 1)", ["torch.rand(8, 4)"]),
    "half": pair("x @ x.T", "(x.half() @ x.half().T).float()", ["torch.rand(16, 64)"], right=False),
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write the two files of a pair, whose names are those of every pair."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)

    def write(values):
        (tmp_path / "reference.py").write_text(HEAD + REFERENCE.format(**values))
        (tmp_path / "solution.py").write_text(HEAD + NEW.format(**values))
        return ["reference.py:Model", "solution.py:ModelNew"]

    return write


def agreement_of(*words):
    task, _ = read_task(CompareOptions.parse([*words]))
    with Session() as session, tempfile.TemporaryDirectory() as folder:
        return agree_steps([row.spec for row in task.rows], session, Path(folder))


@pytest.mark.deep
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_in_the_convention_of_kernelbench_are_judged(written, name):
    values, right = PAIRS[name]
    results = agreement_of(*written(values))
    assert results.unchecked is None
    assert results.shared == results.weights[0] == results.weights[1]
    assert results.differs is (not right or name == "wrong")


KERAS = """
import keras
import numpy as np

class Rewritten(keras.Model):
    def __init__(self, gain):
        super().__init__()
        self.up, self.down = keras.layers.Dense(16), keras.layers.Dense(4)
        self.norm, self.gain = keras.layers.BatchNormalization(), gain

    def call(self, x, training=False):
        return self.down(self.norm(keras.ops.relu(self.up(x)), training=training)) * self.gain

def inputs():
    return np.random.rand(8, 6).astype("float32")

def old():
    layers = keras.layers
    up, down = layers.Dense(16, "relu", name="one"), layers.Dense(4, name="two")
    return keras.Sequential([keras.Input([6]), up, layers.BatchNormalization(), down]), inputs()

def new(gain=1.0):
    model, given = Rewritten(gain), inputs()
    model(given)
    return model, given
"""


@pytest.mark.deep
@pytest.mark.parametrize("phase", ["forward", "training"])
def test_keras_models_exchange_weights_statistics_and_inputs(tmp_path, monkeypatch, phase):
    pytest.importorskip("keras")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(KERAS)
    same = agreement_of("own.py:old", "own.py:new", "--phase", phase)
    assert (same.unchecked, same.shared, same.weights) == (None, 8, (8, 8))
    assert not same.differs
    assert agreement_of(
        "own.py:old", "own.py:new", "--phase", phase, "--set-b", "gain=1.01"
    ).differs


@pytest.mark.deep
def test_two_onnx_files_are_compared_by_the_command(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    for name, node in (("old", "Relu"), ("new", "Abs")):
        value = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node(node, ["x"], ["y"])],
            name,
            [value("x", 1, [4, 8])],
            [value("y", 1, [4, 8])],
        )
        opset = [onnx.helper.make_opsetid("", 17)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), f"{name}.onnx")
    quick = ["--repetitions", "4", "--budget", "0.01", "--quiet", "--store", "none"]
    assert main(["compare", "old.onnx", "old.onnx", *quick]) == 0
    assert main(["compare", "old.onnx", "new.onnx", *quick, "--json", "found.json"]) == 1
    change = json.loads((tmp_path / "found.json").read_text())["change"]
    assert change["results"]["agreement"]["output"] > 0.1


TEST = """
import pytest

@pytest.mark.pydlbench(slower="90%", repetitions=4, budget=0.01)
def test_rewritten(pydlbench_compare):
    found = pydlbench_compare("reference.py:Model", "solution.py:ModelNew")
    assert found.change.results.agreement is not None
"""


@pytest.mark.deep
@pytest.mark.parametrize(("name", "code"), [("mlp", 0), ("half", 1)])
def test_a_test_fails_if_the_new_model_computes_something_else(
    written, tmp_path, request, name, code
):
    written(PAIRS[name][0])
    (tmp_path / "test_own.py").write_text(TEST)
    # Where pydlbench is installed it has registered the plugin itself.
    there = request.config.pluginmanager.hasplugin("pydlbench")
    plugin = [] if there else ["-p", "pydlbench.pytest_plugin"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "test_own.py"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert done.returncode == code, done.stdout
    assert ("computes something else" in done.stdout) is bool(code)

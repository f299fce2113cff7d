"""Every command that a finding names is one that the real command line takes."""

import dataclasses
import shlex

import pytest
from breakdown_records import make_record
from planted import World, run

from pydlbench.cli import breakdown, diagnose, layers, step
from pydlbench.cli.parser import read
from pydlbench.diagnose.rules import again, layer_command
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.records.step import StepSpec
from pydlbench.records.user_model import UserModelSpec
from pydlbench.report.breakdown import conclusion

COMMANDS = {"layers": layers, "diagnose": diagnose, "breakdown": breakdown, "step": step}
# What is planted, and how it is run.
PLANTED = {
    "unpacked weights": (World(unpacked_s={"fc1": 0.02, "fc2": 0.03}), {}),
    "in a backward pass too": (World(unpacked_s={"fc1": 0.02}), {"phase": "forward-backward"}),
    "layout": (World(reorder_s=0.06), {"layout": "nchw"}),
    "fresh memory": (World(fresh_s=0.08), {"phase": "training"}),
    "fresh memory in NCHW": (World(fresh_s=0.08), {"layout": "nchw"}),
    "fresh memory in TensorFlow": (World(fresh_s=0.08), {"framework": "tensorflow"}),
    "gaps": (World(gaps_s=0.05), {}),
    "pointwise": (World(step_s=0.1, pointwise_s=0.03), {}),
    "optimizer": (World(optimizer_s=0.1), {"phase": "training"}),
    "decay": (World(decay_s=0.02), {"phase": "training"}),
    "channels": (World(ragged_s=0.01), {}),
    "padding": (World(copy_s=0.01), {"model": "alexnet"}),
    "roof": (World(other_way_s=0.01, efficiency=0.1, step_s=0.05), {}),
    "arithmetic": (World(bound="compute", wide_s=0.08), {}),
    "loss": (
        World(step_s=0.05, slow_s={"loss": 0.02}),
        {"phase": "forward-backward", "options": {"decay": "0"}},
    ),
    "batch": (World(batch_s=0.04, step_s=0.06), {}),
}


def tasks_of(command):
    """What the command line makes of a command, its options checked as they are when it runs."""
    program, name, *words = shlex.split(command)
    assert program == "pydlbench"
    tasks, _ = COMMANDS[name].read_tasks(read([name, *words])[0])
    return [row.spec for task in tasks for row in task.rows]


@pytest.mark.parametrize("fault", PLANTED)
def test_the_next_command_of_a_finding_is_read(fault):
    world, words = PLANTED[fault]
    found = run(world, **words)
    assert found.findings
    commands = [one.next for one in found.findings]
    others = [text for one in found.findings for text in one.alternatives]
    commands += [text.partition("; next: ")[2] for text in others if "; next: " in text]
    for command in commands:
        tasks_of(command)


@pytest.mark.parametrize(
    "words",
    [
        {"mode": "compiled", "precision": "bf16", "phase": "forward-backward"},
        {"framework": "tensorflow", "mode": "xla"},
        {"framework": "torch", "layout": "nchw", "options": {"lrn": "off"}},
        {"feed": "host"},
    ],
)
def test_a_step_comes_back_as_it_was(words):
    case = StepSpec(model="alexnet", batch=3, **words)
    assert tasks_of(again(case)) == [case]
    tasks_of(again(case, "breakdown"))


def test_a_breakdown_names_the_step_with_images_from_the_host():
    record = make_record(feed="host")
    command = conclusion(record)[-1].removeprefix("next: ")
    assert [spec.feed for spec in tasks_of(command)] == ["host"]


@pytest.mark.parametrize(
    ("mode", "padding", "word"),
    [("max", False, "max"), ("avg", False, "avg"), ("avg", True, "avg_p")],
)
def test_a_pooling_comes_back_as_it_was(mode, padding, word):
    layer = build_layer(
        "pool",
        batch=2,
        channels=8,
        in_size=14,
        kernel=3,
        stride=2,
        padding=1,
        mode=mode,
        count_include_pad=padding,
        name="some/pool",
    )
    command = layer_command(KernelSpec(layer=layer, pass_="backward-data", backend="torch"))
    assert f"--pool {word}" in command
    layers = {dataclasses.replace(case.layer, name=None) for case in tasks_of(command)}
    assert layers == {layer.replace(name=None)}


@pytest.mark.parametrize(
    "step",
    [
        {"model": "net.onnx", "framework": "onnxruntime", "batch": 4},
        {"model": "net.onnx", "framework": "onnxruntime", "mode": "unoptimized"},
        {"model": "net.py:build", "framework": "tensorflow", "phase": "training", "mode": "xla"},
        {
            "model": "net.py:build",
            "options": {"width": "3"},
            "own": UserModelSpec(optimizer="adam"),
        },
    ],
    ids=lambda step: " ".join(map(str, step.values())),
)
def test_the_command_of_a_model_of_ones_own_asks_for_the_same(tmp_path, monkeypatch, step):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").touch()
    (tmp_path / "net.py").write_text("def build(width): pass\n")
    case = StepSpec(**step)
    for command in (again(case), again(case, "breakdown")):
        assert tasks_of(command) == [case]

"""convnet-benchmarks' Torch7 script: three loops, back to back, and their sums."""

import re

import pytest

from pydlbench.protocols.protocol import ProtocolSubject

# As a Titan X printed them (tabs as the log has them).
PUBLISHED = [
    "ModelType: AlexNet\tKernels: cudnn\tInput shape: 128x3x224x224",
    "cudnn                                   :updateOutput():      24.87",
    "cudnn                                :updateGradInput():      21.15",
    "cudnn                              :accGradParameters():      25.64",
    "cudnn                                          :Forward:      24.87",
    "cudnn                                         :Backward:      46.79",
    "cudnn                                            :TOTAL:      71.66",
]
SUBJECT = ProtocolSubject(model="alexnet-owt", image=(3, 224, 224), framework="cudnn")
TIMES = {
    ":updateOutput():": 24.87e-3,
    ":updateGradInput():": 21.15e-3,
    ":accGradParameters():": 25.64e-3,
}


def test_lines_are_the_published_ones(world):
    this = world(seconds=lambda name, _count: TIMES[name], launches=True)
    numbers = this.run("convnet-benchmarks", SUBJECT)
    assert this.lines == PUBLISHED
    assert numbers[-1].value == pytest.approx(71.66)
    assert [number.unit for number in numbers] == ["ms"] * 6


def test_long_numbers_and_names_keep_their_columns(world):
    this = world(seconds=lambda _name, _count: 0.28862)
    this.run(
        "convnet-benchmarks",
        ProtocolSubject(model="vgg11", image=(3, 224, 224), framework="tensorflow"),
    )
    assert this.lines[0] == "ModelType: VGG Model-A\tKernels: tensorflow\tInput shape: 64x3x224x224"
    assert {len(line) for line in this.lines[1:]} == {67}
    assert this.lines[1].split() == ["tensorflow", ":updateOutput():", "288.62"]


def test_dry_runs_first_then_one_loop_per_pass(world):
    this = world(seconds=lambda _name, count: 1.0 if count < 10 else 1e-3)
    numbers = this.run("convnet-benchmarks", SUBJECT)
    names = list(TIMES)
    assert this.ran == names * 10 + [name for name in names for _ in range(10)]
    assert numbers[0].value == pytest.approx(1.0)  # ms: the dry runs' seconds do not count


def test_a_loop_waits_once_for_all_its_launches(world):
    this = world(seconds=lambda _name, _count: 1e-3, launches=True)
    waits = []
    wait = this.synchronize
    this.synchronize = lambda: (waits.append(len(this.ran)), wait())
    numbers = this.run("convnet-benchmarks", SUBJECT, warmup=2)
    assert waits == [3, 6, 16, 26, 36]
    assert [number.value for number in numbers[:3]] == pytest.approx([1.0, 1.0, 1.0])


def test_passes(world):
    this = world()
    this.run("convnet-benchmarks", SUBJECT)
    assert [spec.phase for spec in this.definitions] == [
        "forward",
        "backward-data",
        "backward-weights",
    ]
    assert [spec.loss for spec in this.definitions] == ["none", "output", "output"]
    assert not any(spec.input_gradient or spec.fetch or spec.dropout for spec in this.definitions)
    assert re.search("no gradient of the images", this.definitions[1].includes())

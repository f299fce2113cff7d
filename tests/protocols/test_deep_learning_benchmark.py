"""deep-learning-benchmark: what counts, and the CSV."""

import csv
from typing import Any

import pytest

from pydlbench.protocols.protocol import DEEP_LEARNING_BENCHMARK, ProtocolSubject

TORCH = DEEP_LEARNING_BENCHMARK.definitions_in("torch")
TENSORFLOW = DEEP_LEARNING_BENCHMARK.definitions_in("tensorflow")

# The fields that the document lists, in its order and spelling.
DOCUMENTED = ["Timestamp", "Framework", "Algoritem", "BenchStage", "Precision", "Result"]
TIMES = {"eval": 0.03934, "train": 0.13191}


def subject(**changes: Any) -> ProtocolSubject:
    return ProtocolSubject(
        **{"model": "vgg16", "image": (3, 224, 224), "framework": "torch", **changes}
    )


def test_rows(world):
    this = world(seconds=lambda name, _count: TIMES[name])
    numbers = this.run("deep-learning-benchmark", subject(precision="fp16"))
    assert this.lines == [
        "Timestamp,Framework,Algorithm,BenchStage,Precision,Result",
        "2019-01-08T10:02:51,pytorch,vgg16,eval,fp16,39.3",
        "2019-01-08T10:02:51,pytorch,vgg16,train,fp16,131.9",
    ]
    assert [(number.value, number.unit) for number in numbers] == [
        (pytest.approx(39.34), "ms"),
        (pytest.approx(131.91), "ms"),
    ]
    rows = list(csv.DictReader(this.lines))
    assert [name.replace("Algoritem", "Algorithm") for name in DOCUMENTED] == list(rows[0])


def test_rows_as_the_wrapper_writes_them(world):
    this = world(seconds=lambda name, _count: TIMES[name])
    this.run("deep-learning-benchmark", subject(), quirks=["wrapper-csv"])
    assert this.lines[0] == "," + ",".join(DOCUMENTED)
    assert this.lines[1:] == [
        "0,2019-01-08T10:02:51,pytorch,vgg16,eval,fp32,39.3ms",
        "1,2019-01-08T10:02:51,pytorch,vgg16,train,fp32,131.9ms",
    ]


def test_twenty_warm_up_and_twenty_count(world):
    this = world(seconds=lambda _name, count: 5.0 if count < 20 else (count - 19) * 1e-3)
    numbers = this.run("deep-learning-benchmark", subject())
    assert this.ran == ["eval"] * 40 + ["train"] * 40
    assert numbers[0].value == pytest.approx(10.5)  # the mean of 1 to 20 ms
    assert len(numbers[0].times) == 20


def test_the_device_is_waited_for_before_and_after(world):
    this = world(seconds=lambda name, _count: TIMES[name], launches=True)
    this.waiting = 3.0  # left from before: must not count
    numbers = this.run("deep-learning-benchmark", subject(), warmup=0, steps=2)
    assert [number.value for number in numbers] == pytest.approx([39.34, 131.91])


def test_torch_takes_the_images_gradient_and_no_optimizer(world):
    this = world()
    this.run("deep-learning-benchmark", subject())
    assert tuple(this.definitions) == TORCH
    train = TORCH[1]
    assert train.input_gradient
    assert train.zero_fill
    assert (train.loss, train.optimizer, train.fetch) == ("sum", "none", ())
    assert TORCH[0].propagation == "inference"


def test_tensorflow_fetches_every_gradient_and_stays_in_inference(world):
    this = world()
    this.run("deep-learning-benchmark", subject(framework="tensorflow"))
    assert tuple(this.definitions) == TENSORFLOW
    train = TENSORFLOW[1]
    assert (train.propagation, train.fetch, train.input_gradient) == (
        "inference",
        ("gradients",),
        False,
    )
    assert this.lines[1].split(",")[1] == "tensorflow"


def test_zero_fill_can_be_switched_off(world):
    this = world()
    this.run("deep-learning-benchmark", subject(), without=["zero-fill"])
    assert not this.definitions[1].zero_fill

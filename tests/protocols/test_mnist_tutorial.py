"""The MNIST tutorial: what its milliseconds cover, which images it takes, how it prints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pydlbench.errors import UsageError
from pydlbench.protocols.data.datasets import Dataset, Split
from pydlbench.protocols.protocol import MNIST_TUTORIAL, ProtocolSubject

if TYPE_CHECKING:
    from pydlbench.backends.steps.inputs import Batch

# As a GTX 1070 printed them: the first two reports, one after a decay, the end.
PUBLISHED = """\
Initialized!
Step 0 (epoch 0.00), 10.0 ms
Minibatch loss: 8.334, learning rate: 0.010000
Minibatch error: 85.9%
Validation error: 84.5%
Step 100 (epoch 0.12), 4.2 ms
Minibatch loss: 3.223, learning rate: 0.010000
Minibatch error: 3.1%
Validation error: 7.7%
Step 900 (epoch 1.05), 4.1 ms
Minibatch loss: 2.923, learning rate: 0.009500
Minibatch error: 1.6%
Validation error: 1.8%
Step 8500 (epoch 9.89), 4.1 ms
Minibatch loss: 1.596, learning rate: 0.006302
Minibatch error: 0.0%
Validation error: 0.9%
Test error: 0.8%
""".splitlines()

SUBJECT = ProtocolSubject(model="mnist", image=(1, 28, 28))


def split(count: int, first: int = 0) -> Split:
    """Images that carry their own number, so that a step can tell which it was fed."""
    images = np.zeros((count, 1, 28, 28), np.float32)
    images[:, 0, 0, 0] = np.arange(first, first + count)
    return Split(images=images, labels=np.arange(count) % 10)


def data(train: int, validation: int = 64, test: int = 64, **more: Any) -> Dataset:
    return Dataset(
        name="mnist",
        train=split(train),
        validation=split(validation, 10_000),
        test=split(test, 20_000),
        source="invented",
        **more,
    )


def small(train: int) -> Dataset:
    """As many training images as asked for, in one byte each that they share."""
    images = np.broadcast_to(np.zeros((1, 1, 28, 28), np.float32), (train, 1, 28, 28))
    return Dataset(
        name="mnist",
        train=Split(images=images, labels=np.zeros(train, np.int64)),
        validation=split(64),
        test=split(64),
        source="invented",
    )


def form(line: str) -> str:
    """A line with numbers of any length before the point, but not after it."""
    return re.sub(r"\d+(?=\D|$)", lambda found: "9" * len(found[0]), re.sub(r"\d+\.", "9.", line))


def test_the_whole_run_prints_as_published(world):
    # 55,000 images, batch 64, 10 epochs: 8593 steps, the last report at step 8500.
    this = world(loss=lambda _count: 2.5)
    this.run("mnist-tutorial", SUBJECT, small(55_000))
    assert this.ran.count("train") == 8593
    assert this.ran.count("report") == 86
    assert len(this.lines) == 1 + 4 * 86 + 1
    shown = this.lines[:9] + this.lines[37:41] + this.lines[-5:]
    published = [re.sub(r"error: .*", "error: 0.0%", line) for line in PUBLISHED]
    assert [form(line) for line in shown] == [form(line) for line in published]
    for number in (0, 1, 5, 9, 13):  # epochs and rates are no measurements
        assert shown[number].partition(",")[0] == PUBLISHED[number].partition(",")[0]
    assert [line.partition("rate:")[2] for line in shown] == [
        line.partition("rate:")[2] for line in PUBLISHED
    ]


def test_a_line_covers_the_validation_pass_of_the_line_before(world):
    # X = T(train) + 0.79 T(evaluate) + 0.01 T(report): 4 + 0.79 * 1 + 0.01 * 21 = 5.0 ms.
    times = {"train": 4e-3, "evaluate": 1e-3, "report": 21e-3}
    this = world(seconds=lambda name, _count: times[name], initialization=0.175)
    numbers = this.run("mnist-tutorial", SUBJECT, data(400, validation=5000), steps=201)
    assert this.ran.count("evaluate") == 3 * 79 + 1
    steps = [line for line in this.lines if line.startswith("Step")]
    # The first: (175 initialisation + 4 train + 21 report) / 100.
    assert steps == [
        "Step 0 (epoch 0.00), 2.0 ms",
        "Step 100 (epoch 16.00), 5.0 ms",
        "Step 200 (epoch 32.00), 5.0 ms",
    ]
    assert (numbers[0].name, numbers[0].unit) == ("Step", "ms")
    assert numbers[0].value == pytest.approx(5.0)
    assert numbers[0].times == pytest.approx((5e-3, 5e-3))


def test_both_quirks_can_be_switched_off(world):
    times = {"train": 4e-3, "evaluate": 1e-3, "report": 21e-3}
    this = world(seconds=lambda name, _count: times[name])
    this.run(
        "mnist-tutorial",
        SUBJECT,
        data(400, validation=5000),
        steps=101,
        without=["validation-in-time", "first-line-over-all"],
    )
    steps = [line.partition(", ")[2] for line in this.lines if line.startswith("Step")]
    assert steps == ["25.0 ms", "4.2 ms"]


def test_images_are_taken_in_order_and_wrap_before_the_end(world):
    this = world()
    this.run("mnist-tutorial", SUBJECT, data(100, 8, 8), batch=8, steps=13)
    firsts = [
        int(fed.images[0, 0, 0, 0])
        for name, fed in zip(this.ran, this.fed, strict=True)
        if name == "train"
    ]
    # step * 8 % (100 - 8)
    assert firsts == [0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 4]


def test_each_step_has_its_own_rate_and_the_line_the_next_ones(world):
    this = world()
    # 64 images of 8: the optimizer's 8th step is the first with the decayed rate.
    this.run("mnist-tutorial", SUBJECT, data(64, 8, 8), batch=8, steps=9, every=7)
    rates = [rate for name, rate in zip(this.ran, this.rates, strict=True) if name == "train"]
    assert rates == pytest.approx([0.01] * 8 + [0.0095])
    lines = [line for line in this.lines if "rate" in line]
    assert [line[-8:] for line in lines] == ["0.010000", "0.009500"]
    assert MNIST_TUTORIAL.loop.rate(8592, 64, 55_000) == pytest.approx(0.01 * 0.95**9)


def test_every_image_is_judged_once_although_the_last_batch_reaches_back(world):
    # 20 images in batches of 8: 8, 8, and the last 8, of which 4 count. Wrong: images 12 to 16.
    def predict(batch: Batch) -> np.ndarray:
        numbers = batch.images[:, 0, 0, 0].astype(int) % 10_000
        wrong = (numbers >= 12) & (numbers < 16)
        return np.eye(10, dtype=np.float32)[(batch.labels + wrong) % 10]

    this = world(predict=predict)
    numbers = this.run("mnist-tutorial", SUBJECT, data(64, 20, 17), batch=8, steps=1)
    sizes = {len(fed.images) for fed in this.fed}
    assert sizes == {8}
    assert "Validation error: 20.0%" in this.lines
    assert this.lines[-1] == "Test error: 23.5%"  # 4 of 17
    assert [number.name for number in numbers] == ["Validation error", "Test error"]
    assert numbers[1].value == pytest.approx(100 * 4 / 17)


def test_steps_are_what_the_script_runs():
    train, report, evaluate = MNIST_TUTORIAL.definitions
    assert (train.phase, train.optimizer, train.feed, train.fetch) == (
        "training",
        "model",
        "host",
        (),
    )
    assert (report.phase, report.propagation) == ("forward", "training")  # with dropout
    assert report.fetch == ("loss", "predictions")
    assert (evaluate.propagation, evaluate.loss) == ("inference", "none")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 64}, "64 training images; nearest: 63"),
        ({"batch": 32}, "20 validation images; nearest: 20"),
        ({"batch": 16, "epochs": 0.01}, r"--epochs 0\.01: .*nearest: 0\.25"),
    ],
)
def test_too_few_images(world, options, message):
    with pytest.raises(UsageError, match=message):
        world().run("mnist-tutorial", SUBJECT, data(64, 20, 20), **options)


def test_generated_images_are_said_to_be(world):
    this = world()
    this.run("mnist-tutorial", SUBJECT, data(64, 8, 8, generated=True), batch=8, steps=1)
    assert len(this.notes) == 1
    assert "not MNIST" in this.notes[0]
    other = world()
    other.run("mnist-tutorial", SUBJECT, data(64, 8, 8), batch=8, steps=1)
    assert other.notes == []

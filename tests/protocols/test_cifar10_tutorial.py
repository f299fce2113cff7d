"""The CIFAR-10 tutorial's lines and what is between them."""

import re
from typing import Any

import numpy as np
import pytest

from pydlbench.errors import UsageError
from pydlbench.protocols.data.datasets import generate
from pydlbench.protocols.protocol import CIFAR10_TUTORIAL, ProtocolSubject

# As a GTX 1060 printed them; the script fills a queue before, and has a line on that.
PUBLISHED = """\
2018-09-09 23:09:06.600383: step 0, loss = 4.67 (213.6 examples/sec; 0.599 sec/batch)
2018-09-09 23:09:06.868952: step 10, loss = 4.63 (4765.9 examples/sec; 0.027 sec/batch)
2018-09-09 23:09:07.032658: step 20, loss = 4.46 (7818.8 examples/sec; 0.016 sec/batch)
""".splitlines()
LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: step \d+, loss = \d+\.\d\d "
    r"\(\d+\.\d examples/sec; \d+\.\d{3} sec/batch\)"
)
SUBJECT = ProtocolSubject(model="cifar10", image=(3, 24, 24))


def run(this: Any, **settings: Any) -> Any:
    settings = {"batch": 4, "steps": 21, **settings}
    return this.run("cifar10-tutorial", SUBJECT, generate("cifar10", train=50, test=5), **settings)


def test_lines_have_the_published_form(world):
    this = world()
    run(this)
    assert all(LINE.fullmatch(line) for line in PUBLISHED)
    assert all(LINE.fullmatch(line) for line in this.lines)
    assert len(this.lines) == len(PUBLISHED)


def test_lines_to_the_last_digit(world):
    # 5.792 s of initialisation and the first step of 0.2 s are divided by 10 all the same.
    this = world(
        seconds=lambda _name, count: 0.2 if not count else 0.025,
        initialization=5.792,
        loss=lambda count: 4.67 - count / 250,
    )
    (number,) = run(this, batch=16)
    assert [line.partition(": ")[2] for line in this.lines] == [
        "step 0, loss = 4.67 (26.7 examples/sec; 0.599 sec/batch)",
        "step 10, loss = 4.63 (640.0 examples/sec; 0.025 sec/batch)",
        "step 20, loss = 4.59 (640.0 examples/sec; 0.025 sec/batch)",
    ]
    assert (number.value, number.unit) == (pytest.approx(640.0), "examples/s")
    assert number.times == pytest.approx((0.025, 0.025))


def test_the_first_line_can_be_one_steps(world):
    this = world(seconds=lambda _name, _count: 0.25)
    run(this, without=["first-line-over-all"], steps=1)
    assert "(16.0 examples/sec; 0.250 sec/batch)" in this.lines[0]


def test_what_is_fed_is_crops_in_the_order_of_the_file(world):
    this = world()
    run(this, steps=3)
    assert {fed.images.shape for fed in this.fed} == {(4, 3, 24, 24)}
    expected = generate("cifar10", train=50, test=5).train
    assert (
        np.concatenate([fed.labels for fed in this.fed]).tolist() == expected.labels[:12].tolist()
    )
    np.testing.assert_array_equal(this.fed[1].images, expected.images[4:8])
    assert this.rates == [pytest.approx(0.1)] * 3


def test_weights_cross_from_the_host_unless_switched_off(world):
    this, other = world(), world()
    run(this, steps=1)
    run(other, steps=1, without=["variables-on-cpu"])
    assert [spec.weights for spec in this.definitions + other.definitions] == ["host", "device"]
    assert this.definitions[0].averages == pytest.approx(0.9999)
    assert this.definitions[0].fetch == ("loss",)


def test_rate_falls_after_350_epochs():
    learning_rate = CIFAR10_TUTORIAL.loop.rate
    steps = int(50_000 / 128 * 350)
    assert learning_rate(steps - 1, 128, 1000) == pytest.approx(0.1)
    assert learning_rate(steps, 128, 1000) == pytest.approx(0.01)


def test_a_batch_larger_than_the_training_images_is_refused(world):
    with pytest.raises(UsageError, match=r"--batch 64: .*50 .*nearest: 49"):
        run(world(), batch=64)

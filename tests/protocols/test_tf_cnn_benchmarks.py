"""tf_cnn_benchmarks: its heading, its rates, their uncertainty and jitter, the total."""

import re
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.protocols.interpreter import summary
from pydlbench.protocols.protocol import ProtocolSubject

# As a GTX 1050 Ti printed them; the page that shows them has spaces for tabs.
PUBLISHED = """\
Done warm up
Step    Img/sec total_loss
1       images/sec: 52.3 +/- 0.0 (jitter = 0.0) 8.169
10      images/sec: 51.8 +/- 0.2 (jitter = 0.1) 7.593
20      images/sec: 51.8 +/- 0.1 (jitter = 0.1) 7.696
30      images/sec: 51.7 +/- 0.1 (jitter = 0.2) 7.753
40      images/sec: 51.7 +/- 0.1 (jitter = 0.2) 8.007
50      images/sec: 51.7 +/- 0.1 (jitter = 0.3) 7.520
60      images/sec: 51.7 +/- 0.1 (jitter = 0.3) 7.989
70      images/sec: 51.7 +/- 0.1 (jitter = 0.4) 8.028
80      images/sec: 51.7 +/- 0.1 (jitter = 0.4) 7.930
90      images/sec: 51.6 +/- 0.1 (jitter = 0.4) 7.853
100     images/sec: 51.7 +/- 0.1 (jitter = 0.3) 7.797
----------------------------------------------------------------
total images/sec: 51.66
----------------------------------------------------------------
""".splitlines()
SUBJECT = ProtocolSubject(
    model="resnet50-v1",
    image=(3, 224, 224),
    framework="tensorflow",
    version="2.21.0",
    device="cuda:1",
)


def test_lines_have_the_published_form(world):
    this = world(seconds=lambda _name, _count: 32 / 51.7, loss=lambda count: 7.5 + count / 1000)
    this.run("tf-cnn-benchmarks", SUBJECT, batch=32)
    shown = [re.sub(r"\d", "9", line.expandtabs(8)) for line in this.lines[-16:]]
    assert shown == [re.sub(r"\d", "9", line) for line in PUBLISHED]
    assert [line.split()[0] for line in this.lines[-16:]] == [line.split()[0] for line in PUBLISHED]


def test_heading(world):
    this = world()
    this.run("tf-cnn-benchmarks", SUBJECT, batch=32)
    assert this.lines[:17] == [
        "TensorFlow:  2.21",
        "Model:       resnet50-v1",
        "Dataset:     imagenet (synthetic)",
        "Mode:        BenchmarkMode.TRAIN",
        "SingleSess:  False",
        "Batch size:  32 global",
        "             32 per device",
        "Num batches: 100",
        "Num epochs:  0.00",
        "Devices:     ['/gpu:1']",
        "Data format: NCHW",
        "Optimizer:   sgd",
        "Variables:   parameter_server",
        "==========",
        "Generating model",
        "Running warm up",
        "Done warm up",
    ]


def test_lines_to_the_last_digit(world):
    # After 10 steps that do not count: 1, 2, 4, 2 s for 8 images: rates 8, 4, 2, 4.
    times = [9.0] * 10 + [1.0, 2.0, 4.0, 2.0]
    this = world(seconds=lambda _name, count: times[count], loss=lambda count: 8.169 + count - 10)
    rate, total = this.run("tf-cnn-benchmarks", SUBJECT, batch=8, steps=4, every=4)
    # 8 / mean(1, 2, 4, 2) = 3.556; sd of the rates sqrt(4.75) over sqrt(4) = 1.090;
    # deviations from the median 4: 4, 0, 2, 0, their median 1, times 1.4826.
    assert this.lines[-6:] == [
        "Step\tImg/sec\ttotal_loss",
        "1\timages/sec: 8.0 +/- 0.0 (jitter = 0.0)\t8.169",
        "4\timages/sec: 3.6 +/- 1.1 (jitter = 1.5)\t11.169",
        "-" * 64,
        "total images/sec: 3.56",
        "-" * 64,
    ]
    assert rate.value == pytest.approx(32 / 9)
    assert rate.spread == pytest.approx(statistics.pstdev([8, 4, 2, 4]) / 2)
    assert rate.times == pytest.approx((1.0, 2.0, 4.0, 2.0))
    assert total.value == pytest.approx(32 / 9)


def test_the_total_has_the_time_between_steps_too(world):
    this = world(seconds=lambda _name, _count: 1.0)
    write = this.lines.append

    class Slow(list):  # type: ignore[type-arg]
        def append(self, line: str) -> None:
            this.clock += 1.0 if line.startswith(("1\t", "2\t")) else 0.0
            write(line)

    this.lines = Slow()
    rate, total = this.run("tf-cnn-benchmarks", SUBJECT, batch=8, steps=2, every=1)
    assert rate.value == pytest.approx(8.0)
    assert total.value == pytest.approx(4.0)  # 16 images in 2 + 2 s


def test_forward_only_prints_no_loss(world):
    this = world(seconds=lambda _name, _count: 0.5, launches=True)
    rate, _ = this.run("tf-cnn-benchmarks", SUBJECT, batch=8, steps=1, quirks=["forward-only"])
    assert this.lines[-4].endswith("\t0.000")
    assert "Mode:        BenchmarkMode.FORWARD_ONLY" in this.lines
    assert this.definitions[0].phase == "forward"
    assert rate.value == pytest.approx(16.0)  # the device was waited for


def test_other_subjects_name_themselves(world):
    this = world()
    subject = ProtocolSubject(
        model="alexnet-tfcnn-cifar10", image=(3, 32, 32), framework="torch", version="2.13.0+cpu"
    )
    this.run("tf-cnn-benchmarks", subject)
    assert this.lines[0] == "PyTorch:     2.13"
    assert this.lines[2] == "Dataset:     cifar10 (synthetic)"
    assert this.lines[5] == "Batch size:  128 global"  # the script's own for this model
    assert this.lines[8] == "Num epochs:  0.26"  # 100 * 128 / 50,000
    assert this.lines[9] == "Devices:     ['/cpu:0']"


@given(st.lists(st.floats(1e-3, 10), min_size=1, max_size=30))
def test_speeds_are_the_scripts_formulas(times):
    array = np.array(times)
    rates = 32 / array
    found = summary(times, 32, len(times))
    assert (found["rate"], found["uncertainty"], found["jitter"]) == pytest.approx(
        (
            32 / np.mean(array),
            np.std(rates) / np.sqrt(len(rates)),
            1.4826 * np.median(np.abs(rates - np.median(rates))),
        ),
        rel=1e-6,
        abs=1e-6,
    )
